"""The device mesh, and the start of several processes as one."""

import collections
import logging
import math
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from tpuport.errors import PortError

logger = logging.getLogger("tpuport")

AXES = ("dp", "sp", "tp")
# Seconds that jax waits for other processes by default.
_PATIENCE = 300


def create_mesh(dp: int = 1, sp: int = 1, tp: int = 1, *, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh with axes dp (batch), sp (sequence) and tp (weights), tp on the devices that are nearest to each other.

    Its axes are Auto: the compiler places what no rule names, as torchax models need it.

    Args:
        dp: devices, or groups of them, that share out the batch; -1 takes what the other axes leave.
        sp: devices that share out the sequence; may be the one -1.
        tp: devices that share out every weight; may be the one -1.
        devices: the devices to use, those of every process by default. All of them are used.

    Raises:
        PortError: a size below 1 other than one -1, or a product that is not the number of devices.
    """
    found = list(jax.devices() if devices is None else devices)
    shape = _sizes({"dp": dp, "sp": sp, "tp": tp}, found)
    return Mesh(_arrange(shape, found), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _sizes(asked: dict[str, int], devices: list[Any]) -> tuple[int, ...]:
    """The size of each axis, in order, the -1 filled in."""
    text, count = ", ".join(f"{axis}={size!r}" for axis, size in asked.items()), len(devices)
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in asked.values()):
        raise PortError("the size of a mesh axis is a whole number of devices", where=text)
    rest = [axis for axis, size in asked.items() if size == -1]
    if len(rest) > 1 or any(size < 1 and size != -1 for size in asked.values()):
        raise PortError("a mesh axis has at least one device, and one axis may be -1", where=text)
    if not devices:
        raise PortError("a mesh needs devices, and the list is empty", where="devices")
    known = math.prod(size for size in asked.values() if size != -1)
    if rest and count % known == 0:
        return tuple((asked | {rest[0]: count // known}).values())
    if rest or known != count:
        takes = f"a multiple of {known}" if rest else str(known)
        kind = f"{count} {devices[0].platform} device{'s' * (count > 1)}"
        fix = _suggestion(asked, count)
        if devices[0].platform == "cpu" and known > count:
            fix += f"; {_pretending(known)}"
        raise PortError(f"the mesh takes {takes}, and there are {kind}", where=text, fix=fix)
    return tuple(asked.values())


def _pretending(count: int) -> str:
    return (
        f"to try it on this CPU, let it stand in for {count} devices, before jax starts: "
        f"XLA_FLAGS=--xla_force_host_platform_device_count={count} JAX_PLATFORMS=cpu"
    )


def check_mesh(mesh: Any) -> None:
    """PortError unless `mesh` is None or a mesh whose axes are all Auto."""
    if mesh is None:
        return
    if not isinstance(mesh, Mesh):
        raise PortError(
            f"this is a {type(mesh).__name__} and not a mesh",
            where=f"mesh={mesh!r:.60}",
            fix="mesh=tpuport.create_mesh(tp=-1)",
        )
    others = {
        axis: kind.name
        for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind != AxisType.Auto
    }
    if others:
        raise PortError(
            "a model of torch needs a mesh whose axes are Auto: its code says nothing of shardings",
            where=", ".join(f"axis {axis!r} is {kind}" for axis, kind in others.items()),
            fix="make it with tpuport.create_mesh, or with "
            "jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto,) * number_of_axes)",
        )


def _suggestion(asked: dict[str, int], count: int) -> str:
    """What to write instead: one size changed, where that is enough, or fewer devices."""
    options = []
    if -1 not in asked.values():
        for axis in reversed(AXES):
            others = math.prod(size for other, size in asked.items() if other != axis)
            if count % others == 0:
                options.append(f"{axis}={count // others}")
        known = math.prod(asked.values())
        if known < count:
            options.append(f"devices=jax.devices()[:{known}]")
    return " or ".join(options) or f"choose sizes whose product is {count}"


def _arrange(shape: tuple[int, ...], devices: list[Any]) -> np.ndarray:
    """The devices [dp, sp, tp] by topology: the later the axis, the closer together."""
    slices = collections.Counter(getattr(device, "slice_index", 0) for device in devices)
    if len(slices) == 1:
        return _arrange_slice(shape, devices)
    if len(set(slices.values())) > 1:
        each = ", ".join(f"{number} in slice {name}" for name, number in sorted(slices.items()))
        raise PortError("slices with different numbers of devices make no mesh", where=each)
    # Between slices is a slower network: dp, which talks least, crosses it first, and tp last.
    left, outer = len(slices), []
    for size in shape:
        outer.append(math.gcd(size, left))
        left //= outer[-1]
    if outer[-1] > 1:
        logger.warning("tp=%d reaches over %d slices: every layer waits for the network between them; dp=%d would not",
                       shape[-1], outer[-1], len(slices))  # fmt: skip
    inner = tuple(size // crossed for size, crossed in zip(shape, outer, strict=True))
    blocks = np.empty(outer, dtype=object)
    for index, name in zip(np.ndindex(*outer), sorted(slices), strict=True):
        blocks[index] = _arrange_slice(inner, [d for d in devices if getattr(d, "slice_index", 0) == name])
    return np.block(blocks.tolist())


def _arrange_slice(shape: tuple[int, ...], devices: list[Any]) -> np.ndarray:
    try:
        # A physical axis is split between two of ours only where the sizes leave no other way.
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    except (AssertionError, NotImplementedError, ValueError) as error:
        logger.warning("these devices form no box in the topology, so the mesh keeps their order: %s", error)
        return np.array(devices, dtype=object).reshape(shape)


def initialize_distributed(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    **options: Any,
) -> None:
    """Join this process to the others, on this host or on many, as one jax system: jax.devices() are then those of all.

    To be called by every process, before anything touches a device. On TPU pods, SLURM and Open MPI jax finds out all
    three arguments; elsewhere they are needed. Does nothing when the process has joined already.

    Args:
        coordinator_address: "host:port" of process 0, reachable from all; JAX_COORDINATOR_ADDRESS by default.
        num_processes: how many processes there are.
        process_id: this one's number, from 0.
        options: further arguments of jax.distributed.initialize, such as initialization_timeout in seconds.

    Raises:
        PortError: the arguments contradict each other or an earlier call, devices are in use already, no cluster is
            found, process 0 does not answer, or cannot listen. When another process does not come, jax itself ends
            this one after initialization_timeout seconds, 300 by default.
    """
    _check_arguments(coordinator_address, num_processes, process_id)
    if jax.distributed.is_initialized():
        _check_earlier(num_processes, process_id)
        return
    if _backend_is_up():
        raise PortError(
            "this process has started its devices already, without the others",
            where="initialize_distributed",
            fix="call it first: before create_mesh, jax.devices() and the first array",
        )
    if jax.config.jax_cpu_collectives_implementation in (None, "none"):  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    _join(coordinator_address, num_processes, process_id, options)


def _check_arguments(
    coordinator_address: str | None, num_processes: int | None, process_id: int | None
) -> None:
    address = coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS")
    if (num_processes is None) != (process_id is None) or (
        num_processes is None and coordinator_address is not None
    ):
        raise PortError(
            "processes are told where to meet, how many they are and which one each is, or nothing of it",
            where=f"{coordinator_address=}, {num_processes=}, {process_id=}",
            fix="give all three, or none on a TPU pod, SLURM or Open MPI",
        )
    if num_processes is None or process_id is None:
        return
    if num_processes < 1 or not 0 <= process_id < num_processes:
        raise PortError(f"there is no process {process_id} of {num_processes}", fix="number them from 0")
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise PortError(
            f"{address!r} is not host:port", where="coordinator_address", fix="such as 10.0.0.1:1234"
        )


def _check_earlier(num_processes: int | None, process_id: int | None) -> None:
    from jax._src.distributed import global_state  # jax.process_index() would start the devices

    joined = (global_state.process_id, global_state.num_processes)
    if num_processes is not None and joined != (process_id, num_processes):
        raise PortError(
            f"this process has joined already, as number {joined[0]} of {joined[1]}",
            where=f"{process_id=}, {num_processes=}",
            fix="call initialize_distributed once, or each time with the same arguments",
        )
    logger.info("this process has joined already, as number %d of %d", *joined)


def _backend_is_up() -> bool:
    from jax._src import xla_bridge  # there is no public way to ask

    return xla_bridge.backends_are_initialized()


def _join(
    address: str | None, num_processes: int | None, process_id: int | None, options: dict[str, Any]
) -> None:
    seconds = options.get("initialization_timeout", _PATIENCE)
    if num_processes is not None and process_id is not None:
        address = address or os.environ["JAX_COORDINATOR_ADDRESS"]
        logger.info("process %d of %d meets the others at %s; jax ends it if they do not come in %d seconds",
                    process_id, num_processes, address, seconds)  # fmt: skip
        if process_id > 0:
            _wait_for(address, seconds)
        elif "coordinator_bind_address" not in options:
            _check_free(address)
    try:
        jax.distributed.initialize(address, num_processes, process_id, **options)
    except ValueError as error:
        raise PortError(
            "no cluster is found to join",
            where=str(error),
            fix="give coordinator_address, num_processes and process_id",
        ) from error
    logger.info("all processes have joined")


def _check_free(address: str) -> None:
    """Check that process 0 can listen: on a port in use jax would wait for ever."""
    port = int(address.rpartition(":")[2])
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=dual).close()
    except OSError as error:
        raise PortError(
            "process 0 cannot listen for the others",
            where=f"coordinator_address={address!r}: {error}",
            fix="name a free port of the host that process 0 runs on",
        ) from error


def _wait_for(address: str, seconds: float) -> None:
    """Wait until process 0 listens: jax itself would end this process without an exception."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except OSError as error:
            if time.monotonic() > end:
                raise PortError(
                    f"process 0 did not answer in {seconds} seconds",
                    where=f"coordinator_address={address!r}: {error}",
                    fix="start process 0, with an address that this host reaches",
                ) from error
            time.sleep(0.2)
        else:
            return
