"""From what the user names to what is compiled: models from configs without weights, and inputs of the right shapes.

`resolve` takes a path, the name of a well-known model, or someone's own function, and gives one `Target` for every
program. Nothing is downloaded, and no parameter is made before `Target.build` is called, nor takes memory then.
"""

from typing import TYPE_CHECKING, Any

from tpuport.topology.targets.configs import known as known
from tpuport.topology.targets.target import TASKS as TASKS
from tpuport.topology.targets.target import Target as Target

if TYPE_CHECKING:
    from tpuport.topology.targets.resolving import resolve as resolve

__all__ = ["TASKS", "Target", "known", "resolve"]


def __getattr__(name: str) -> Any:
    # It needs torch, transformers and diffusers; what is wrong with a path is told before they are imported.
    if name != "resolve":
        raise AttributeError(f"module 'tpuport.topology.targets' has no attribute {name!r}")
    from tpuport.topology.targets.resolving import resolve

    return resolve
