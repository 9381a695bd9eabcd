"""Where the parts of quantised weights go: the sharding of each, derived from that of the weight."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jax.sharding import NamedSharding, PartitionSpec

from tpuport.checkpoint.quantized_tensors import QuantizedTensor
from tpuport.errors import PortError
from tpuport.plurals import list_some
from tpuport.quantization import QuantizedWeight
from tpuport.sharding.specs import axis_names, count_parts, pad

# The parts that have a number for each group, or for some neighbouring ones.
_OF_GROUPS = ("scale", "zero_point", "outer_scale", "minimum", "outer_minimum")
# How many weights an error names.
_NAMES_SHOWN = 5


def part_shardings(
    weight: QuantizedTensor | QuantizedWeight, sharding: NamedSharding
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
    # With a single group, what the axis cuts is the group, which all its devices then share.
    group_axes, within_axes = (None, input_axes) if groups == 1 else (input_axes, None)
    is_cut = groups % input_parts != 0 or groups * inputs != columns
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
            if count > 1 and count % input_parts:
                raise PortError(
                    f"{input_parts} devices would divide {columns} inputs, of which each {columns // count} share a "
                    "factor, within these"
                )
            # A few blocks of outputs need not be divided, nor what all groups share.
            block_axes = output_axes if blocks == outputs else None
            specs[name] = PartitionSpec(*leading, None if count == 1 else group_axes, block_axes)
    return {name: NamedSharding(mesh, specs[name]) for name in parts}


def are_factors_cut(weight: QuantizedTensor | QuantizedWeight, sharding: NamedSharding) -> bool:
    """Whether devices would have to divide groups that share a factor on their scales between them."""
    if "outer_scale" not in weight.parts:
        return False
    *_, output_axes, input_axes = pad(sharding.spec, len(weight.shape))
    mesh: Any = sharding.mesh
    devices = count_parts(mesh, axis_names(output_axes if weight.transposed else input_axes))
    shared = weight.parts["outer_scale"].shape[-2]
    return shared > 1 and shared % devices != 0


def plan_parts(
    weights: Mapping[str, QuantizedTensor | QuantizedWeight], shardings: Mapping[str, NamedSharding]
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
            list_some("groups of quantised weights do not fit the mesh:", problems, _NAMES_SHOWN),
            where="quantize, mesh",
            fix="take fewer devices on this axis, or a sharding rule that divides the outputs of these weights or "
            "leaves them whole; or, of weights that are quantised here, smaller groups or int8, which has none",
        )
    return plans


def make_weight(
    source: QuantizedTensor, parts: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> QuantizedWeight:
    """The weight of `dtype` that `source` describes, with these tensors as its parts."""
    return QuantizedWeight(
        **parts,
        levels=source.levels,
        output_block=source.output_block,
        columns=source.columns,
        dtype=dtype,
        scheme=source.scheme,
        transposed=source.transposed,
        rounds_activations=source.rounds_activations,
    )


def empty_weight(source: QuantizedTensor, dtype: torch.dtype) -> QuantizedWeight:
    """The same with parts that have shapes only, until arrays are put there."""
    parts = {
        name: torch.empty(tensor.shape, dtype=torch.uint8, device="meta")
        for name, tensor in source.parts.items()
    }
    weight = make_weight(source, parts, dtype)
    weight.part_dtypes = {name: tensor.dtype for name, tensor in source.parts.items()}
    return weight


def multiply_empty(weight: QuantizedWeight) -> None:
    """Give a weight without values the parts that it has without shared factors, as `multiply_out` has them."""
    weight.outer_scale = weight.outer_minimum = None
    for name in ("scale", "minimum"):
        weight.part_dtypes[name] = np.dtype(np.float32)
