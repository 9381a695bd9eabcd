"""Described TPUs: libtpu holds the whole compiler, and compiles for a slice that nobody has rented.

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
from tpuport.topology import slices

if TYPE_CHECKING:
    from jax.experimental.topologies import TopologyDescription
    from jax.stages import Compiled

# The smallest slice of each generation that libtpu describes, which its bare name stands for.
GENERATIONS: Final = {
    "v4": "v4:2x2x1",
    "v5e": "v5e:2x2",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:2x2",
    "tpu7x": "tpu7x:2x2x1",
}
_KINDS: Final = {
    "TPU v4": "v4",
    "TPU v5e": "v5e",
    "TPU v5 lite": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6e": "v6e",
    "TPU v6 lite": "v6e",
    "TPU7x": "tpu7x",
    "TPU v7x": "tpu7x",
}
# Read by libtpu when it is loaded: ask no metadata server, and share the machine with other processes.
ENVIRONMENT: Final = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
_loading = threading.Lock()


def generation_of_kind(kind: str) -> str | None:
    """The generation of a device with this `device_kind`; None for what is no TPU, or one not known here."""
    return _KINDS.get(kind)


def generation_of(topology: "TopologyDescription") -> str:
    """The generation of a described TPU: a key of `GENERATIONS`."""
    return _KINDS[topology.devices[0].device_kind]


def full_name(name: str) -> str:
    """The name with its slice: "v6e" is "v6e:2x2", and "v6e-8" is "v6e:2x4".

    Raises:
        PortError: no such generation, or no such slice; names those that are near.
    """
    return GENERATIONS.get(name) or slices.check(name)


def described(name: str) -> "TopologyDescription":
    """A TPU slice that is not there, for jax to compile for: its `devices` go into a mesh or a sharding.

    Args:
        name: a generation and a layout, such as "v5e:2x4"; a generation alone means its smallest slice.

    Raises:
        PortError: there is no such slice, libtpu is not installed, or it cannot be loaded here.
    """
    full = full_name(name)
    if importlib.util.find_spec("libtpu") is None and not os.environ.get("TPU_LIBRARY_PATH"):
        raise PortError(
            "libtpu is not installed, and it is the compiler for TPUs",
            where=f"topology {name}",
            fix="pip install libtpu (Linux on x86-64; no TPU is needed)",
        )
    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies

    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    try:
        with _quiet():
            return topologies.get_topology_desc(full, platform="tpu", **slices.options(full))
    except JaxRuntimeError as error:
        raise _refused(name, str(error)) from None


def compiled(
    function: Callable, *arguments: Any, topology: "TopologyDescription", **jit_options: Any
) -> "Compiled":
    """The function's program for one device of a described TPU, or for the mesh that its arguments are sharded on.

    Args:
        function: traced with the arguments; may be jitted already.
        arguments: trees of jax.ShapeDtypeStruct; one without a sharding is placed on the first device.
        jit_options: for `jax.jit`.
    """
    import jax
    from jax.sharding import SingleDeviceSharding

    first = SingleDeviceSharding(topology.devices[0])

    def placed(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None) or first)

    def fresh(*arguments: Any) -> Any:
        return function(*arguments)

    # A function of its own for each call: jax keeps what it traced, and block sizes depend on the generation assumed.
    return jax.jit(fresh, **jit_options).lower(*jax.tree.map(placed, arguments)).compile()


def _refused(name: str, message: str) -> PortError:
    line = (message.strip().splitlines() or ["no reason given"])[0]
    if "lockfile" in message or "already in use" in message:
        return PortError(
            "another process holds libtpu, and this one was told to be alone with it",
            where=f"ALLOW_MULTIPLE_LIBTPU_LOAD={os.environ.get('ALLOW_MULTIPLE_LIBTPU_LOAD')}",
            fix="set ALLOW_MULTIPLE_LIBTPU_LOAD=1 before Python starts, or wait for the other process",
        )
    return PortError(
        f"libtpu cannot describe a TPU here: {line}",
        where=f"topology {name}",
        fix="where this process has already started jax on a TPU or loaded another libtpu, use a fresh one",
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what libtpu writes straight to file descriptor 2 off the terminal, unless the block fails."""
    with _loading, tempfile.TemporaryFile() as noise:
        try:
            terminal = os.dup(2)
        except OSError:  # there is no standard error
            yield
            return
        if sys.stderr is not None:
            sys.stderr.flush()
        os.dup2(noise.fileno(), 2)
        try:
            yield
        except BaseException:
            noise.seek(0)
            os.write(terminal, noise.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
