"""What the rules on GPU-only code share: how bad it is where it stands."""

from tpuport.lint.events import Text, Use
from tpuport.lint.findings import Severity
from tpuport.lint.rules.rule import Hit


def hit(event: Use | Text, host: bool = True, reason: str = "", remedy: str = "") -> Hit | None:
    """A finding for something that needs a GPU.

    An error where the port is sure to come by: at import, in a module's `__init__`, in traced code. A warning under a
    condition, and in host code, where `host` says that this is worth a word. Quiet where the code asks for the GPU
    first.
    """
    if event.checked:
        return None
    met = event.traced or event.in_init or event.at_import
    if event.guarded and not event.traced and not event.in_init:
        return None
    if met and not event.guarded:
        return Hit(reason, remedy, severity=Severity.ERROR)
    return Hit(reason, remedy, severity=Severity.WARNING) if met or host else None
