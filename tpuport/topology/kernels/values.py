"""Numbers that are known before a program runs, for all steps of a kernel's grid at once: indices and conditions.

A value is an array [S, ...], with S the steps of the grid or 1 where all have the same. Integers and truth values are
followed; anything else is unknown, and only what it can vary with is.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal

from tpuport.topology.kernels.splits import Split

# More numbers than these are not followed: they are data, such as a mask, and no index.
_MOST: Final = 1 << 22


class Value(NamedTuple):
    """What is known of a value.

    Attributes:
        known: [S or 1, ...], for a reference what is stored there; None where it is unknown.
        axes: of the grid, those that it can vary with.
        split: in a shard_map, the mesh's axes that split each of its dimensions (see `splits`).
    """

    known: np.ndarray | None = None
    axes: frozenset[int] = frozenset()
    split: Split = ()


UNKNOWN: Final = Value()


def constant(given: Any) -> Value:
    """Of an array or a number that the program has in it; unknown where it is neither small nor an integer."""
    kind = getattr(given, "dtype", None)
    if isinstance(given, bool | int):
        return Value(np.asarray(given)[None])
    if not _followed(kind) or math.prod(given.shape) > _MOST:
        return UNKNOWN
    return Value(np.asarray(given)[None])


def read(variable: Any, values: dict[Any, Value]) -> Value:
    """Of one of an equation's operands."""
    if isinstance(variable, Literal):
        kind: Any = getattr(variable.aval, "dtype", None)
        return constant(np.asarray(variable.val, kind)) if _followed(kind) else UNKNOWN
    return values.get(variable, UNKNOWN)


def evaluated(equation: Any, given: Sequence[Value]) -> list[Value]:
    """What is known of the results of an equation that has no function in it."""
    name = equation.primitive.name
    rule = _RULES.get(name)
    axes = frozenset[int]().union(*(one.axes for one in given))
    unknown = [Value(None, axes)] * len(equation.outvars)
    if name == "get":
        return [_stored(equation, given, axes)]
    arrays = [one.known for one in given if one.known is not None]
    if rule is None or len(arrays) < len(given) or len(equation.outvars) != 1:
        return unknown
    aval = equation.outvars[0].aval
    steps = max((len(one) for one in arrays), default=1)
    if not _followed(aval.dtype) or math.prod(aval.shape) * steps > _MOST:
        return unknown
    with np.errstate(all="ignore"):
        made = np.asarray(rule(equation.params, *_aligned(arrays)))
    return [Value(made.astype(aval.dtype).reshape(len(made), *aval.shape), axes)]


def _followed(kind: Any) -> bool:
    """Whether a dtype is one of integers or truth values; those of keys and semaphores are none of numpy's."""
    return isinstance(kind, np.dtype) and kind.kind in "biu"


def _aligned(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """With as many dimensions each: a number goes with an array of any shape."""
    most = max((one.ndim for one in arrays), default=1)
    return [one.reshape(len(one), *(1,) * (most - one.ndim), *one.shape[1:]) for one in arrays]


def _stored(equation: Any, given: Sequence[Value], axes: frozenset[int]) -> Value:
    """A number that is read from a reference; unknown where a part of an array is, or what is stored is unknown."""
    indexers = jax.tree.unflatten(equation.params["tree"], given[1:])
    content = given[0].known
    if content is None or len(indexers) != 1 or equation.outvars[0].aval.shape:
        return Value(None, axes)
    found = [at for one in indexers[0].indices if (at := _index(one)) is not None]
    if len(found) != len(indexers[0].indices) or len(found) != content.ndim - 1:
        return Value(None, axes)
    # What is out of bounds is read only in a branch that is not taken.
    places = (np.clip(one, 0, size - 1) for one, size in zip(found, content.shape[1:], strict=True))
    return Value(np.atleast_1d(content[0][tuple(places)]), axes)


def _index(given: Any) -> np.ndarray | None:
    if isinstance(given, Value):
        return given.known
    return np.asarray(given)[None] if isinstance(given, int | np.integer) else None


def _divided(_: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Towards zero, as XLA divides integers."""
    by = np.where(b == 0, 1, b)
    whole = np.abs(a) // np.abs(by)
    return np.where((a < 0) != (by < 0), -whole, whole)


def _remainder(_: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.fmod(a, np.where(b == 0, 1, b))


def _broadcast(params: Any, given: np.ndarray) -> np.ndarray:
    shape, at = params["shape"], params["broadcast_dimensions"]
    dims = [1] * len(shape)
    for place, axis in enumerate(at):
        dims[axis] = given.shape[1 + place]
    return np.broadcast_to(given.reshape(len(given), *dims), (len(given), *shape))


def _selected(_: Any, which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    return np.choose(which.astype(np.int32), np.broadcast_arrays(which, *cases)[1:])


def _plain(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda _, *given: function(*given)


_SAME: Final = {"convert_element_type", "copy", "reshape", "squeeze", "expand_dims", "stop_gradient"}
_ELEMENTWISE: Final[dict[str, Callable[..., Any]]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "max": np.maximum,
    "min": np.minimum, "and": operator.and_, "or": operator.or_, "xor": operator.xor, "not": operator.invert,
    "abs": np.abs, "sign": np.sign, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "shift_left": operator.lshift,
    "shift_right_arithmetic": operator.rshift,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
}  # fmt: skip
_RULES: Final[dict[str, Callable[..., Any]]] = {
    **{name: _plain(lambda x: x) for name in _SAME},
    **{name: _plain(function) for name, function in _ELEMENTWISE.items()},
    "div": _divided, "rem": _remainder, "broadcast_in_dim": _broadcast, "select_n": _selected,
    "integer_pow": lambda params, x: x ** params["y"] if params["y"] >= 0 else x * 0,
}  # fmt: skip
