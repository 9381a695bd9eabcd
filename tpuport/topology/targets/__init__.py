"""From what the user names to what is compiled: models from configs without weights,
and inputs of the right shapes.

`resolve` takes a path, the name of a well-known model, or the user's own function, and
gives one `Target` for each program. Nothing is downloaded. Parameters are made when
`Target.build` is called, and take no memory then either.
"""

from typing import TYPE_CHECKING, Any

from tpuport.topology.targets.config_files import known as known
from tpuport.topology.targets.target import TASKS as TASKS
from tpuport.topology.targets.target import Target as Target

if TYPE_CHECKING:
    from tpuport.topology.targets.resolving import resolve as resolve

__all__ = ["TASKS", "Target", "known", "resolve"]


def __getattr__(name: str) -> Any:
    # It needs torch, transformers and diffusers; a wrong path is reported before they
    # are imported.
    if name != "resolve":
        raise AttributeError(
            f"module 'tpuport.topology.targets' has no attribute {name!r}"
        )
    from tpuport.topology.targets.resolving import resolve

    return resolve
