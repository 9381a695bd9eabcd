"""MXFP4 experts, as GPT-OSS is published: four-bit floats with a power of two for each
32 inputs of an output.

A weight's `_blocks` [X, O, G, 16] have two numbers in each byte, the lower bits first,
and its `_scales` [X, O, G] are exponents of two, 127 more than they mean. The model has
these weights transposed, [X, K, O].
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from tpuport.checkpoint.formats.packed_tensors import reinterpret, unpack
from tpuport.checkpoint.formats.weight_tensors import (
    Adapted,
    BadWeightError,
    Tensors,
    WeightTensors,
    adapt_each,
    collect,
)
from tpuport.checkpoint.lazy_tensors import LazyTensor, transpose
from tpuport.checkpoint.quantized_tensors import Filled, QuantizedTensor

_GROUP = 32
_PROJECTIONS = ("gate_up_proj", "down_proj")
# Rows of bytes in a tile of a TPU's memory.
_TILE = 32
# What filling the last tile may add to the scales.
_MOST_FILLING = 1.1


def adapt(config: Mapping[str, Any], tensors: Tensors, dtype: np.dtype) -> Adapted:
    """The weights of a checkpoint whose `quant_method` is "mxfp4"."""
    adapted: Adapted = dict(tensors)
    for projection in _PROJECTIONS:
        endings = (f"{projection}_blocks", f"{projection}_scales")
        weights, _ = collect(tensors, endings, endings[0])
        for weight in weights:
            for ending in weight.tensors:
                del adapted[f"{weight.module}.{ending}"]
        adapt_weight = functools.partial(
            _adapt_weight, projection=projection, dtype=dtype
        )
        adapted |= adapt_each(weights, {}, adapt_weight, projection)
    return adapted


def count_scales(groups: int) -> int:
    """Scales of an output, of which the last may be unused, so that those of an expert
    are whole tiles.

    Otherwise XLA would put several experts into a tile, and copy the scales of all of
    them for their products.
    """
    filled = -(-groups // _TILE) * _TILE
    return filled if filled <= _MOST_FILLING * groups else groups


def _adapt_weight(
    weight: WeightTensors, projection: str, dtype: np.dtype
) -> LazyTensor:
    blocks = weight.get(f"{projection}_blocks", (None, None, None, _GROUP // 2), "u")
    experts, outputs, groups, _ = blocks.shape
    scales = weight.get(f"{projection}_scales", (experts, outputs, groups), "u")
    if blocks.dtype != np.uint8 or scales.dtype != np.uint8:
        raise BadWeightError(
            f"blocks are {blocks.dtype} and scales {scales.dtype}, and not uint8"
        )
    values = reinterpret(unpack(blocks, 3, 4, np.dtype(np.uint8)), jnp.float4_e2m1fn)
    filled = Filled(
        (experts, outputs, count_scales(groups)), scales.dtype, scales, segments=1
    )
    return QuantizedTensor(
        (experts, groups * _GROUP, outputs),
        dtype,
        # [X, O, G, I] as [X, G, I, O]
        transpose(transpose(values, 1, 2), 2, 3),
        transpose(reinterpret(filled, jnp.float8_e8m0fnu), 1, 2),
        scheme="mxfp4",
        transposed=True,
    )
