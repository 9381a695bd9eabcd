"""FP8 weights with a scale for each block of outputs and inputs, as DeepSeek and Qwen
publish them.

A weight is `weight * weight_scale_inv`, each number of the latter for a block of
`weight_block_size`. Without blocks there is a number for all of the weight.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from tpuport.checkpoint.formats.packed_tensors import reshape
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

_SCALE = "weight_scale_inv"
_UNUSED = ("activation_scale", "input_scale")


def adapt(config: Mapping[str, Any], tensors: Tensors, dtype: np.dtype) -> Adapted:
    """The weights of a checkpoint whose `quant_method` is "fp8"."""
    block = config.get("weight_block_size")
    weights, others = collect(tensors, ("weight", _SCALE, *_UNUSED), _SCALE)
    return adapt_each(
        weights, others, lambda weight: _adapt_weight(weight, block, dtype)
    )


def _adapt_weight(weight: WeightTensors, block: Any, dtype: np.dtype) -> LazyTensor:
    values = weight.get("weight", (None, None), "f")
    if values.dtype != jnp.float8_e4m3fn:
        raise BadWeightError(f"weight is {values.dtype}, and not float8_e4m3fn")
    outputs, inputs = values.shape
    if block is None:
        rows, columns = outputs, inputs
        scales = scalar(weight.get(_SCALE, kinds="f"), _SCALE)
    else:
        rows, columns = block_sizes(block)
        stored = weight.get(_SCALE, (-(-outputs // rows), -(-inputs // columns)), "f")
        scales = transpose(stored, 0, 1)
    return QuantizedTensor(
        values.shape,
        dtype,
        group_columns(values, min(columns, inputs)),
        scales,
        output_block=rows,
        scheme="fp8",
    )


def scalar(tensor: LazyTensor, name: str) -> LazyTensor:
    """A tensor of one number as [1, 1]; BadWeightError if it has another number of
    them.
    """
    if math.prod(tensor.shape) != 1:
        raise BadWeightError(
            f"{name} has shape {list(tensor.shape)}, and the config names no blocks"
        )
    return reshape(tensor, 1, 1)


def block_sizes(block: Any) -> tuple[int, int]:
    """Outputs and inputs of a block, from the config; BadWeightError for anything but
    two positive integers.
    """
    match block:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    raise BadWeightError(
        f"weight_block_size is {block!r:.60}, and not two positive integers"
    )
