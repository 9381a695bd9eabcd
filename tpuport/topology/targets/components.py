"""One model of diffusers."""

from tpuport.errors import PortError
from tpuport.topology.targets.configs import Found
from tpuport.topology.targets.target import Options, Target


def component_target(found: Found, options: Options) -> Target:
    raise PortError("not yet", where=found.path)
