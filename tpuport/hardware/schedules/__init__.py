"""The instruction schedules that libtpu writes while it compiles: how many cycles each
kernel takes, without a TPU.
"""

from tpuport.hardware.schedules.bundle_listing import Bundle, read_listing
from tpuport.hardware.schedules.scalar_execution import Execution, execute
from tpuport.hardware.schedules.schedule_dump import (
    KernelSchedule,
    dump_flags,
    read_schedules,
)
from tpuport.hardware.schedules.schedule_recording import record, recording_flags

__all__ = [
    "Bundle", "Execution", "KernelSchedule", "dump_flags", "execute", "read_listing", "read_schedules", "record",
    "recording_flags",
]  # fmt: skip
