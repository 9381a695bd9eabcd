"""Values that code asks for while it is traced: each is answered with what another
program has computed for the call.

Code that branches, cuts or selects by a tensor needs its values, which a trace does not
have. `AskedValues` gives them, as tensors of the host, and knows which arrays of the
trace they belong to: a program that returns those arrays computes them for the next
call.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import jax
import torch
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state
from torch.overrides import TorchFunctionMode

from tpuport import trace_errors
from tpuport.compat.convert import as_jax, is_ported, to_numpy
from tpuport.errors import PortError
from tpuport.internals.torch_internals import torch_pytree, version_of

# Elements of the largest tensor of floats that Python may ask for, and of the largest
# of integers or masks.
_MOST_FLOATS: Final = 2**12
_MOST_INTEGERS: Final = 2**24
# Methods of torchax's class, for which torch calls no mode.
_OWN_METHODS: Final = ("tolist", "numpy", "__setitem__")


class ValuesNeeded(Exception):
    """The trace has come to values that nobody has computed yet; the last arrays that
    it asked for.
    """


class Selection:
    """Something that a mask selects, which becomes a tensor when the mask has
    values.
    """

    def select(self) -> torch.Tensor:
        raise NotImplementedError

    def is_enough_for(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
        """Whether the function needs no values of the mask."""
        raise NotImplementedError


class _Thread(threading.local):
    """The values of the trace that this thread is in."""

    current: "AskedValues | None" = None


_thread = _Thread()


def answer_mask(mask: Any) -> Any:
    """Traced. The values of a mask, an array of NumPy, where they are answered; the
    mask itself elsewhere.
    """
    answers = _thread.current
    if answers is None or not answers.is_in_trace() or not isinstance(mask, Tracer):
        return mask
    [host] = answers.ask([mask])
    return to_numpy(host)


class AskedValues(TorchFunctionMode):
    """In the block, code that asks for values of traced tensors gets them. For one
    trace.

    Args:
        values: those that are known, in the order in which the trace asks for them.
            They are not changed.

    Attributes:
        asked: the arrays of the trace that were asked for, in order.

    Raises:
        ValuesNeeded: the trace asks for more.
    """

    def __init__(self, values: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.asked: list[jax.Array] = []
        self._values = values
        # By the identity of the array, which `asked` keeps alive.
        self._known: dict[int, torch.Tensor] = {}
        self._trace: Any = None
        self._replaced: dict[str, Any] = {}
        self._before: AskedValues | None = None

    def __enter__(self) -> Any:
        self._trace = get_opaque_trace_state()
        self._before, _thread.current = _thread.current, self
        device_class = _device_class()
        for name in _OWN_METHODS:
            self._replaced[name] = vars(device_class)[name]
            setattr(device_class, name, self._through_mode(self._replaced[name]))
        return super().__enter__()

    def __exit__(self, kind: Any, *error: Any) -> None:
        super().__exit__(kind, *error)
        for name, method in self._replaced.items():
            setattr(_device_class(), name, method)
        _thread.current = self._before
        if kind is None and any(map(version_of, self._known.values())):
            raise PortError(
                "the code writes in place to a tensor that its shapes depend on",
                where="a tensor whose values were asked for while tracing",
                fix="copy it before, x.clone()",
            )

    def is_in_trace(self) -> bool:
        """Whether the current line is not in a loop or another trace inside of the
        block's.
        """
        return get_opaque_trace_state() == self._trace

    def ask(self, arrays: Sequence[jax.Array]) -> list[torch.Tensor]:
        """Traced. The values of these arrays on the host, integers of 64 bits as models
        expect them.
        """
        new = [array for array in arrays if id(array) not in self._known]
        first = len(self.asked)
        self.asked.extend(new)
        if len(self.asked) > len(self._values):
            raise ValuesNeeded
        for array, value in zip(new, self._values[first:], strict=False):
            is_short = value.dtype == torch.int32
            self._known[id(array)] = value.to(
                torch.int64 if is_short else value.dtype, copy=True
            )
        return [self._known[id(array)] for array in arrays]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        """Traced. Run a function; with the values of tensors in place of tensors, if it
        asks for values.
        """
        kwargs = kwargs or {}
        if not self.is_in_trace():
            return func(*args, **kwargs)
        selections = [
            leaf
            for leaf in torch_pytree.tree_leaves((args, kwargs))
            if isinstance(leaf, Selection)
        ]
        if selections:
            if selections[0].is_enough_for(func, args, kwargs):
                return func(*args, **kwargs)
            args, kwargs = torch_pytree.tree_map_only(
                Selection, lambda value: value.select(), (args, kwargs)
            )
        if self._follows_from_known(func, args, kwargs):
            args, kwargs = _replace((args, kwargs), self._answer)
        try:
            return func(*args, **kwargs)
        except Exception as error:
            # Of a size that is a tensor, errors say this and that.
            if not (_asks(error) or any(_traced_sizes((args, kwargs)))):
                raise
            first_error = error
        for chosen in _choices(func, args, kwargs):
            self.ask(list(map(as_jax, chosen)))
            answered_args, answered_kwargs = _replace(
                (args, kwargs), self._answer, chosen
            )
            try:
                return func(*answered_args, **answered_kwargs)
            except Exception as error:
                if not _asks(error):
                    raise
        raise first_error

    def _answer(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._known.get(id(as_jax(tensor)), tensor)

    def _follows_from_known(self, func: Any, args: tuple, kwargs: dict) -> bool:
        """Whether nothing but values that are known goes into a result: the host
        computes it, and knows it too.
        """
        if not self._known or writes_in_place(func) or _makes_alike(func):
            return False
        tensors = list(_traced_tensors((args, kwargs)))
        return bool(tensors) and all(
            id(as_jax(tensor)) in self._known for tensor in tensors
        )

    def _through_mode(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if is_ported(tensor):
                return method(tensor, *args, **kwargs)
            return getattr(tensor, method.__name__)(*args, **kwargs)

        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return self.__torch_function__(run, (), (tensor, *args), kwargs)

        run.__name__ = method.__name__
        return call


def _asks(error: BaseException | None) -> bool:
    """Whether an error, or one that it explains, is about a value that is not known
    while tracing.
    """
    while isinstance(error, Exception) and not isinstance(error, ValuesNeeded):
        if trace_errors.asks_for_values(error):
            return True
        error = error.__cause__
    return False


def _choices(func: Any, args: tuple, kwargs: dict) -> Iterator[list[torch.Tensor]]:
    """Which arguments may be those whose values a function asks for: the fewest
    first.
    """
    tensors = list(_traced_tensors((args, kwargs)))
    small = [tensor for tensor in tensors if tensor.numel() <= _most_elements(tensor)]
    discrete = [tensor for tensor in small if not _is_inexact(tensor)]
    sizes = list(_traced_sizes((args, kwargs)))
    if sizes:
        yield sizes
    first = args[0] if args else None
    others = [tensor for tensor in discrete if tensor is not first]
    if others:
        yield others
    # What is written to has to stay on the device.
    if writes_in_place(func):
        return
    if len(discrete) > len(others):
        yield discrete
    if len(small) > len(discrete):
        yield small


def _traced_sizes(arguments: tuple[tuple, dict]) -> Iterator[torch.Tensor]:
    """Traced integers among numbers, as in `torch.zeros((2, length, 4))`."""
    args, kwargs = arguments
    for value in (*args, *kwargs.values()):
        if isinstance(value, (list, tuple)) and not all(map(is_ported, value)):
            yield from (
                tensor
                for tensor in _traced_tensors(value)
                if not (tensor.ndim or _is_inexact(tensor))
            )


def _is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _most_elements(tensor: torch.Tensor) -> int:
    return _MOST_FLOATS if _is_inexact(tensor) else _MOST_INTEGERS


def writes_in_place(func: Any) -> bool:
    """Whether a function of torch writes to its first argument, by its name."""
    name = getattr(func, "__name__", "")
    if not name.endswith("__"):
        return name.endswith("_")
    return name in ("__setitem__", "__set__") or (
        name.startswith("__i") and name not in _READING
    )


# Names that begin as those of `+=` and its like do.
_READING: Final = frozenset({"__int__", "__index__", "__invert__", "__iter__"})


def _makes_alike(func: Any) -> bool:
    """Whether the result is a new tensor on the argument's device, which code may write
    to.
    """
    name = getattr(func, "__name__", "")
    return (
        name.endswith("_like") or name.startswith("new_") or name in ("clone", "copy")
    )


def _traced_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors of the trace in arguments, also those that bound slices."""
    for leaf in torch_pytree.tree_leaves(value):
        if isinstance(leaf, slice):
            yield from _traced_tensors((leaf.start, leaf.stop, leaf.step))
        elif is_ported(leaf) and isinstance(as_jax(leaf), Tracer):
            yield leaf


def _replace(
    value: Any,
    answer: Callable[[torch.Tensor], torch.Tensor],
    chosen: Sequence[torch.Tensor] | None = None,
) -> Any:
    """Arguments with the answers of some tensors in their place, or of all."""

    def replace_leaf(leaf: Any) -> Any:
        if isinstance(leaf, slice):
            return slice(*map(replace_leaf, (leaf.start, leaf.stop, leaf.step)))
        if not is_ported(leaf) or (
            chosen is not None and not any(leaf is tensor for tensor in chosen)
        ):
            return leaf
        return answer(leaf)

    return torch_pytree.tree_map(replace_leaf, value)


def _device_class() -> Any:
    import torchax.tensor

    return torchax.tensor.Tensor
