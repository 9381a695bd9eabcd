"""From what the user names to what is compiled: models from configs without weights, and inputs of the right shapes.

`resolve` takes a path, the name of a well-known model, or someone's own function, and gives one `Target` for every
program. Nothing is downloaded, and no parameter is made before `Target.build` is called, nor takes memory then.
"""

from tpuport.topology.targets.configs import known as known
from tpuport.topology.targets.resolving import resolve as resolve
from tpuport.topology.targets.target import TASKS as TASKS
from tpuport.topology.targets.target import Target as Target
