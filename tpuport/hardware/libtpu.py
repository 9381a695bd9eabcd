"""Described TPUs: libtpu contains the whole compiler, and compiles for a slice that nobody has rented.

No TPU is used or needed; libtpu itself must be installed (Linux on x86-64).
"""

import contextlib
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from tpuport.errors import PortError
from tpuport.hardware.generations import generation_of_kind
from tpuport.hardware.slices import parse_slice

if TYPE_CHECKING:
    from jax.experimental.topologies import TopologyDescription
    from jax.stages import Compiled

# libtpu reads these when it is loaded: ask no metadata server, and share the machine with other processes.
LIBTPU_ENVIRONMENT: Final = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
_loading = threading.Lock()


def generation_of(topology: "TopologyDescription") -> str:
    """The generation of a described TPU: a key of `GENERATIONS`."""
    kind = topology.devices[0].device_kind
    name = generation_of_kind(kind)
    assert name is not None, kind
    return name


def described(name: str) -> "TopologyDescription":
    """A described TPU slice for jax to compile for: its `devices` go into a mesh or a sharding.

    Args:
        name: a generation and a layout, such as "v5e:2x4"; a generation alone means its smallest slice.

    Raises:
        PortError: there is no such slice, libtpu is not installed, or this process cannot load it.
    """
    requested = parse_slice(name)
    if importlib.util.find_spec("libtpu") is None and not os.environ.get("TPU_LIBRARY_PATH"):
        raise PortError(
            "libtpu is not installed, and it is the compiler for TPUs",
            where=f"topology {name}",
            fix="pip install libtpu (Linux on x86-64; no TPU is needed)",
        )
    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies

    for variable, value in LIBTPU_ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    try:
        with _muted_libtpu():
            return topologies.get_topology_desc(requested.name, platform="tpu", **requested.libtpu_options)
    except JaxRuntimeError as error:
        raise _explain_refusal(name, str(error)) from None


def compiled(
    function: Callable, *arguments: Any, topology: "TopologyDescription", **jit_options: Any
) -> "Compiled":
    """The function's program for one device of a described TPU, or for the mesh that its arguments are sharded on.

    Args:
        function: traced with the arguments; may be jitted already.
        arguments: trees of jax.ShapeDtypeStruct; those without a sharding go to the first device.
        jit_options: for `jax.jit`.
    """
    import jax
    from jax.sharding import SingleDeviceSharding

    first_device = SingleDeviceSharding(topology.devices[0])

    def place(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None) or first_device)

    # jax caches traces by function, but block sizes depend on the assumed generation: a new function for each call.
    def new_function(*arguments: Any) -> Any:
        return function(*arguments)

    return jax.jit(new_function, **jit_options).lower(*jax.tree.map(place, arguments)).compile()


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


@contextlib.contextmanager
def _muted_libtpu() -> Iterator[None]:
    """Keep what libtpu writes straight to file descriptor 2 off the terminal, unless the block fails."""
    # The file descriptor belongs to the process: only one thread at a time may redirect it.
    with _loading, tempfile.TemporaryFile() as output:
        try:
            terminal = os.dup(2)
        except OSError:  # standard error is closed
            yield
            return
        if sys.stderr is not None:
            sys.stderr.flush()
        os.dup2(output.fileno(), 2)
        try:
            yield
        except BaseException:
            output.seek(0)
            os.write(terminal, output.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
