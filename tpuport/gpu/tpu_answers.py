"""What the GPU shim answers for `torch.cuda` where "cuda" means the TPU."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax

from tpuport.gpu.torch_cuda import CAPABILITY


def synchronize(*args: Any, **kwargs: Any) -> None:
    """Wait until everything is computed that has been asked for."""
    jax.block_until_ready(jax.live_arrays())


class Event:
    """A CUDA event: the time at which everything before it is done."""

    # In seconds; None before `record`.
    _time: float | None = None

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Wait for what was asked for before, and note the time."""
        synchronize()
        self._time = time.perf_counter()

    def query(self) -> bool:
        """True: `record` has waited."""
        return True

    def wait(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: `record` has waited."""

    synchronize = wait

    def elapsed_time(self, other: "Event") -> float:
        """Milliseconds from this event to the other.

        Raises:
            RuntimeError: one of the two is not recorded.
        """
        if self._time is None or other._time is None:
            raise RuntimeError(
                "Both events must be recorded before calculating elapsed time."
            )
        return (other._time - self._time) * 1e3


def _memory(name: str) -> int:
    """A figure of the first device in bytes; 0 if the backend keeps none, as a CPU."""
    return (jax.local_devices()[0].memory_stats() or {}).get(name, 0)


def _properties(*args: Any, **kwargs: Any) -> SimpleNamespace:
    major, minor = CAPABILITY
    return SimpleNamespace(
        name=jax.local_devices()[0].device_kind, major=major, minor=minor, total_memory=_memory("bytes_limit"),
        multi_processor_count=1, is_integrated=False, is_multi_gpu_board=False, warp_size=32,
    )  # fmt: skip


# These replace answers of `torch_cuda.CUDA`.
CUDA: dict[str, Callable[..., Any]] = {
    "get_device_name": lambda *args, **kwargs: _properties().name,
    "get_device_properties": _properties,
    "is_available": lambda: True,
    "max_memory_allocated": lambda *args, **kwargs: _memory("peak_bytes_in_use"),
    "max_memory_reserved": lambda *args, **kwargs: _memory("peak_bytes_in_use"),
    "mem_get_info": lambda *args, **kwargs: (
        _memory("bytes_limit") - _memory("bytes_in_use"),
        _memory("bytes_limit"),
    ),
    "memory_allocated": lambda *args, **kwargs: _memory("bytes_in_use"),
    "memory_reserved": lambda *args, **kwargs: _memory("bytes_in_use"),
    "synchronize": synchronize,
}
CUDA_CLASSES: dict[str, type] = {"Event": Event}
