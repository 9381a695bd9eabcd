"""Attention: its definition, and its registration with the libraries that call it."""

from tpuport.attention.reference import attention
from tpuport.attention.register.transformers import register_transformers, use

__all__ = ["attention", "register_transformers", "use"]
