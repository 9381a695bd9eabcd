"""Which axes of a mesh split each dimension of an array in a shard_map's body: of weights, which are only moved there.

An array of a shard_map has the axes of its spec; they are followed through what moves it, turns it or scales it, and
forgotten anywhere else.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from jax.extend.core import ClosedJaxpr, Jaxpr

# By dimension; () for an array of which nothing is known.
Split = tuple[frozenset[str], ...]

_SAME_SHAPE: Final = {
    "add", "convert_element_type", "copy", "copy_p", "div", "mul", "neg", "optimization_barrier", "pcast", "pvary",
    "reduce_precision", "select_n", "sharding_constraint", "stop_gradient", "sub",
}  # fmt: skip
_SENDING: Final = {"all_to_all", "ragged_all_to_all"}


def of_spec(spec: Any, ndim: int) -> Split:
    """Of an array with `ndim` dimensions that a shard_map splits by a PartitionSpec."""
    entries = [*spec, *[None] * (ndim - len(spec))]
    return tuple(frozenset(axes_of(entry)) for entry in entries)


def axes_of(entry: Any) -> tuple[str, ...]:
    """The axes that an entry of a PartitionSpec, or a collective's parameter, names."""
    named = entry if isinstance(entry, tuple | list) else (entry,)
    return tuple(one for one in named if isinstance(one, str))


def after(equation: Any, given: Sequence[Split]) -> list[Split]:
    """Of an equation's results, where it has no function in it."""
    name, shapes = equation.primitive.name, [one.aval.shape for one in equation.invars]
    if not any(map(any, given)):
        return [()] * len(equation.outvars)
    if name == "transpose":
        return [tuple(given[0][place] for place in equation.params["permutation"])]
    if name in ("reshape", "squeeze", "expand_dims", "slice", "dynamic_slice", "broadcast_in_dim"):
        return [_moved(equation, given[0], shapes[0])]
    if name not in _SAME_SHAPE:
        return [()] * len(equation.outvars)
    return [
        _union([one for one, shape in zip(given, shapes, strict=True) if one and shape == made.aval.shape])
        for made in equation.outvars
    ]


def _moved(equation: Any, split: Split, shape: Sequence[int]) -> Split:
    """Of an array that is cut or gets other dimensions: a dimension stays where as much is before it."""
    made = equation.outvars[0].aval.shape
    if equation.primitive.name == "broadcast_in_dim":
        places = dict(zip(equation.params["broadcast_dimensions"], split, strict=True))
        return tuple(places.get(place, frozenset()) for place in range(len(made)))
    if equation.primitive.name in ("slice", "dynamic_slice"):
        return split
    kept = {
        (math.prod(shape[:place]), shape[place]): axes for place, axes in enumerate(split) if shape[place] > 1
    }
    return tuple(kept.get((math.prod(made[:place]), size), frozenset()) for place, size in enumerate(made))


def _union(splits: Sequence[Split]) -> Split:
    return tuple(frozenset().union(*parts) for parts in zip(*splits, strict=True))


def sent_over(jaxpr: Any) -> frozenset[str]:
    """The axes along which rows are sent to where their group is: those of all-to-alls."""
    found: set[str] = set()
    for equation in (jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr).eqns:
        if equation.primitive.name in _SENDING:
            found.update(axes_of(equation.params["axis_name"]))
        for inner in inside(equation.params):
            found |= sent_over(inner)
    return frozenset(found)


def inside(params: dict[str, Any]) -> Iterator[Any]:
    """The functions that an equation runs."""
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr | Jaxpr):
                yield one
