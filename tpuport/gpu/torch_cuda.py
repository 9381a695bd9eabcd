"""What the GPU shim answers for `torch.cuda` where "cuda" means the host."""

import contextlib
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

CAPABILITY = (8, 0)  # of the GPU that is said to be there: one that has bfloat16


def nothing(*args: Any, **kwargs: Any) -> None:
    """Whatever is asked."""


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _properties(*args: Any, **kwargs: Any) -> SimpleNamespace:
    major, minor = CAPABILITY
    return SimpleNamespace(
        name="no GPU (tpuport.gpu_shim)", major=major, minor=minor, total_memory=_memory(), multi_processor_count=1,
        is_integrated=False, is_multi_gpu_board=False, warp_size=32,
    )  # fmt: skip


class Stream:
    """A CUDA stream on which nothing runs."""

    cuda_stream, device = 0, torch.device("cpu")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def query(self) -> bool:
        """True: everything is done."""
        return True

    synchronize = wait_stream = wait_event = nothing

    def record_event(self, event: "Event | None" = None) -> "Event":
        """The event given, or a new one."""
        return event or Event()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Event:
    """A CUDA event that has happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    record = synchronize = wait = nothing

    def query(self) -> bool:
        """True: it has happened."""
        return True

    def elapsed_time(self, other: "Event") -> float:
        """Milliseconds, none."""
        return 0.0


class _NullContext(contextlib.ContextDecorator):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> "_NullContext":
        return self

    def __exit__(self, *error: object) -> None:
        pass


def _factory(kind: type) -> Callable[..., Any]:
    return lambda *args, **kwargs: kind()


# Functions of torch.cuda that fail without a GPU, or would say that there is none, and
# their answers.
CUDA: dict[str, Callable[..., Any]] = {
    "can_device_access_peer": lambda *args: False,
    "current_device": lambda: 0,
    "current_stream": _factory(Stream),
    "default_stream": _factory(Stream),
    "device_count": lambda: 1,
    "get_device_capability": lambda *args, **kwargs: CAPABILITY,
    "get_device_name": lambda *args, **kwargs: _properties().name,
    "get_device_properties": _properties,
    "get_rng_state": lambda *args, **kwargs: torch.get_rng_state(),
    "init": nothing,
    "initial_seed": torch.initial_seed,
    "ipc_collect": nothing,
    "is_bf16_supported": lambda *args, **kwargs: True,
    "is_current_stream_capturing": lambda: False,
    "mem_get_info": lambda *args, **kwargs: (_memory(), _memory()),
    "memory_summary": lambda *args, **kwargs: "",
    "reset_max_memory_allocated": nothing,
    "reset_max_memory_cached": nothing,
    "reset_peak_memory_stats": nothing,
    "set_device": nothing,
    "set_per_process_memory_fraction": nothing,
    "set_rng_state": nothing,
    "set_stream": nothing,
    "synchronize": nothing,
    "nvtx.mark": nothing,
    "nvtx.range_pop": nothing,
    "nvtx.range_push": nothing,
    "profiler.start": nothing,
    "profiler.stop": nothing,
}

# Classes and context managers of torch.cuda, and what is made instead.
CUDA_CLASSES: dict[str, type] = {
    "Event": Event,
    "Stream": Stream,
    "device": _NullContext,
    "device_of": _NullContext,
    "nvtx.range": _NullContext,
    "stream": _NullContext,
}

# torch.cuda.FloatTensor and the like: those of the CPU.
TENSOR_TYPES = (
    "Float",
    "Double",
    "Half",
    "BFloat16",
    "Byte",
    "Char",
    "Short",
    "Int",
    "Long",
    "Bool",
)

# Switches between attention kernels of a GPU, which would switch those of the CPU as
# well.
SDP = (
    "enable_flash_sdp",
    "enable_mem_efficient_sdp",
    "enable_math_sdp",
    "enable_cudnn_sdp",
)
