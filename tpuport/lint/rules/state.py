"""What the rules on state share: which stores outlive the call."""

import ast
from typing import Any

from tpuport.lint.abstract_values import Instance, Tensor
from tpuport.lint.events import AttributeStore
from tpuport.lint.findings import Severity
from tpuport.lint.rules.matching import holds_tensor
from tpuport.lint.rules.rule import Context, Hit


def hit(event: AttributeStore, context: Context) -> Hit | None:
    """A tensor stored in a module: an error where the class reads it too, a warning where nothing seems to.

    What is stored in a buffer or a parameter is put back after tracing: it is lost, but leaks nothing.
    """
    if not isinstance(event.base, Instance) or not event.base.info.__dict__.get("is_module"):
        return None
    if not holds_tensor(event.value):
        return None
    kept = event.base.info.__dict__.get("attributes", {}).get(event.name)
    if isinstance(event.value, Tensor) and event.value.origin == "parameter":
        # A longer table, made when a longer input comes: a condition on shapes that is rarely met.
        return Hit(severity=Severity.WARNING)
    if isinstance(kept, Tensor) and kept.origin in {"parameter", "buffer"}:
        reason = f"{event.name} is put back after tracing: compiled calls do not change it"
        return Hit(reason, severity=Severity.WARNING)
    read = event.in_container or _reads(event.base.info, event.name)
    # The first tracing gets through; it is the second that fails.
    return Hit(severity=Severity.ERROR if read else Severity.WARNING, stops=False)


def _reads(info: Any, name: str) -> bool:
    """Whether the class, or one of its bases, reads the attribute anywhere."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
        for one in info.__dict__.get("mro", (info,))
        for node in ast.walk(one.node)
    )
