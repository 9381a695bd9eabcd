"""GPTQ's and AWQ's checkpoints: groups of integers of a few bits, with zero points,
packed in 32-bit integers.

A weight is `(values - zero points) * scales`, and stored as its transpose [K, O]. GPTQ
packs values along inputs and zero points along outputs, and its first version stores
zero points minus one; its inputs may be in groups by importance (`desc_act`). AWQ packs
both along outputs, eight in an order of its own.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tpuport.checkpoint.formats.packed_tensors import (
    count_groups,
    group_order,
    group_size,
    in_memory,
    integer_dtype,
    permute,
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
from tpuport.checkpoint.lazy_tensors import LazyTensor, transpose
from tpuport.checkpoint.quantized_tensors import QuantizedTensor, group_columns
from tpuport.errors import PortError

_ENDINGS = ("qweight", "qzeros", "scales", "g_idx")
_GPTQ_BITS = (2, 3, 4, 8)
_UNQUANTIZED = "load an unquantised checkpoint, with quantize='int4' for example"
# Zero points of the first version are one too low.
ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
# What transformers takes where a config has no group size.
DEFAULT_GROUP = 128
# Where one is added, the largest zero point needs a bit more: of 8 bits it becomes 128.
_WIDER = {4: np.int8, 8: np.int16}
# The lowest bit of each of eight outputs in an integer.
_AWQ_SHIFTS = (0, 16, 4, 20, 8, 24, 12, 28)


def adapt_gptq(config: Mapping[str, Any], tensors: Tensors, dtype: np.dtype) -> Adapted:
    """The weights of a checkpoint whose `quant_method` is "gptq".

    Raises:
        PortError: a number of bits or a version that GPTQ does not have, or tensors
            that do not fit.
    """
    bits = config.get("bits")
    if bits not in _GPTQ_BITS or isinstance(bits, bool):
        raise PortError(
            f"bits is {bits!r:.60}, and not one of {', '.join(map(str, _GPTQ_BITS))}",
            fix=_UNQUANTIZED,
        )
    version = config.get("checkpoint_format", "gptq")
    if version not in ZERO_OFFSETS:
        raise PortError(
            f"checkpoint_format is {version!r:.60}, and not 'gptq' or 'gptq_v2'",
            fix=_UNQUANTIZED,
        )
    weights, others = collect(tensors, _ENDINGS, "qweight")
    size = group_size(config.get("group_size", DEFAULT_GROUP))

    def adapt_weight(weight: WeightTensors) -> LazyTensor:
        return _adapt_gptq(weight, config, bits, size, ZERO_OFFSETS[version], dtype)

    return adapt_each(weights, others, adapt_weight)


def _adapt_gptq(
    weight: WeightTensors,
    config: Mapping[str, Any],
    bits: int,
    size: int | None,
    zero_offset: int,
    dtype: np.dtype,
) -> LazyTensor:
    packed = weight.get("qweight", (None, None), "i")
    _check_words(packed, "qweight")
    inputs = packed.shape[0] * 32 // bits
    # With rules for some modules, their groups may have another size.
    groups = None if config.get("dynamic") else count_groups(size, inputs)
    scales = weight.get("scales", (groups, packed.shape[1]), "f")
    groups, outputs = scales.shape
    zero_dtype = zero_point_dtype(bits, zero_offset)
    zeros = weight.get("qzeros", (groups, None), "i")
    _check_words(zeros, "qzeros")
    # Values and zero points are moved by the same, because integers with a sign are
    # what matrix units multiply.
    middle = 1 << (bits - 1)
    values = unpack_words(
        packed, 0, bits, integer_dtype(bits, signed=True), inputs, -middle
    )
    inputs_of_group = _divide_inputs(inputs, groups)
    order = None
    if config.get("desc_act") or "g_idx" in weight:
        order = group_order(
            weight.get("g_idx", (inputs,), "i"), inputs_of_group, groups
        )
        if order is not None:
            values = permute(values, 0, order)
    return QuantizedTensor(
        (outputs, inputs),
        dtype,
        group_columns(transpose(values, 0, 1), inputs_of_group),
        scales,
        unpack_words(zeros, 1, bits, zero_dtype, outputs, zero_offset - middle),
        None if order is None else in_memory(order),
        scheme=f"gptq int{bits}",
    )


def zero_point_dtype(bits: int, offset: int) -> np.dtype:
    """The type of GPTQ's zero points after `offset` was added to what is stored."""
    if offset and bits in _WIDER:
        return np.dtype(_WIDER[bits])
    return integer_dtype(bits, signed=True)


def adapt_awq(config: Mapping[str, Any], tensors: Tensors, dtype: np.dtype) -> Adapted:
    """The weights of a checkpoint whose `quant_method` is "awq".

    Raises:
        PortError: other bits than four, another version than "gemm", or tensors that do
            not fit.
    """
    bits = config.get("bits", config.get("w_bit"))
    version = str(config.get("version", "gemm")).lower()
    if bits != 4 or version != "gemm":
        raise PortError(
            f"AWQ of {bits!r:.60} bits in the version {version!r:.60} is not supported, 4 in 'gemm' is",
            fix=_UNQUANTIZED,
        )
    size = group_size(
        config.get("group_size", config.get("q_group_size", DEFAULT_GROUP))
    )
    weights, others = collect(tensors, _ENDINGS, "qweight")
    return adapt_each(weights, others, lambda weight: _adapt_awq(weight, size, dtype))


def _adapt_awq(weight: WeightTensors, size: int | None, dtype: np.dtype) -> LazyTensor:
    packed = weight.get("qweight", (None, None), "i")
    inputs, words = packed.shape
    scales = weight.get("scales", (count_groups(size, inputs), words * 8), "f")
    groups, outputs = scales.shape
    zeros = weight.get("qzeros", (groups, words), "i")
    _check_words(packed, "qweight")
    _check_words(zeros, "qzeros")
    # As of GPTQ, both moved by the same.
    values, zero_points = (
        unpack(
            tensor, 1, 4, integer_dtype(4, signed=True), shifts=_AWQ_SHIFTS, offset=-8
        )
        for tensor in (packed, zeros)
    )
    return QuantizedTensor(
        (outputs, inputs),
        dtype,
        group_columns(transpose(values, 0, 1), inputs // groups),
        scales,
        zero_points,
        scheme="awq int4",
    )


def _check_words(tensor: LazyTensor, name: str) -> None:
    if tensor.dtype != np.int32:
        raise BadWeightError(f"{name} is {tensor.dtype}, and not int32")


def _divide_inputs(inputs: int, groups: int) -> int:
    if inputs % groups:
        raise BadWeightError(
            f"scales are for {groups} groups, which do not divide {inputs} inputs"
        )
    return inputs // groups
