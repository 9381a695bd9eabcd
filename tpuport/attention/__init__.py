"""Attention: its definition, what computes it, and its registration with the libraries that call it."""

from tpuport.attention.explain import explain
from tpuport.attention.reference import attention
from tpuport.attention.register import automatic, register, unregister
from tpuport.attention.register.transformers import register_transformers, use
from tpuport.attention.settings import chosen

__all__ = [
    "attention",
    "automatic",
    "chosen",
    "explain",
    "register",
    "register_transformers",
    "unregister",
    "use",
]
