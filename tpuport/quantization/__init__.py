"""Weights in eight bits and fewer: which ones, in which form, and how a module reads
them.
"""

from tpuport.quantization.quantizable_modules import is_transposed, quantizable_weights
from tpuport.quantization.quantization_rules import (
    QuantizationRules,
    as_quantization_rules,
)
from tpuport.quantization.quantized_weights import (
    QuantizedWeight,
    find_weight,
    install,
    part_name,
    part_names,
    quantized_weights,
    restore_dense,
)
from tpuport.quantization.schemes import Scheme, as_scheme

__all__ = [
    "QuantizationRules",
    "QuantizedWeight",
    "Scheme",
    "as_quantization_rules",
    "as_scheme",
    "find_weight",
    "install",
    "is_transposed",
    "part_name",
    "part_names",
    "quantizable_weights",
    "quantized_weights",
    "restore_dense",
]
