"""Static analysis of model code that is to run under `jax.jit` through torchax. Imports neither torch nor jax."""

from tpuport.lint.findings import Applicability, Finding, Severity

__all__ = ["Applicability", "Finding", "Severity"]
