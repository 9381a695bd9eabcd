"""Quantised weights of a model without values."""

from collections.abc import Mapping
from typing import Any, Final

import jax
import torch
from jax.sharding import NamedSharding

from tpuport import compat
from tpuport.checkpoint.device_layout import find_owner
from tpuport.checkpoint.lazy_tensors import LazyTensor
from tpuport.checkpoint.quantized_layout import empty_weight, multiply_empty
from tpuport.checkpoint.quantized_tensors import quantizing
from tpuport.errors import PortError
from tpuport.quantization import (
    as_quantization_rules,
    install,
    is_transposed,
    part_name,
    quantized_weights,
)
from tpuport.sharding.quantized_parts import are_factors_cut, plan_parts

# The attribute of a model that says how it was quantised.
_QUANTIZATION: Final = "tpuport_abstract_quantization"


def quantize_abstract(
    model: torch.nn.Module, quantize: Any, dtype: torch.dtype | None
) -> None:
    """Give a model without values the quantised weights that
    `port(model, quantize=quantize)` would give it.

    Args:
        dtype: of the weights; None keeps theirs.

    Raises:
        PortError: as `port`, or the model was quantised in another way before.
    """
    rules = as_quantization_rules(quantize)
    description = repr(rules)
    earlier = vars(model).get(_QUANTIZATION)
    if earlier is not None and earlier != description:
        raise PortError(
            "the model was compiled with other quantised weights before",
            where="quantize",
            fix="build it anew, or give the function that builds it",
        )
    if rules is None or earlier is not None:
        return
    stored = next((name for name, _, _, _ in quantized_weights(model)), None)
    if stored is not None:
        raise PortError(
            "the checkpoint is quantised already",
            where=stored,
            fix="compile it without quantize=",
        )
    for name, scheme in rules.schemes(model).items():
        module, leaf = find_owner(model, name)
        weight = model.get_parameter(name)
        weight_dtype = dtype or weight.dtype
        array_dtype = compat.jax_dtype(weight_dtype)
        dense = LazyTensor(tuple(weight.shape), array_dtype)
        source = quantizing(
            dense, scheme, array_dtype, transposed=is_transposed(module)
        )
        install(module, leaf, empty_weight(source, weight_dtype))
    vars(model)[_QUANTIZATION] = description


def abstract_parts(
    model: torch.nn.Module, shardings: Mapping[str, NamedSharding]
) -> dict[str, jax.ShapeDtypeStruct]:
    """The parts of every quantised weight without values, by their names as buffers."""
    weights = {name: weight for name, _, _, weight in quantized_weights(model)}
    for name, weight in weights.items():
        if are_factors_cut(weight, shardings[name]):
            multiply_empty(weight)
    plans = plan_parts(weights, shardings)
    return {
        part_name(name, part): jax.ShapeDtypeStruct(
            tuple(tensor.shape), weights[name].part_dtypes[part], sharding=plan[part]
        )
        for name, plan in plans.items()
        for part, tensor in weights[name].parts.items()
    }
