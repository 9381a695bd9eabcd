"""Quantised weights of models, made from what describes them on disk."""

from collections.abc import Mapping

import numpy as np
import torch

from tpuport.checkpoint.quantized_tensors import QuantizedTensor
from tpuport.quantization import QuantizedWeight


def make_weight(
    source: QuantizedTensor, parts: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> QuantizedWeight:
    """The weight of `dtype` that `source` describes, with these tensors as its
    parts.
    """
    return QuantizedWeight(
        **parts,
        levels=source.levels,
        output_block=source.output_block,
        columns=source.columns,
        dtype=dtype,
        scheme=source.scheme,
        transposed=source.transposed,
        rounds_activations=source.rounds_activations,
        segments=source.segments,
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
    """Give a weight without values the parts that it has without shared factors, as
    `multiply_out` has them.
    """
    weight.outer_scale = weight.outer_minimum = None
    for name in ("scale", "minimum"):
        weight.part_dtypes[name] = np.dtype(np.float32)
