"""bitsandbytes' checkpoints: int8 by output, and four bits (nf4, fp4) in blocks of a
weight's numbers.

An int8 weight is `weight * SCB / 127`. One of four bits is
`quant_map[weight] * absmax`, where each `blocksize` numbers of the flattened weight
share an `absmax`, and two numbers a byte, the first in its high bits. `absmax` may
itself be quantised: `nested_quant_map[absmax] * nested_absmax + nested_offset`.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tpuport.checkpoint.formats.packed_tensors import (
    in_memory,
    integer_dtype,
    read_whole,
    unpack,
)
from tpuport.checkpoint.formats.weight_tensors import (
    Adapted,
    BadWeightError,
    Tensors,
    WeightTensors,
    adapt_each,
    collect,
    kind_of,
)
from tpuport.checkpoint.lazy_tensors import (
    Converted,
    LazyTensor,
    Reader,
    full_index,
    transpose,
)
from tpuport.checkpoint.quantized_tensors import QuantizedTensor, group_columns
from tpuport.errors import PortError

_STATE = "weight.quant_state.bitsandbytes__"
_FOUR_BIT_TYPES = ("nf4", "fp4")
_FOUR_BIT_ENDINGS = (
    "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map", "weight",
)  # fmt: skip


def adapt(config: Mapping[str, Any], tensors: Tensors, dtype: np.dtype) -> Adapted:
    """The weights of a checkpoint whose `quant_method` is "bitsandbytes".

    Raises:
        PortError: neither eight bits nor four, or tensors that do not fit.
    """
    if config.get("load_in_8bit"):
        weights, others = collect(tensors, ("SCB", "weight_format", "weight"), "SCB")
        return adapt_each(
            weights, others, lambda weight: _adapt_eight_bits(weight, dtype)
        )
    kind = config.get("bnb_4bit_quant_type", "fp4")
    if not config.get("load_in_4bit") or kind not in _FOUR_BIT_TYPES:
        raise PortError(
            f"bitsandbytes with neither load_in_8bit nor load_in_4bit, or of the type {kind!r:.60}, is not supported"
        )
    state = _STATE + kind
    weights, others = collect(tensors, (state, *_FOUR_BIT_ENDINGS), state)
    return adapt_each(
        weights, others, lambda weight: _adapt_four_bits(weight, state, kind, dtype)
    )


def _adapt_eight_bits(weight: WeightTensors, dtype: np.dtype) -> LazyTensor:
    values = weight.get("weight", (None, None), "i")
    if values.dtype != np.int8:
        raise BadWeightError(f"weight is {values.dtype}, and not int8")
    outputs, inputs = values.shape
    scale = read_whole(weight.get("SCB", (outputs,), "f")).astype(
        np.float32
    ) / np.float32(127)
    return QuantizedTensor(
        values.shape,
        dtype,
        group_columns(values, inputs),
        in_memory(scale.reshape(1, outputs)),
        scheme="bitsandbytes int8",
    )


def _adapt_four_bits(
    weight: WeightTensors, state_name: str, kind: str, dtype: np.dtype
) -> LazyTensor:
    state = _read_state(weight, state_name)
    try:
        outputs, inputs = map(int, state["shape"])
        size = int(state["blocksize"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadWeightError(
            f"{state_name} has no shape of a matrix or no block size"
        ) from error
    if size < 1:
        raise BadWeightError(f"{state_name} has blocks of {size} numbers")
    packed = weight.get("weight", (-(-outputs * inputs // 2), 1), "u")
    levels = read_whole(weight.get("weight.quant_map", (16,), "f")).tolist()
    if inputs % size:
        # A scale that belongs to two rows has no place among those of an output.
        scales = _scales(weight, state, (1, -(-outputs * inputs // size)))
        return _make_wide(packed, levels, scales, size, (outputs, inputs), dtype)
    # The bytes of a row follow one another.
    rows = dataclasses.replace(packed, shape=(outputs, inputs // 2))
    values = unpack(rows, 1, 4, integer_dtype(4, signed=False), shifts=(4, 0))
    return QuantizedTensor(
        (outputs, inputs),
        dtype,
        group_columns(values, size),
        transpose(_scales(weight, state, (outputs, inputs // size)), 0, 1),
        levels=tuple(levels),
        scheme=f"bitsandbytes {kind}",
    )


def _make_wide(
    packed: LazyTensor,
    levels: Sequence[float],
    scales: LazyTensor,
    size: int,
    shape: tuple[int, int],
    dtype: np.dtype,
) -> LazyTensor:
    """A weight whose blocks of `size` numbers cross its rows, as an ordinary one."""
    count = prod(shape)

    def compute(reader: Reader) -> np.ndarray:
        pairs = packed.read(reader, full_index(packed.shape), packed.dtype)
        numbers = np.stack((pairs >> 4, pairs & 0xF), -1).reshape(-1)[:count]
        blocks = scales.read(reader, full_index(scales.shape), np.dtype(np.float32))
        table = np.asarray(levels, np.float32)
        weight = table[numbers] * np.repeat(blocks.reshape(-1), size)[:count]
        return weight.reshape(shape)

    return Converted(shape, dtype, compute)


def _read_state(weight: WeightTensors, name: str) -> dict[str, Any]:
    """What the tensor of JSON says about a weight."""
    try:
        state = json.loads(read_whole(weight.get(name, (None,), "u")).tobytes())
    except ValueError as error:
        raise BadWeightError(f"{name} cannot be read: {error!r}") from error
    if not isinstance(state, dict):
        raise BadWeightError(f"{name} is {state!r:.60}, and not an object")
    return state


def _scales(
    weight: WeightTensors, state: Mapping[str, Any], shape: tuple[int, int]
) -> LazyTensor:
    """The scale of each block, as [outputs, blocks of a row] or [1, all blocks]."""
    count = shape[0] * shape[1]
    stored = weight.get("weight.absmax", (count,), "uf")
    if kind_of(stored.dtype) == "f":
        return dataclasses.replace(stored, shape=shape)
    nested_size = state.get("nested_blocksize")
    if (
        not isinstance(nested_size, int)
        or nested_size < 1
        or "nested_offset" not in state
    ):
        raise BadWeightError(
            "its state has no nested_blocksize or no nested_offset, for scales that are quantised"
        )
    nested = weight.get("weight.nested_absmax", (-(-count // nested_size),), "f")
    levels = weight.get("weight.nested_quant_map", (256,), "f")
    offset = np.float32(state["nested_offset"])

    def compute(reader: Reader) -> np.ndarray:
        indices, scales, table = (
            tensor.read(reader, full_index(tensor.shape), tensor.dtype)
            for tensor in (stored, nested, levels)
        )
        blocks = np.repeat(scales.astype(np.float32), nested_size)[:count]
        return (table.astype(np.float32)[indices] * blocks + offset).reshape(shape)

    return Converted(shape, np.dtype(np.float32), compute)
