"""Eight virtual CPU devices, annotated shapes under a runtime type checker, and work counted instead of timed."""

import gc
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TPUPORT_COMPILATION_CACHE", "off")
# The threads of several workers on few cores wait for each other at every product of torch, which are small here.
os.environ.setdefault("OMP_NUM_THREADS", "1")
_FLAGS = {"--xla_force_host_platform_device_count": "8"}
# What runs once is not worth optimizing; `make test-all` has programs as users have them.
if not os.environ.get("TPUPORT_THOROUGH"):
    _FLAGS |= {
        "--xla_backend_optimization_level": "0",
        # Compiling takes a third of the time with XLA's older generators of loops, and half of that with one LLVM
        # module for a program instead of up to 32.
        "--xla_cpu_use_fusion_emitters": "false",
        "--xla_cpu_parallel_codegen_split_count": "1",
    }
_given = os.environ.get("XLA_FLAGS", "")
_added = [f"{name}={value}" for name, value in _FLAGS.items() if name not in _given]
if _added:
    # An XLA that does not know a flag ends its process, and says which.
    _client = [sys.executable, "-c", "from jaxlib import xla_client; xla_client.make_cpu_client()"]
    _answer = subprocess.run(
        _client, env=os.environ | {"XLA_FLAGS": " ".join(_added)}, capture_output=True, text=True
    )
    _unknown = _answer.stderr.partition("in XLA_FLAGS:")[2].split()
    _added = [flag for flag in _added if flag not in _unknown]
os.environ["XLA_FLAGS"] = " ".join([_given, *_added]).strip()

# Going through everything that is alive took a tenth of the tests' time: nothing while modules are imported, and
# seldom afterwards. A test that looks for garbage collects it itself.
gc.disable()
gc.set_threshold(50_000, 20, 50)

import pytest  # noqa: E402
import wrapt  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402
from packaging.version import Version  # noqa: E402

# How long an example takes says how busy the machine is. The same examples in each run of `make test`, so that whoever
# changes something sees what that changes; other ones each time in `make test-all`.
settings.register_profile(
    "tests", deadline=None, suppress_health_check=[HealthCheck.too_slow],
    derandomize=not os.environ.get("TPUPORT_THOROUGH"),
    max_examples=100 if os.environ.get("TPUPORT_THOROUGH") else 30,
)  # fmt: skip
settings.load_profile("tests")
# For properties whose every example compiles a program, or computes attention in full.
settings.register_profile("few", max_examples=100 if os.environ.get("TPUPORT_THOROUGH") else 5)

# The checker builds a checking function at every definition, those inside of functions again at each call, and took
# more than a third of the suite's time. pyright checks the rest, but for the shapes that only these modules state.
_SHAPED = (
    "backward flash flash_kernel kernel_body mask mesh_attention padding reference ring ulysses xla_attention"
)
_CHECKED = ["tpuport.generation.sampling", *(f"tpuport.attention.{name}" for name in _SHAPED.split())]
if os.environ.get("TPUPORT_THOROUGH"):
    _CHECKED = ["tpuport"]
install_import_hook(_CHECKED, "beartype.beartype")


def _share_contexts(mlir: ModuleType) -> None:
    """Let jax lower a hundred programs in one MLIR context: to make one takes longer than to lower an operator."""
    make_module_context = mlir.ModuleContext.__init__
    of_thread = threading.local()

    def shared_context() -> Any:
        # A context keeps all types, constants and locations that were ever made in it.
        if getattr(of_thread, "remaining_uses", 0) == 0:
            of_thread.context, of_thread.remaining_uses = mlir.make_ir_context(), 100
        of_thread.remaining_uses -= 1
        return of_thread.context

    def init(self: Any, *, context: Any = None, **options: Any) -> None:
        make_module_context(self, context=context or shared_context(), **options)

    mlir.ModuleContext.__init__ = init


if not os.environ.get("TPUPORT_THOROUGH"):
    wrapt.register_post_import_hook(_share_contexts, "jax._src.interpreters.mlir")


# jax computes the key of every program that it compiles, even without a directory to look it up in. Processes that
# tests start have jax's default.
wrapt.register_post_import_hook(
    lambda jax: jax.config.update("jax_enable_compilation_cache", False),
    "jax",
)


_PINS = dict(
    re.findall(r"^(\w+)==(\S+)$", (Path(__file__).parents[1] / "constraints.txt").read_text(), re.MULTILINE)
)
# What a test asks an older library for in vain, as Python says it.
_LACKING = re.compile(
    r"cannot import name '(?P<name>\w+)' from '(?P<of>transformers|diffusers)\b"
    r"|No module named '(?P<module>(?P<of_module>transformers|diffusers)\.[\w.]+)'"
    r"|module '?(?P<of_attribute>transformers|diffusers)\b[\w.]*'? has no attribute '?(?P<attribute>\w+)"
)
_OWN_LINE = re.compile(r"^(tests|benchmarks|tpuport/patches|tpuport)/\S+\.py:\d+", re.MULTILINE)


def _skip_reason(traceback: str) -> str | None:
    """Why a test cannot run: it, or the patch that it is about, names what a library has only since a later release."""
    lacking = _LACKING.search(traceback)
    rooms = _OWN_LINE.findall(traceback)
    if lacking is None or not rooms or rooms[-1] == "tpuport":
        return None
    library = lacking["of"] or lacking["of_module"] or lacking["of_attribute"]
    installed = metadata.version(library)
    if Version(installed) >= Version(_PINS[library]):
        return None
    return f"{library} {installed} has no {lacking['name'] or lacking['module'] or lacking['attribute']}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Skips a test of what the oldest supported libraries do not have yet."""
    report = yield
    reason = _skip_reason(str(report.longrepr)) if report.failed else None
    if reason is not None:
        report.outcome, report.longrepr = "skipped", (str(item.path), item.location[1] or 0, reason)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """Seeds torch for the tensors that a module makes when it is imported; skips a module as a test is skipped."""
    _seed()
    report = yield
    reason = _skip_reason(str(report.longrepr)) if report.failed else None
    if reason is not None:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, reason)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """Seeds torch for models that are made with random weights, whichever tests ran before."""
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Seeds torch for a test."""
    _seed()


def _seed() -> None:
    # `torch.manual_seed` takes a fiftieth of the suite's time: it formats its own stack for devices that are not there.
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)


def pytest_collection_finish() -> None:
    """Spare the garbage collector the millions of objects of imported modules, which live until the end anyway."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def small_heap() -> None:
    """Leaves what lives already out of the collections of a test, which would take a second each to go through it."""
    gc.freeze()


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
