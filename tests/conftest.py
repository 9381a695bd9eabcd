"""Eight virtual CPU devices, annotated shapes under a runtime type checker, and work counted instead of timed."""

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TPUPORT_COMPILATION_CACHE", "off")
# The threads of several workers on few cores wait for each other at every product of torch, which are small here.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What runs once is not worth optimizing; `make test-all` has programs as users have them.
_FLAGS = {"--xla_force_host_platform_device_count": "8"}
if not os.environ.get("TPUPORT_THOROUGH"):
    _FLAGS["--xla_backend_optimization_level"] = "0"
_given = os.environ.get("XLA_FLAGS", "")
_added = [f"{name}={value}" for name, value in _FLAGS.items() if name not in _given]
os.environ["XLA_FLAGS"] = " ".join([_given, *_added]).strip()

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

# How long an example takes says how busy the machine is.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")
# For properties whose every example compiles a program, or computes attention in full.
settings.register_profile("few", max_examples=100 if os.environ.get("TPUPORT_THOROUGH") else 5)

# The checker builds a checking function at every definition, those inside of functions again at each call, and took
# more than a third of the suite's time. pyright checks the rest, but for the shapes that only these modules state.
_CHECKED = ["tpuport.attention", "tpuport.generation.sampling"]
if os.environ.get("TPUPORT_THOROUGH"):
    _CHECKED = ["tpuport"]
install_import_hook(_CHECKED, "beartype.beartype")


@pytest.fixture
def lines_run() -> Callable[[Callable[[], object]], int]:
    """`lines_run(function)` calls it and counts the lines and calls of tpuport that it runs in this thread.

    The number is the same at every run and on every machine, which the time is not: compare it for two sizes.
    """

    ours = str(Path(__file__).parents[1] / "tpuport")

    def count(function: Callable[[], object]) -> int:
        lines = 0

        def note(frame: FrameType, event: str, argument: object) -> object:
            nonlocal lines
            # The type checker's own calls stand around ours.
            if event == "call" and not frame.f_code.co_filename.startswith(ours):
                return None
            lines += event in {"call", "line"}
            return note

        before = sys.gettrace()
        gc.disable()  # what it would run belongs to whoever made the garbage
        sys.settrace(note)
        try:
            function()
        finally:
            sys.settrace(before)
            gc.enable()
        return lines

    return count
