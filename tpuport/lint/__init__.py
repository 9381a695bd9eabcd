"""Static analysis of model code that will run under `jax.jit` through torchax. Imports
neither torch nor jax.

A file is decoded and parsed (`source`), and names are indexed across files (`modules`).
The interpreter runs the traced functions on abstract values: a tensor, a shape, a
number that is known while tracing. It emits events ("a tensor is used as a condition",
"this function is called"), and so does the scanner of imports, devices and untraced
code. A rule, one file each, turns some events into findings; it does not look at syntax
trees, so that all rules agree about what a tensor is. What the interpreter cannot know,
no rule reports. A fix, one file each, is linted again until it is stable.

Interpreting calls is the slow part, so equal ones are interpreted once: within a file
(`recorder`), and calls of other files' functions once for all files (`shared_calls`). A
file's findings must not depend on the files before it, so these are interpreted as if
they were the first.
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
