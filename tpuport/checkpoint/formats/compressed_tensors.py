"""Weights as the compressed-tensors library saves them: int8, FP8, packed integers of
two to eight bits, and FP4.

A weight is `(weight - weight_zero_point) * weight_scale`, with a scale for the weight,
for each output, for each group of inputs of an output, or for each block. Activations
are computed in the model's dtype: scales of theirs are left out, as they are when
transformers decompresses such a checkpoint.

A number of FP4 has one bit of mantissa, and two share a byte, the first in its lower
bits. Its scales are powers of two (MXFP4), or FP8 numbers that are divided by a
`weight_global_scale` (NVFP4): `weight * weight_scale / global scale`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from tpuport.checkpoint.formats.fine_grained_fp8 import block_sizes
from tpuport.checkpoint.formats.packed_tensors import (
    group_order,
    group_size,
    in_memory,
    integer_dtype,
    permute,
    read_whole,
    reinterpret,
    reshape,
    unpack,
    unpack_words,
)
from tpuport.checkpoint.formats.weight_tensors import (
    Adapted,
    BadWeightError,
    Tensors,
    WeightTensors,
    adapt_each,
    collect,
)
from tpuport.checkpoint.lazy_tensors import LazyTensor, StoredTensor, transpose
from tpuport.checkpoint.quantized_tensors import QuantizedTensor, group_columns
from tpuport.errors import PortError

_ENDINGS = (
    "weight_packed", "weight_scale", "weight_global_scale", "weight_zero_point", "weight_shape", "weight_g_idx",
    "weight", "input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point",
)  # fmt: skip
_INT_BITS = range(1, 9)
_FORMATS = frozenset({
    "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "int-quantized", "float-quantized",
    "naive-quantized", "dense", "mixed-precision",
})  # fmt: skip


def adapt(config: Mapping[str, Any], tensors: Tensors, dtype: np.dtype) -> Adapted:
    """The weights of a checkpoint whose `quant_method` is "compressed-tensors".

    Raises:
        PortError: a format, or a cache in few bits, that is not supported.
    """
    groups = config.get("config_groups") or {}
    if not isinstance(groups, Mapping) or not all(
        isinstance(group, Mapping) for group in groups.values()
    ):
        raise PortError(
            f"config_groups is {groups!r:.60}, and not an object of objects"
        )
    formats = {
        config.get("format"),
        *(group.get("format") for group in groups.values()),
    } - {None}
    unknown = sorted(formats - _FORMATS)
    if unknown:
        raise PortError(
            f"the format {', '.join(unknown)} of compressed-tensors is not supported",
            fix=f"supported are {', '.join(sorted(_FORMATS))}; decompress it with transformers, and save it again",
        )
    settings: list[Mapping[str, Any]] = [
        group["weights"] for group in groups.values() if group.get("weights")
    ]
    weights, others = collect(tensors, _ENDINGS, "weight_scale")
    return adapt_each(
        weights, others, lambda weight: _adapt_weight(weight, settings, dtype)
    )


def shared_sizes(setting: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Inputs and outputs that share a scale, None for all, by what a config says of
    weights.

    Raises:
        BadWeightError: the config is not one of the library.
    """
    match setting.get("strategy"):
        case "tensor":
            return None, None
        case "channel":
            return None, 1
        case "group" | "tensor_group":
            return group_size(setting.get("group_size")), 1
        case "block":
            rows, columns = block_sizes(setting["block_structure"])
            return columns, rows
        # As the library infers it.
        case None if setting.get("group_size") is not None:
            return group_size(setting["group_size"]), 1
        case None:
            return None, None
        case strategy:
            raise BadWeightError(
                f"the strategy {strategy!r:.60} of compressed-tensors is not supported"
            )


def _adapt_weight(
    weight: WeightTensors, settings: list[Mapping[str, Any]], dtype: np.dtype
) -> LazyTensor:
    if "weight_packed" in weight and weight.get("weight_packed").dtype == np.uint8:
        return _adapt_four_bit_floats(weight, settings, dtype)
    values, fitting = _values(weight, settings)
    outputs, inputs = values.shape
    scale = _matrix(weight.get("weight_scale", kinds="f"), outputs)
    size, block, fitting = _group_sizes(scale, outputs, inputs, fitting)
    groups = scale.shape[1]
    order = None
    if "weight_g_idx" in weight:
        order = group_order(weight.get("weight_g_idx", (inputs,), "i"), size, groups)
    zero_point = None
    # Symmetric ones may have zero points that are all zero.
    if "weight_zero_point" in weight or not any(
        setting.get("symmetric", True) for setting in fitting
    ):
        zero_point = transpose(
            _zero_point(weight, values.dtype, scale.shape, settings), 0, 1
        )
    return QuantizedTensor(
        values.shape,
        dtype,
        group_columns(values if order is None else permute(values, 1, order), size),
        transpose(scale, 0, 1),
        zero_point,
        None if order is None else in_memory(order),
        output_block=block,
        scheme=f"compressed-tensors {values.dtype}",
    )


def _adapt_four_bit_floats(
    weight: WeightTensors, settings: list[Mapping[str, Any]], dtype: np.dtype
) -> LazyTensor:
    packed = weight.get("weight_packed", (None, None))
    if "weight_zero_point" in weight:
        raise BadWeightError("weight_zero_point is not supported for numbers of FP4")
    outputs, inputs = packed.shape[0], 2 * packed.shape[1]
    scale = weight.get("weight_scale", (outputs, None), "fu")
    size, _, _ = _group_sizes(
        scale, outputs, inputs, _select(settings, "float", [4], packed.dtype)
    )
    scales: LazyTensor = scale
    outer_scale = None
    if scale.dtype in (np.uint8, jnp.float8_e8m0fnu):
        scales = reinterpret(scale, jnp.float8_e8m0fnu)
    elif scale.dtype != jnp.float8_e4m3fn:
        raise BadWeightError(
            f"weight_scale is {scale.dtype}, and neither FP8 nor powers of two in a byte"
        )
    else:
        divisor = read_whole(weight.get("weight_global_scale", (1,), "f")).astype(
            np.float32
        )
        if not divisor.all():
            raise BadWeightError("weight_global_scale is zero")
        # For each output, because those of other weights may be put beside them.
        outer_scale = in_memory(np.broadcast_to(1 / divisor, (1, outputs)))
    values = reinterpret(unpack(packed, 1, 4, np.dtype(np.uint8)), jnp.float4_e2m1fn)
    return QuantizedTensor(
        values.shape,
        dtype,
        group_columns(values, size),
        transpose(scales, 0, 1),
        outer_scale=outer_scale,
        scheme=f"compressed-tensors {values.dtype}",
    )


def _values(
    weight: WeightTensors, settings: list[Mapping[str, Any]]
) -> tuple[LazyTensor, list[Mapping[str, Any]]]:
    """The values, [O, K], and which settings they fit."""
    if "weight_packed" not in weight:
        values = weight.get("weight", (None, None), "fi")
        if values.dtype == np.int8:
            return values, _select(settings, "int", _INT_BITS, values.dtype)
        if values.dtype == jnp.float8_e4m3fn:
            return values, _select(settings, "float", [8], values.dtype)
        raise BadWeightError(
            f"weight is {values.dtype}, and neither int8 nor float8_e4m3fn"
        )
    packed = weight.get("weight_packed", (None, None), "i")
    if packed.dtype != np.int32:
        raise BadWeightError(f"weight_packed is {packed.dtype}, and not int32")
    shape = read_whole(weight.get("weight_shape", (2,), "i")).tolist()
    if shape[0] != packed.shape[0]:
        raise BadWeightError(
            f"weight_shape is {shape}, and weight_packed has {packed.shape[0]} rows"
        )
    bits = _bits(packed.shape[1], shape[1], settings)
    values = unpack_words(
        packed, 1, bits, integer_dtype(bits, signed=True), shape[1], -(1 << (bits - 1))
    )
    return values, _select(settings, "int", [bits], packed.dtype)


def _select(
    settings: list[Mapping[str, Any]], kind: str, bits: Sequence[int], dtype: np.dtype
) -> list[Mapping[str, Any]]:
    """The settings of weights of this type and one of these numbers of bits;
    BadWeightError if there are none.
    """
    chosen = [
        setting for setting in settings
        if setting.get("type", "int") == kind and _valid_bits(setting) in bits
    ]  # fmt: skip
    if chosen:
        return chosen
    described = ", ".join(
        f"{setting.get('type', 'int')} {setting.get('num_bits')!r:.20}"
        for setting in settings
    )
    raise BadWeightError(
        f"its values are {dtype}, and config_groups have {described or 'no weights'}"
    )


def _valid_bits(setting: Mapping[str, Any]) -> int | None:
    bits = setting.get("num_bits", 8)
    return (
        bits
        if isinstance(bits, int) and not isinstance(bits, bool) and bits in _INT_BITS
        else None
    )


def _bits(words: int, inputs: int, settings: list[Mapping[str, Any]]) -> int:
    """Bits of a packed value: of those in the config, what fits the length of its
    rows.
    """
    candidates = set(filter(None, map(_valid_bits, settings)))
    fitting = [
        bits
        for bits in candidates
        if words in (-(-inputs // (32 // bits)), -(-inputs * bits // 32))
    ]
    if len(fitting) != 1:
        named = [setting.get("num_bits") for setting in settings]
        raise BadWeightError(
            f"{words} integers of 32 bits for {inputs} inputs do not fit num_bits {named!r:.60}"
        )
    return fitting[0]


def _matrix(scale: StoredTensor, outputs: int) -> LazyTensor:
    """Scales as [outputs or blocks of them, groups]."""
    match scale.shape:
        case (rows, columns) if rows and columns:
            return scale
        case () | (1,):
            return reshape(scale, 1, 1)
        case (rows,) if rows == outputs:
            return reshape(scale, rows, 1)
    raise BadWeightError(
        f"weight_scale has shape {list(scale.shape)}, for {outputs} outputs"
    )


def _group_sizes(
    scale: LazyTensor, outputs: int, inputs: int, settings: list[Mapping[str, Any]]
) -> tuple[int, int, list[Mapping[str, Any]]]:
    """Inputs, and outputs, that share a scale of these, [blocks, groups]; and the
    settings that say so.
    """
    fitting: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    needed: list[str] = []
    for setting in settings:
        columns, rows = shared_sizes(setting)
        size, block = min(columns or inputs, inputs), rows or outputs
        shape = -(-outputs // block), -(-inputs // size)
        # Only blocks may be cut off.
        is_whole = rows != 1 or inputs % size == 0
        needed.append(str(list(shape)) if is_whole else f"whole groups of {size}")
        if is_whole and shape == scale.shape:
            fitting.setdefault((size, block), []).append(setting)
    if len(fitting) != 1:
        raise BadWeightError(
            f"weight_scale has shape {list(scale.shape)}, for {outputs} outputs and {inputs} inputs; the config needs "
            f"{' or '.join(needed)}"
        )
    [((size, block), chosen)] = fitting.items()
    return size, block, chosen


def _zero_point(
    weight: WeightTensors,
    dtype: np.dtype,
    scale_shape: tuple[int, ...],
    settings: list[Mapping[str, Any]],
) -> LazyTensor:
    """Zero points as [outputs, groups]: of the type of the values, packed along outputs
    if the values are.
    """
    outputs, groups = scale_shape
    stored = weight.get("weight_zero_point", kinds="fi")
    if stored.dtype != np.int32:
        if math.prod(stored.shape) != outputs * groups:
            raise BadWeightError(
                f"weight_zero_point has shape {list(stored.shape)}, and weight_scale {list(scale_shape)}"
            )
        return reshape(stored, outputs, groups)
    if len(stored.shape) != 2 or stored.shape[1] != groups:
        raise BadWeightError(
            f"weight_zero_point has shape {list(stored.shape)}, for {groups} groups"
        )
    bits = _bits(stored.shape[0], outputs, settings)
    return unpack_words(stored, 0, bits, dtype, outputs, -(1 << (bits - 1)))
