"""The Python state that traced code reads and writes beside its arguments."""

from tpuport.state.host_input import HostInput
from tpuport.state.model_snapshot import ModelSnapshot, left_as_it_was

__all__ = ["HostInput", "ModelSnapshot", "left_as_it_was"]
