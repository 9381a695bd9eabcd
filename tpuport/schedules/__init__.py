"""The instruction schedules that libtpu writes while it compiles: how many cycles each kernel takes, without a TPU."""

from tpuport.schedules.execution import Execution, execute
from tpuport.schedules.listing import Bundle, read_listing
from tpuport.schedules.recording import record, recording_flags
from tpuport.schedules.schedule_dump import KernelSchedule, dump_flags, read_schedules

__all__ = [
    "Bundle", "Execution", "KernelSchedule", "dump_flags", "execute", "read_listing", "read_schedules", "record",
    "recording_flags",
]  # fmt: skip
