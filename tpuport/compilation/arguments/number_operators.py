"""Torch's functions with numbers that are arguments of the program.

A function that takes a tensor as well as a number, as torch's own signatures say, gets
a tensor of no dimensions. What makes tensors of numbers (`torch.tensor`, `arange`,
`full`) makes them of that tensor. Any other function gets the number itself, which is a
part of the program then.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax.numpy as jnp
import torch
from torch.overrides import TorchFunctionMode

from tpuport import compat
from tpuport.internals.torch_internals import torch_pytree
from tpuport.objects.traced_numbers import Atom, NumberTrace, Path, Term, TracedNumber

# With other tensors a number is computed in another precision than a tensor: int8 wraps
# around, bfloat16 rounds.
_EXACT: Final = frozenset(
    {torch.float32, torch.float64, torch.int32, torch.int64, torch.bool}
)
_INTEGERS: Final = (None, torch.int64, torch.int32, torch.long, torch.int)
_FILLED: Final = {"full": 1, "full_like": 1, "new_full": 2}
# x ** 2 is a product, and x ** y is not.
_BY_VALUE: Final = ("pow",)
_OPERATIONS: Final[dict[str, Callable]] = {
    "//": torch.floor_divide,
    "%": torch.remainder,
    "*": torch.mul,
}


class NumberOperators(TorchFunctionMode):
    """Answers torch's functions that are given a number of the call.

    Args:
        paths: of the numbers.
        array: their values, int[number of paths].
    """

    def __init__(self, paths: tuple[Path, ...], array: Any) -> None:
        super().__init__()
        self._places = {path: number for number, path in enumerate(paths)}
        self._array = array

    def __torch_function__(
        self,
        function: Any,
        types: Any,
        args: tuple = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if not any(map(_is_traced, torch_pytree.tree_leaves((args, kwargs)))):
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        made = self._make(name, function, args, kwargs)
        if made is not None:
            return made
        tensors = [
            leaf
            for leaf in torch_pytree.tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor)
        ]
        if {tensor.dtype for tensor in tensors} <= _EXACT:
            dtype = torch.int64
            if tensors and all(tensor.dtype is torch.int32 for tensor in tensors):
                dtype = torch.int32

            def as_tensor(value: Any, place: int | str) -> Any:
                if not _is_traced(value) or not takes_tensor(name, place):
                    return value
                return self._tensor(value.term, dtype)

            args = tuple(as_tensor(value, place) for place, value in enumerate(args))
            kwargs = {key: as_tensor(value, key) for key, value in kwargs.items()}
        fixed_args, fixed_kwargs = torch_pytree.tree_map(_as_int, (args, kwargs))
        return function(*fixed_args, **fixed_kwargs)

    def _make(
        self, name: str, function: Callable, args: tuple, kwargs: dict[str, Any]
    ) -> torch.Tensor | None:
        """A tensor that is made of numbers of the call; None for any other function."""
        if name in ("tensor", "as_tensor") and len(args) == 1:
            return self._make_tensor(args[0], kwargs)
        if name == "arange":
            return self._make_range(args, kwargs)
        place = _FILLED.get(name, len(args))
        if place < len(args) and _is_traced(args[place]):
            # Of what the number's own type gives.
            given = (*args[:place], 0, *args[place + 1 :])
            made = function(*given, **kwargs)
            if made.dtype in _EXACT and compat.is_ported(made):
                return made.fill_(self._tensor(args[place].term, torch.int64))
        return None

    def _make_tensor(self, data: Any, options: dict[str, Any]) -> torch.Tensor | None:
        if options.keys() - {"dtype", "device"}:
            return None
        # On the host it has the number itself.
        if not compat.is_ported(torch.tensor(0, **options)):
            return None
        values = data if isinstance(data, list | tuple) else [data]
        if not values or not all(
            type(value) is int or _is_traced(value) for value in values
        ):
            return None
        tensors = [
            self._tensor(value.term, torch.int64)
            if _is_traced(value)
            else self._tensor((value, ()), torch.int64)
            for value in values
        ]
        made = torch.stack(tensors) if values is data else tensors[0]
        dtype = options.get("dtype")
        return made if dtype is None else made.to(dtype)

    def _make_range(self, args: tuple, options: dict[str, Any]) -> torch.Tensor | None:
        if not 2 <= len(args) <= 3 or options.get("dtype") not in _INTEGERS:
            return None
        first, last = args[:2]
        length = last - first
        if not _is_traced(first) or type(length) is not int:
            return None
        made = torch.arange(0, length, *args[2:], **options)
        if not compat.is_ported(made):
            return None
        return made + self._tensor(first.term, made.dtype)

    def array(self, term: Term) -> Any:
        """The array of a term, of no dimensions."""
        return compat.as_jax(self._tensor(term, torch.int64))

    def _tensor(self, term: Term, dtype: torch.dtype) -> torch.Tensor:
        """The tensor of a term, of no dimensions."""
        constant, multiples = term
        total = compat.wrap(jnp.full((), constant, self._array.dtype), torch.int64)
        for atom, factor in multiples:
            total = total + self._atom(atom) * factor
        return total.to(dtype)

    def _atom(self, atom: Atom) -> torch.Tensor:
        if len(atom) == 2:
            return compat.wrap(self._array[self._places[atom]], torch.int64)
        operation, first, second = atom
        return _OPERATIONS[operation](
            self._tensor(first, torch.int64), self._tensor(second, torch.int64)
        )


def number_operators(
    trace: NumberTrace, paths: tuple[Path, ...], array: Any
) -> contextlib.AbstractContextManager[Any]:
    """Answers torch's functions in this block, if there are such numbers.

    Args:
        paths, array: as of `NumberOperators`.
    """
    if not paths:
        return contextlib.nullcontext()
    operators = NumberOperators(paths, array)
    trace.make_array = operators.array
    return operators


@functools.cache
def takes_tensor(name: str, place: int | str) -> bool:
    """Whether a function of torch takes a tensor in place of a number, as its own
    signatures say.

    Args:
        name: of the function: "add", "__radd__", "mul_".
        place: the number of the argument, or its name.
    """
    name = name.strip("_")
    if _reflected(name) in _BY_VALUE:
        return False
    packets = [getattr(torch.ops.aten, form, None) for form in (name, _reflected(name))]
    kinds = set()
    for packet in filter(None, packets):
        for overload in packet.overloads():
            arguments = getattr(packet, overload)._schema.arguments
            named = dict(
                itertools.chain(
                    enumerate(arguments),
                    ((argument.name, argument) for argument in arguments),
                )
            )
            if place in named:
                kinds.add(str(named[place].type).removeprefix("Optional[").rstrip("]"))
    return kinds >= {"Tensor", "number"}


def _reflected(name: str) -> str:
    """The operator of a method of Python: "add" of "radd" and "iadd", "div" of
    "rtruediv".
    """
    if name[:1] in ("r", "i") and hasattr(int, f"__{name[1:]}__"):
        name = name[1:]
    return {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder"}.get(
        name, name
    )


def _is_traced(value: Any) -> bool:
    return type(value) is TracedNumber


def _as_int(value: Any) -> Any:
    return value.__index__() if _is_traced(value) else value
