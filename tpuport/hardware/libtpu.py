"""Described TPUs: libtpu contains the whole compiler, and compiles for a slice that
nobody has rented.

No TPU is used or needed; libtpu itself must be installed (Linux on x86-64).
"""

import contextlib
import functools
import importlib.util
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpuport.errors import PortError
from tpuport.hardware.cpu_compiler import avoid_faults
from tpuport.hardware.generations import GENERATIONS, generation_of_kind
from tpuport.hardware.schedules import recording_flags
from tpuport.hardware.slices import parse_slice

if TYPE_CHECKING:
    from jax.experimental.topologies import TopologyDescription
    from jax.stages import Compiled

# libtpu reads these when it is loaded: ask no metadata server, and share the machine
# with other processes.
LIBTPU_ENVIRONMENT: Final = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_loading = threading.Lock()
# The PCI vendor of TPUs.
_GOOGLE: Final = "0x1ae0"
# Lines of libtpu on a host without a TPU: it finds no metadata of one, and says where
# in its sources.
_NOISE: Final = re.compile(
    rb"Failed to find host bounds for accelerator type|WARNING: Logging before InitGoogle\(\)"
    rb"|[IWE]\d{4} \S+ +\d+ (common_lib|\w*tpu\w*)\.cc:\d+\]"
    rb"|=== Source Location Trace: ===|\S+/libtpu_\w+\.cc:\d+$"
)


def generation_of(topology: "TopologyDescription") -> str:
    """The generation of a described TPU: a key of `GENERATIONS`."""
    kind = topology.devices[0].device_kind
    name = generation_of_kind(kind)
    assert name is not None, kind
    return name


def described(name: str) -> "TopologyDescription":
    """A described TPU slice for jax to compile for: its `devices` go into a mesh or a
    sharding.

    If this loads libtpu, libtpu writes the schedules of what the process compiles, for
    `schedules.record`.

    Args:
        name: a generation and a layout, such as "v5e:2x4"; a generation alone means its
            smallest slice.

    Raises:
        PortError: there is no such slice, libtpu is not installed, or this process
            cannot load it.
    """
    requested = parse_slice(name)
    if importlib.util.find_spec("libtpu") is None and not os.environ.get(
        "TPU_LIBRARY_PATH"
    ):
        raise PortError(
            "libtpu is not installed, and it is the compiler for TPUs",
            where=f"topology {name}",
            fix="pip install libtpu (Linux on x86-64; no TPU is needed)",
        )
    # jax takes a second to import, and names of slices are checked without it.
    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies

    for variable, value in LIBTPU_ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    try:
        with _filtered_stderr(_drop_all), recording_flags():
            return topologies.get_topology_desc(
                requested.name, platform="tpu", **requested.libtpu_options
            )
    except JaxRuntimeError as error:
        raise _explain_refusal(name, str(error)) from None


def compiler_options(generation: str, *, updates_cache: bool = False) -> dict[str, str]:
    """Options of libtpu with which programs for a generation are compiled, but for what
    LIBTPU_INIT_ARGS sets.

    Args:
        generation: as in `GENERATIONS`.
        updates_cache: whether each step of the program writes a few columns of large
            arrays that it reads once: a decoding loop.
    """
    hardware = GENERATIONS[generation]
    # Heads that are exchanged for positions go on beside the products that come next.
    options = {"xla_tpu_enable_async_all_to_all": "true"}
    if hardware.multiplies_rows_by_matrix:
        options["xla_tpu_enable_dot_strength_reduction"] = "false"
    if hardware.fusion_vmem is not None:
        options["xla_tpu_scoped_vmem_limit_kib"] = str(hardware.fusion_vmem // 1024)
    if updates_cache:
        # XLA moves an array to VMEM for uses that read at least this share of what is
        # copied there and back, by default half: a cache that is read once would be
        # updated in VMEM and written back whole.
        options["xla_tpu_msa_inefficient_use_to_copy_ratio"] = "0.75"
    flags = os.environ.get("LIBTPU_INIT_ARGS", "")
    return {name: value for name, value in options.items() if name not in flags}


def compiled(
    function: Callable,
    *arguments: Any,
    topology: "TopologyDescription",
    **jit_options: Any,
) -> "Compiled":
    """The function's program for one device of a described TPU, or for the mesh that
    its arguments are sharded on.

    Args:
        function: traced with the arguments; may be jitted already.
        arguments: trees of jax.ShapeDtypeStruct; those without a sharding go to the
            first device.
        jit_options: for `jax.jit`.
    """
    import jax
    from jax.sharding import SingleDeviceSharding

    first_device = SingleDeviceSharding(topology.devices[0])

    def add_sharding(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=getattr(x, "sharding", None) or first_device
        )

    # jax caches traces by function, but block sizes depend on the assumed generation: a
    # new function for each call.
    def new_function(*arguments: Any) -> Any:
        return function(*arguments)

    lowered = jax.jit(new_function, **jit_options).lower(
        *jax.tree.map(add_sharding, arguments)
    )
    with without_compilation_cache():
        return lowered.compile()


@contextlib.contextmanager
def without_compilation_cache() -> Iterator[None]:
    """Keep jax from caching programs of a described TPU: it could not load them where
    there is no TPU.
    """
    import jax

    config: Any = jax.config
    before = config.jax_enable_compilation_cache
    _enable_compilation_cache(False)
    try:
        yield
    finally:
        _enable_compilation_cache(before)


def _enable_compilation_cache(enabled: bool) -> None:
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_enable_compilation_cache", enabled)
    # jax reads the setting once, when it compiles the first program of a process.
    compilation_cache.reset_cache()


def _explain_refusal(name: str, message: str) -> PortError:
    if "lockfile" in message or "already in use" in message:
        return PortError(
            "another process holds libtpu, and this process may not share it",
            where=f"ALLOW_MULTIPLE_LIBTPU_LOAD={os.environ.get('ALLOW_MULTIPLE_LIBTPU_LOAD')}",
            fix="set ALLOW_MULTIPLE_LIBTPU_LOAD=1 before Python starts, or wait for the other process",
        )
    lines = message.strip().splitlines() or ["no reason given"]
    return PortError(
        f"libtpu cannot describe a TPU in this process: {lines[0]}",
        where=f"topology {name}",
        fix="start a fresh process if this one has started jax on a TPU or loaded another libtpu",
    )


@functools.cache
def start_backends() -> None:
    """Start jax's backends as `jax.devices()` does, without libtpu's noise on a host
    without a TPU.

    jax loads libtpu wherever it is installed. On a host without a TPU, libtpu first
    writes errors straight to file descriptor 2, which none of its environment variables
    silence, and jax goes on with the CPU.
    """
    import jax

    avoid_faults()

    platforms = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
    asks_libtpu = not platforms or "tpu" in platforms
    # On a TPU host, its messages matter.
    if not asks_libtpu or tpu_chips() or importlib.util.find_spec("libtpu") is None:
        return
    with _filtered_stderr(_drop_noise), recording_flags():
        jax.devices()


def tpu_chips() -> list[str]:
    """The device files through which this host reaches its TPU chips."""
    accelerators = Path("/dev").glob("accel[0-9]*")
    # Newer hosts have VFIO files, which may also be those of other devices.
    vfio_files: list[Path] = []
    if any(
        _read(vendor) == _GOOGLE
        for vendor in Path("/sys/bus/pci/devices").glob("*/vendor")
    ):
        vfio_files = list(Path("/dev/vfio").glob("[0-9]*"))
    return sorted(map(str, accelerators)) or sorted(map(str, vfio_files))


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _drop_noise(text: bytes) -> bytes:
    """Text without what libtpu writes on a host without a TPU."""
    return b"".join(
        line for line in text.splitlines(keepends=True) if not _NOISE.match(line)
    )


def _drop_all(text: bytes) -> bytes:
    return b""


@contextlib.contextmanager
def _filtered_stderr(keep: Callable[[bytes], bytes]) -> Iterator[None]:
    """Write only what `keep` returns of what goes to file descriptor 2 inside;
    everything if the block fails.
    """
    # The file descriptor belongs to the process: only one thread at a time may redirect
    # it. A file and not a pipe, because libtpu loads while it holds the interpreter's
    # lock, and nobody could read a pipe.
    with _loading, tempfile.TemporaryFile() as output:
        try:
            terminal = os.dup(2)
        except OSError:  # standard error is closed
            yield
            return
        _flush_stderr()
        os.dup2(output.fileno(), 2)
        try:
            yield
        except BaseException:
            # What it wrote may explain the failure.
            keep = bytes
            raise
        finally:
            _flush_stderr()
            os.dup2(terminal, 2)
            output.seek(0)
            os.write(terminal, keep(output.read()))
            os.close(terminal)


def _flush_stderr() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()
