"""Where the parts of a quantised weight go: the sharding of each, derived from that of
the weight.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from jax.sharding import NamedSharding, PartitionSpec

from tpuport.base.plurals import list_some
from tpuport.errors import PortError
from tpuport.sharding.specs import axis_names, count_parts, pad

# The parts that have a number for each group, or for some neighbouring ones.
_OF_GROUPS = ("scale", "zero_point", "outer_scale", "minimum", "outer_minimum")
# How many weights an error names.
_NAMES_SHOWN = 5


@runtime_checkable
class Quantized(Protocol):
    """A quantised weight, on disk, in memory or without values; see
    `QuantizedWeight`.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def columns(self) -> int: ...

    @property
    def segments(self) -> int: ...

    @property
    def transposed(self) -> bool: ...

    @property
    def parts(self) -> Mapping[str, Any]: ...


def part_shardings(
    weight: Quantized, sharding: NamedSharding
) -> dict[str, NamedSharding]:
    """The sharding of each part of a weight that has this sharding.

    Raises:
        PortError: an axis of the mesh would cut a group of inputs that share a scale.
    """
    mesh: Any = sharding.mesh
    parts, columns = weight.parts, weight.columns
    *leading_sizes, groups, inputs, outputs = parts["values"].shape
    *leading, output_axes, input_axes = pad(sharding.spec, len(leading_sizes) + 2)
    if weight.transposed:
        output_axes, input_axes = input_axes, output_axes
    input_parts = count_parts(mesh, axis_names(input_axes))
    # With a single group, what the axis cuts is the group, which all its devices then
    # share.
    group_axes, within_axes = (None, input_axes) if groups == 1 else (input_axes, None)
    is_filled = groups * inputs != columns
    is_cut = groups % input_parts != 0 or (
        is_filled and weight.segments % input_parts != 0
    )
    if groups > 1 and input_parts > 1 and is_cut:
        raise PortError(
            f"{input_parts} devices would divide {columns} inputs, of which each {inputs} share a scale, within a group"
        )
    specs = {
        "values": PartitionSpec(*leading, group_axes, within_axes, output_axes),
        "order": PartitionSpec(),
    }
    for name in _OF_GROUPS:
        if name in parts:
            count, blocks = parts[name].shape[-2:]
            if count > groups:
                # The last are not used, so that a division of these would not be that
                # of the groups.
                specs[name] = PartitionSpec(
                    *leading, None, output_axes if blocks == outputs else None
                )
                continue
            if count > 1 and count % input_parts:
                raise PortError(
                    f"{input_parts} devices would divide {columns} inputs, of which each {columns // count} share a "
                    "factor, within these"
                )
            # A few blocks of outputs need not be divided, nor what all groups share.
            block_axes = output_axes if blocks == outputs else None
            specs[name] = PartitionSpec(
                *leading, None if count == 1 else group_axes, block_axes
            )
    return {name: NamedSharding(mesh, specs[name]) for name in parts}


def are_factors_cut(weight: Quantized, sharding: NamedSharding) -> bool:
    """Whether devices would have to divide groups that share a factor on their scales
    between them.
    """
    if "outer_scale" not in weight.parts:
        return False
    *_, output_axes, input_axes = pad(sharding.spec, len(weight.shape))
    mesh: Any = sharding.mesh
    devices = count_parts(
        mesh, axis_names(output_axes if weight.transposed else input_axes)
    )
    shared = weight.parts["outer_scale"].shape[-2]
    return shared > 1 and shared % devices != 0


def plan_parts(
    weights: Mapping[str, Quantized], shardings: Mapping[str, NamedSharding]
) -> dict[str, dict[str, NamedSharding]]:
    """The shardings of the parts of every quantised weight, by its name.

    Args:
        shardings: of each weight as a whole.

    Raises:
        PortError: axes cut groups; every weight's problem is in it.
    """
    plans: dict[str, dict[str, NamedSharding]] = {}
    problems: list[str] = []
    for name, weight in weights.items():
        try:
            plans[name] = part_shardings(weight, shardings[name])
        except PortError as error:
            problems.append(f"{name}: {error.what}")
    if problems:
        raise PortError(
            list_some(
                "groups of quantised weights do not fit the mesh:",
                problems,
                _NAMES_SHOWN,
            ),
            where="quantize, mesh",
            fix="take fewer devices on this axis, or a sharding rule that divides the outputs of these weights or "
            "leaves them whole; or, of weights that are quantised here, smaller groups or int8, which has none",
        )
    return plans
