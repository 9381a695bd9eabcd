"""A pipeline of diffusers, component by component."""

from tpuport.errors import PortError
from tpuport.topology.targets.configs import Found
from tpuport.topology.targets.target import Options, Target


def pipeline_targets(found: Found, options: Options) -> tuple[Target, ...]:
    raise PortError("not yet", where=found.path)
