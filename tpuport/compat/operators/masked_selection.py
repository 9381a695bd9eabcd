"""`x[mask]` of a mask that is traced, whose length is not known.

Most of what models do with it needs no length: they compute something of each row, and
write that back under the same mask, or to the coordinates where it is true. It is
computed for all rows here, and the mask decides where it is written. The number of
selected elements is a scalar that the program computes. For anything else the mask
needs values.
"""

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state

from tpuport.base.temporary import temporary_attributes
from tpuport.compat.asked_values import Selection, answer_mask
from tpuport.compat.convert import as_jax, is_ported, wrap
from tpuport.compat.declarations import Answer, Call
from tpuport.compat.user_frames import is_in_model_library
from tpuport.internals.torch_internals import torch_pytree

# A key of an index: the mask, and slices of everything.
Key = tuple[Any, ...]


class _Thread(threading.local):
    """In whose code this thread makes selections by masks that are traced."""

    of: Literal["nobody", "libraries", "all"] = "nobody"


_thread = _Thread()


def lazy_masked_selections(
    of: Literal["libraries", "all"] = "all",
) -> contextlib.AbstractContextManager[None]:
    """In the block, `x[mask]` of a traced mask is a `MaskedSelection`.

    Args:
        of: in whose code: in all, or in that of libraries of models alone.
    """
    return temporary_attributes(_thread, of=of)


def selects_lazily(key: Key) -> bool:
    """Whether what this key selects is to become a `MaskedSelection`."""
    return _is_on() and _is_traced_mask(key) and _is_meant()


def _is_on() -> bool:
    return _thread.of != "nobody"


def _is_meant() -> bool:
    """Whether it is in the line that runs."""
    return _thread.of == "all" or is_in_model_library()


def _is_traced_mask(key: Key) -> bool:
    mask, *others = key
    is_mask = isinstance(mask, Tracer) and mask.dtype == np.bool_
    return is_mask and all(isinstance(item, slice) for item in others)


# Functions that compute each element of a result from the elements of the arguments in
# its place. Those that are infinite somewhere (a quotient, a logarithm) are none of
# them: rows that are not selected would spoil gradients.
_OF_ELEMENTS: Final = frozenset(
    "add sub mul neg abs square eq ne lt le gt ge logical_not relu relu6 gelu silu sigmoid tanh hardswish leaky_relu "
    "clamp to float half bfloat16 double bool int long type_as clone contiguous dropout "
    "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __neg__ __abs__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ "
    "__and__ __rand__ __or__ __ror__ __xor__ __rxor__ __invert__".split()
)
# Those of them whose result is the argument itself if there is nothing to do. What code
# writes to one is then in the other, too.
_IDENTICAL: Final = frozenset(
    "to float half bfloat16 double bool int long type_as contiguous dropout".split()
)
# Those whose second argument gives nothing but a dtype.
_CASTS: Final = frozenset({"to", "type_as"})
# Functions of the last dimensions of the first argument.
_OF_LAST_DIMENSIONS: Final = frozenset({"linear", "layer_norm"})
# What is the same for any number of rows.
_PROPERTIES: Final = frozenset({"dtype", "device", "ndim", "dim", "is_floating_point"})
# Python looks for operators in the class: without `__eq__` all elements would compare
# as one object does, unequal.
_OPERATORS: Final = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand or ror "
    "xor rxor lshift rlshift rshift rrshift neg pos abs invert eq ne lt le gt ge bool int float complex index len iter "
    "contains getitem setitem array"
).split()


class MaskedSelection(Selection):
    """What a traced mask selects.

    Args:
        rows: [N, ...] for all elements of the mask, in their order.
        mask: a bool array of N elements.
        axis: of the mask, whose coordinates the rows are; None for other rows.

    Attributes:
        is_used: whether there has been one in this process. Most models make none, and
            to look for one among the arguments of each operator takes time.
    """

    is_used: ClassVar[bool] = False

    def __init__(
        self, rows: torch.Tensor, mask: jax.Array, axis: int | None = None
    ) -> None:
        MaskedSelection.is_used = True
        self._rows, self._mask, self._axis = rows, mask, axis
        self._trace = get_opaque_trace_state()
        self._tensor: torch.Tensor | None = None

    @classmethod
    def of(cls, array: jax.Array, key: Key) -> "MaskedSelection":
        """Traced. `array[key]` of a key that `selects_lazily`."""
        mask = key[0]
        return cls(wrap(array.reshape(mask.size, *array.shape[mask.ndim :])), mask)

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """That of a tensor: models ask by `isinstance` what they have."""
        return torch.Tensor

    def numel(self) -> torch.Tensor:
        """Traced. The number of elements, an integer scalar."""
        others = math.prod(self._rows.shape[1:])
        return wrap(jnp.sum(self._mask, dtype=jnp.int32) * others)

    def __getattr__(self, name: str) -> Any:
        if name in _PROPERTIES:
            return getattr(self._rows, name)
        method = getattr(torch.Tensor, name, None)
        if name in _OF_ELEMENTS and method is not None:
            return functools.partial(_call, method, self)
        return getattr(self.select(), name)

    def select(self) -> torch.Tensor:
        """The same tensor each time, which code may write to.

        Raises jax's error for a mask without values, which names what the code did.
        """
        if self._tensor is not None:
            return self._tensor
        mask = answer_mask(self._mask)
        array = as_jax(self._rows)[mask.reshape(-1)]
        tensor = wrap(array, self._rows.dtype)
        # What belongs to a trace inside of this one is of no use after it.
        if get_opaque_trace_state() == self._trace:
            self._tensor = tensor
        return tensor

    def is_enough_for(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Whether a function's result is known for all rows."""
        name = getattr(func, "__name__", "")
        if name in ("__getitem__", "__setitem__"):
            tensor, key, *values = args
            key = as_mask(key, tensor)
            fits = [value.rows_under(tensor, key) for value in _selections(values)]
            return not _selections(key) and None not in fits
        return _is_by_row(func, args, kwargs)

    def rows_under(self, tensor: torch.Tensor, key: Any) -> torch.Tensor | None:
        """Traced. All rows in the shape of a tensor, to be written to it where the mask
        is true; None for another mask, or rows of another shape.
        """
        if self._tensor is not None or not is_ported(key):
            return None
        if as_jax(key) is not self._mask:
            return None
        shape = (*self._mask.shape, *self._rows.shape[1:])
        return self._rows.reshape(shape) if tensor.shape == shape else None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        return _compute(func, args, kwargs or {})


def _asks_for_coordinates(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether this is `torch.where(mask)` or `mask.nonzero(as_tuple=True)` of a mask
    that is traced.
    """
    name = getattr(func, "__name__", "")
    is_asked = (name == "where" and not kwargs) or (
        name == "nonzero" and kwargs == {"as_tuple": True}
    )
    if not (is_asked and len(args) == 1 and is_ported(args[0]) and args[0].ndim):
        return False
    return _is_traced_mask((as_jax(args[0]),))


def _coordinates(mask: jax.Array) -> tuple[MaskedSelection, ...]:
    """Where a mask is true."""
    selections = []
    for axis in range(mask.ndim):
        numbers = jax.lax.broadcasted_iota(jnp.int32, mask.shape, axis)
        rows = wrap(numbers.reshape(-1), torch.int64)
        selections.append(MaskedSelection(rows, mask, axis))
    return tuple(selections)


def as_mask(key: Any, tensor: Any) -> Any:
    """Traced. The mask of a key that consists of all of its coordinates, if it fits the
    tensor, which may be larger than where the coordinates are from; another key as it
    is.
    """
    if not isinstance(key, tuple) or not key:
        return key
    if not all(isinstance(item, MaskedSelection) for item in key):
        return key
    mask = key[0]._mask
    is_whole = [item._axis for item in key] == list(range(mask.ndim))
    fits = is_whole and tuple(tensor.shape[: mask.ndim]) == mask.shape
    return wrap(mask) if fits and _are_of_one_mask(key) else key


def _selections(value: Any) -> list[MaskedSelection]:
    # By id, with the part, so that no other gets its id.
    met: dict[int, Any] = {}

    def is_met(part: Any) -> bool:
        # A result may lead back to itself.
        is_known = id(part) in met
        met[id(part)] = part
        return is_known

    return [
        leaf
        for leaf in torch_pytree.tree_leaves(value, is_leaf=is_met)
        if isinstance(leaf, MaskedSelection)
    ]


def answer(call: Call) -> Answer | None:
    """Traced. What a function of selections gives, or one that makes some."""
    if not _is_on():
        return None
    func, args, kwargs = call.function, call.args, call.kwargs
    is_of_selections = MaskedSelection.is_used and _selections((args, kwargs))
    if is_of_selections or (_asks_for_coordinates(func, args, kwargs) and _is_meant()):
        return Answer(_compute(func, args, kwargs))
    return None


def _compute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """For all rows if there is a result for each, else of what is selected."""
    if _asks_for_coordinates(func, args, kwargs):
        return _coordinates(as_jax(args[0]))
    if getattr(func, "__name__", "") == "__getitem__":
        args = args[0], as_mask(args[1], args[0])
        if not _selections(args):
            return func(*args)
    if not _is_by_row(func, args, kwargs):
        args, kwargs = torch_pytree.tree_map_only(
            MaskedSelection, MaskedSelection.select, (args, kwargs)
        )
        return func(*args, **kwargs)
    first = _selections((args, kwargs))[0]
    args, kwargs = torch_pytree.tree_map_only(
        MaskedSelection, lambda selection: selection._rows, (args, kwargs)
    )
    rows = func(*args, **kwargs)
    if not isinstance(rows, torch.Tensor):
        return rows  # of a comparison with None
    is_identical = rows.dtype == first.dtype and as_jax(rows) is as_jax(first._rows)
    if func.__name__ in _IDENTICAL and is_identical and not kwargs.get("copy"):
        return first
    return MaskedSelection(rows, first._mask)


def _is_by_row(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether each row of a function's result follows from the same row of the
    selections alone.
    """
    name = getattr(func, "__name__", "")
    is_in_place = name.endswith("_") and not name.endswith("__")
    selections = _selections((args, kwargs))
    is_in_place |= "out" in kwargs or bool(kwargs.get("inplace"))
    if is_in_place or not _are_of_one_mask(selections):
        return False
    rank = max(selection._rows.ndim for selection in selections)
    is_first = bool(args) and args[0] is selections[0]
    if name in _OF_LAST_DIMENSIONS:
        is_only = is_first and len(selections) == 1
        return is_only and rank > _dimensions_of(name, args, kwargs)
    if name not in _OF_ELEMENTS or (name in _CASTS and not is_first):
        return False
    others = [
        leaf
        for leaf in torch_pytree.tree_leaves((args, kwargs))
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, MaskedSelection)
    ]
    return all(tensor.ndim < rank for tensor in others) and all(
        selection._rows.ndim == rank for selection in selections
    )


def _are_of_one_mask(selections: Sequence[MaskedSelection]) -> bool:
    """Whether nothing has been selected yet, which code may have written to, and
    nothing is under another mask.
    """
    return all(
        selection._mask is selections[0]._mask and selection._tensor is None
        for selection in selections
    )


def _dimensions_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many of the last dimensions a function computes with."""
    if name == "linear":
        return 1
    shape = args[1] if len(args) > 1 else kwargs["normalized_shape"]
    return len(shape)


def _call(method: Callable[..., Any], selection: Any, *args: Any, **kwargs: Any) -> Any:
    return _compute(method, (selection, *args), kwargs)


def _operator(name: str) -> Callable[..., Any]:
    """An operator of selections."""

    def call(selection: MaskedSelection, *args: Any) -> Any:
        if name in _OF_ELEMENTS:
            return _call(getattr(torch.Tensor, name), selection, *args)
        return getattr(selection.select(), name)(*args)

    return call


for _name in _OPERATORS:
    setattr(MaskedSelection, f"__{_name}__", _operator(f"__{_name}__"))
# Comparing elements takes the hash from a class.
MaskedSelection.__hash__ = object.__hash__  # type: ignore[method-assign]


def without_selections(result: Any) -> Any:
    """Traced. A result with tensors in place of selections by masks; raises jax's error
    where a mask has no values.
    """
    if not (MaskedSelection.is_used and _selections(result)):
        # As it is: a result may have one list or dictionary in two places.
        return result
    return torch_pytree.tree_map_only(MaskedSelection, MaskedSelection.select, result)


LOWERINGS = ()
METHODS = ()
