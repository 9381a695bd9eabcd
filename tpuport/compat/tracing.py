"""One thread traces at a time: a model holds traced values in place of its weights
while it is traced.
"""

import contextlib
import threading
from collections.abc import Iterator

from tpuport.compat.inference_mode import without_inference_mode

# Also held by whoever reads a model's weights, which are those of a trace while another
# thread traces.
trace_lock = threading.RLock()
_thread = (
    threading.local()
)  # .depth: how many traces of this thread are under way, one inside of another


@contextlib.contextmanager
def exclusive_trace() -> Iterator[None]:
    """Hold the lock, and let `is_tracing` know. `torch.inference_mode` around the call
    is that of its results.
    """
    with trace_lock, without_inference_mode():
        _thread.depth = getattr(_thread, "depth", 0) + 1
        try:
            yield
        finally:
            _thread.depth -= 1


def is_tracing() -> bool:
    """Whether this thread is tracing a compiled function now, so that models hold
    traced values.
    """
    return getattr(_thread, "depth", 0) > 0
