"""Which axes of a mesh split each dimension of an array in a shard_map's body: of
weights, which are only moved there.

An array of a shard_map has the axes of its spec. They are followed through what moves
it, transposes it or scales it, and forgotten anywhere else.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import jax
from jax.extend.core import Jaxpr

from tpuport.base.mappings import only
from tpuport.compat.jaxprs import Equation, walk_equations

# By dimension.
Split = tuple[frozenset[str], ...]
# Of an array of which nothing is known.
UNSPLIT: Final[Split] = ()

_ELEMENTWISE: Final = {
    "add", "convert_element_type", "copy", "copy_p", "div", "mul", "neg", "optimization_barrier", "pcast", "pvary",
    "reduce_precision", "select_n", "sharding_constraint", "stop_gradient", "sub",
}  # fmt: skip
_SENDING: Final = {"all_to_all", "ragged_all_to_all"}


def spec_split(spec: Any, ndim: int) -> Split:
    """The split of an array with `ndim` dimensions that a shard_map divides by a
    PartitionSpec.
    """
    entries = [*spec, *[None] * (ndim - len(spec))]
    return tuple(frozenset(entry_axes(entry)) for entry in entries)


def entry_axes(entry: Any) -> tuple[str, ...]:
    """The axes that an entry of a PartitionSpec, or a collective's parameter, names."""
    if isinstance(entry, tuple | list):
        # An axis of `jax.vmap` has a number in place of a name.
        return tuple(name for name in entry if isinstance(name, str))
    return entry_axes([entry])


def result_splits(equation: Equation, operands: Sequence[Split]) -> list[Split]:
    """The splits of the results of an equation that runs no other jaxpr."""
    # Most arrays are of no shard_map.
    if not any(itertools.chain.from_iterable(operands)):
        return [UNSPLIT] * len(equation.outvars)
    shape = equation.invars[0].aval.shape
    result = equation.outvars[0].aval.shape
    match equation.primitive.name:
        case "transpose":
            return [tuple(operands[0][dim] for dim in equation.params["permutation"])]
        case "slice" | "dynamic_slice":
            # Each device has a slice of its part.
            return [operands[0]]
        case "broadcast_in_dim":
            axes = dict(
                zip(equation.params["broadcast_dimensions"], operands[0], strict=True)
            )
            return [tuple(axes.get(dim, frozenset()) for dim in range(len(result)))]
        case "reshape" | "squeeze" | "expand_dims":
            return [_reshaped(operands[0], shape, result)]
        case name if name in _ELEMENTWISE:
            return [
                _joined(equation, operands, variable.aval.shape)
                for variable in equation.outvars
            ]
    return [UNSPLIT] * len(equation.outvars)


def _reshaped(split: Split, shape: Sequence[int], result: Sequence[int]) -> Split:
    """A dimension stays itself if it is as long and as many elements come before it."""
    axes_of = {
        (math.prod(shape[:dim]), shape[dim]): axes
        for dim, axes in enumerate(split)
        if shape[dim] > 1
    }
    return tuple(
        axes_of.get((math.prod(result[:dim]), length), frozenset())
        for dim, length in enumerate(result)
    )


def _joined(
    equation: Equation, operands: Sequence[Split], shape: Sequence[int]
) -> Split:
    """The axes of all operands of an elementwise equation that have the result's
    shape.
    """
    splits = [
        split
        for split, variable in zip(operands, equation.invars, strict=True)
        if split and variable.aval.shape == shape  # a scale may be a number
    ]
    return tuple(frozenset().union(*axes) for axes in zip(*splits, strict=True))


def sending_axes(jaxpr: Jaxpr) -> frozenset[str]:
    """The axes along which rows are sent to the device that has their group: those of
    all-to-alls.
    """
    return frozenset(
        axis
        for visit in walk_equations(jaxpr)
        if visit.equation.primitive.name in _SENDING
        for axis in entry_axes(visit.equation.params["axis_name"])
    )


def dividing_axes(params: dict[str, Any]) -> dict[str, int]:
    """Sizes of the axes that a shard_map divides its work over."""
    specs = (*params["in_specs"], *params["out_specs"])
    # An entry of a spec is an axis, a tuple of axes, or None.
    named = set(jax.tree.leaves(list(map(tuple, specs))))
    # In a shard_map inside of another, only the axes that the inner one adds: they are
    # `manual_axes` in jax 0.10.0, `newly_manual_axes` later.
    added = next(axes for name, axes in params.items() if name.endswith("manual_axes"))
    dividing = named & added
    return only(params["mesh"].shape, dividing)
