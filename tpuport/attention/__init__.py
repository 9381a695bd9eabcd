"""Attention: its definition, what computes it, and its registration with the libraries
that call it.
"""

from tpuport.attention.attention_settings import registered_settings
from tpuport.attention.call_report import explain
from tpuport.attention.reference import attention
from tpuport.attention.register import register, unregister, use_on_meshes
from tpuport.attention.register.transformers_interface import (
    register_transformers,
    use_in_model,
)

__all__ = [
    "attention",
    "explain",
    "register",
    "register_transformers",
    "registered_settings",
    "unregister",
    "use_in_model",
    "use_on_meshes",
]
