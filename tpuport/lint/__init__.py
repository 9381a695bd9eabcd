"""Static analysis of model code that is to run under `jax.jit` through torchax. Imports neither torch nor jax."""

from typing import TYPE_CHECKING, Any

from tpuport.lint.findings import Applicability, Finding, Severity

if TYPE_CHECKING:
    from tpuport.lint.engine import lint_paths
    from tpuport.lint.report import Report
    from tpuport.lint.settings import Settings

_LATER = {"lint_paths": "engine", "Report": "report", "Settings": "settings"}

__all__ = ["Applicability", "Finding", "Report", "Settings", "Severity", "lint_paths"]


def __getattr__(name: str) -> Any:
    # The engine imports the rules, and these import this package's findings.
    if name not in _LATER:
        raise AttributeError(f"module 'tpuport.lint' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"tpuport.lint.{_LATER[name]}"), name)
