"""The Python state that traced code reads and writes beside its arguments."""

from tpuport.objects.state.host_input import HostInput
from tpuport.objects.state.model_snapshot import ModelSnapshot, left_as_it_was

__all__ = ["HostInput", "ModelSnapshot", "left_as_it_was"]
