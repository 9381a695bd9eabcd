"""Static analysis of model code that will run under `jax.jit` through torchax. Imports
neither torch nor jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tpuport.lint.findings import Applicability, Finding, Severity

if TYPE_CHECKING:
    from tpuport.lint.configuration import Settings
    from tpuport.lint.engine import lint_paths
    from tpuport.lint.run_report import Report

# Imported on first use: the rules, which the engine needs, import this package's
# findings.
_MODULE_BY_NAME = {
    "lint_paths": "engine",
    "Report": "run_report",
    "Settings": "configuration",
}

__all__ = ["Applicability", "Finding", "Report", "Settings", "Severity", "lint_paths"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'tpuport.lint' has no attribute {name!r}")
    module = importlib.import_module(f"tpuport.lint.{_MODULE_BY_NAME[name]}")
    return getattr(module, name)
