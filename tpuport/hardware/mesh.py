"""The device mesh, and joining several processes into a single jax system."""

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

from tpuport.base.plurals import count_noun, is_or_are
from tpuport.errors import PortError
from tpuport.hardware import process_watch, start_backends
from tpuport.internals import jax_internals

logger = logging.getLogger("tpuport")

AXES = ("dp", "sp", "tp")
# How many seconds jax waits for other processes by default.
_JOIN_SECONDS = 300


def create_mesh(
    dp: int = 1, sp: int = 1, tp: int = 1, *, devices: Sequence[Any] | None = None
) -> Mesh:
    """A mesh with axes dp (batch), sp (sequence) and tp (weights), tp on the devices
    that are nearest to each other.

    Its axes are Auto, as torchax models need: the compiler lays out everything that no
    rule names.

    Args:
        dp: number of devices, or groups of them, that divide the batch; -1 takes the
            devices that the other axes leave.
        sp: number of devices that divide the sequence; may be -1 instead of dp.
        tp: number of devices that divide every weight; may be -1 instead of dp.
        devices: the devices to use, those of every process by default. All of them are
            used.

    Raises:
        PortError: a size below 1 other than a single -1, or a product that is not the
            number of devices.
    """
    if devices is None:
        start_backends()
        devices = jax.devices()
    mesh_devices = list(devices)
    shape = _axis_sizes({"dp": dp, "sp": sp, "tp": tp}, mesh_devices)
    return Mesh(
        _arrange_devices(shape, mesh_devices),
        AXES,
        axis_types=(AxisType.Auto,) * len(AXES),
    )


def _axis_sizes(requested: dict[str, int], devices: list[Any]) -> tuple[int, ...]:
    """The size of each axis, in order, with the -1 replaced."""
    text = ", ".join(f"{axis}={size!r}" for axis, size in requested.items())
    # Not isinstance, by which True would be a size.
    if any(type(size) is not int for size in requested.values()):
        raise PortError(
            "the size of a mesh axis is a whole number of devices", where=text
        )
    # -1 stands for whatever the other axes leave.
    open_axes = [axis for axis, size in requested.items() if size == -1]
    fixed_sizes = [size for size in requested.values() if size != -1]
    if len(open_axes) > 1 or min(fixed_sizes, default=1) < 1:
        raise PortError(
            "a mesh axis has at least one device, and one axis may be -1",
            where=text,
            fix="give positive sizes, or -1 for one of them",
        )
    if not devices:
        raise PortError("a mesh needs devices, and the list is empty", where="devices")
    count, product = len(devices), math.prod(fixed_sizes)
    sizes = requested | dict.fromkeys(open_axes, count // product)
    if math.prod(sizes.values()) == count:
        return tuple(sizes.values())
    platform = devices[0].platform
    needed = count_noun(product, "device")
    if open_axes:
        needed = f"a multiple of {needed}"
    fix = _suggest_sizes(requested, count)
    if platform == "cpu" and product > count:
        fix += (
            f"; to simulate {product} devices on this CPU, set before jax starts: "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={product} JAX_PLATFORMS=cpu"
        )
    available = f"{is_or_are(count)} {count_noun(count, f'{platform} device')}"
    raise PortError(
        f"the mesh needs {needed}, and there {available}", where=text, fix=fix
    )


def _suggest_sizes(requested: dict[str, int], count: int) -> str:
    """What to write instead: another size for a single axis, if that is enough, or
    fewer devices.
    """
    options = []
    if -1 not in requested.values():
        product = math.prod(requested.values())
        # tp first: that is the axis that most users mean to change.
        for axis in reversed(AXES):
            others = product // requested[axis]
            if count % others == 0:
                options.append(f"{axis}={count // others}")
        if product < count:
            options.append(f"devices=jax.devices()[:{product}]")
    return " or ".join(options) or f"choose sizes whose product is {count}"


def dividing_axis(mesh: Mesh, axis: str, size: int) -> str | None:
    """The axis, as an entry of a PartitionSpec, if its several devices divide a
    dimension of `size` evenly.
    """
    parts = mesh.shape.get(axis, 1)
    if parts > 1 and size % parts == 0:
        return axis
    return None


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
    # jax.make_mesh gives Explicit axes by default in newer versions.
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    others = [
        f"axis {axis!r} is {kind.name}"
        for axis, kind in types.items()
        if kind != AxisType.Auto
    ]
    if others:
        raise PortError(
            "a torch model needs a mesh whose axes are Auto, because its code states no shardings",
            where=", ".join(others),
            fix="make it with tpuport.create_mesh, or with "
            "jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto,) * number_of_axes)",
        )


def _arrange_devices(shape: tuple[int, ...], devices: list[Any]) -> np.ndarray:
    """The devices [dp, sp, tp] by topology: the later the axis, the closer together its
    devices.
    """
    slices = collections.Counter(map(_slice_number, devices))
    if len(slices) == 1:
        return _arrange_slice(shape, devices)
    if len(set(slices.values())) > 1:
        counts = ", ".join(
            f"{count} in slice {number}" for number, count in sorted(slices.items())
        )
        raise PortError(
            "slices with different numbers of devices cannot form a mesh",
            where=counts,
            fix="pass the same number of devices of each slice in devices=",
        )
    # The network between slices is slower: dp, which communicates least, crosses it
    # first, and tp last.
    remaining = len(slices)
    crossings = []
    for size in shape:
        crossings.append(math.gcd(size, remaining))
        remaining //= crossings[-1]
    if crossings[-1] > 1:
        logger.warning(
            "tp=%d reaches over %d slices: every layer waits for the network between them; dp=%d would not",
            shape[-1], crossings[-1], len(slices),
        )  # fmt: skip
    shape_in_slice = tuple(
        size // crossing for size, crossing in zip(shape, crossings, strict=True)
    )
    blocks = np.empty(crossings, dtype=object)
    for index, number in zip(np.ndindex(*crossings), sorted(slices), strict=True):
        slice_devices = [
            device for device in devices if _slice_number(device) == number
        ]
        blocks[index] = _arrange_slice(shape_in_slice, slice_devices)
    return np.block(blocks.tolist())


def _slice_number(device: Any) -> int:
    # Only TPUs have slices.
    return getattr(device, "slice_index", 0)


def _arrange_slice(shape: tuple[int, ...], devices: list[Any]) -> np.ndarray:
    try:
        # Two axes of the mesh share a physical axis only if the sizes allow nothing
        # else.
        return mesh_utils.create_device_mesh(
            shape, devices, allow_split_physical_axes=True
        )
    except (AssertionError, NotImplementedError, ValueError) as error:
        logger.warning(
            "these devices form no box in the topology, so the mesh keeps their order: %s",
            error,
        )
        return np.array(devices, dtype=object).reshape(shape)


def initialize_distributed(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_timeout_seconds: float = 100,
    stall_timeout_seconds: float | None = 600,
    **options: Any,
) -> None:
    """Join this process to the others, on this host or on several, so that
    jax.devices() are those of all of them.

    Every process must call it, before anything touches a device. On TPU pods, SLURM and
    Open MPI jax finds out all three arguments; elsewhere they are required. Does
    nothing if the process has joined already.

    Args:
        coordinator_address: "host:port" of process 0, reachable from all;
            JAX_COORDINATOR_ADDRESS by default.
        num_processes: how many processes there are.
        process_id: the number of this process, from 0.
        heartbeat_timeout_seconds: a process that dies, is stopped or fails ends the
            others in this time, with exit code 1 and a sentence that names it.
        stall_timeout_seconds: so does one that runs, but has not begun a call of
            tpuport in this time that others have begun; it may compile meanwhile. None:
            the others wait for ever.
        options: further arguments of jax.distributed.initialize, such as
            initialization_timeout in seconds.

    Raises:
        PortError: the arguments contradict each other or an earlier call, devices are
            in use already, no cluster was detected, process 0 does not answer, or
            cannot listen. If another process does not join, jax itself ends this one
            after initialization_timeout seconds, 300 by default.
    """
    _check_arguments(coordinator_address, num_processes, process_id)
    _check_seconds(heartbeat_timeout_seconds=heartbeat_timeout_seconds)
    if stall_timeout_seconds is not None:
        _check_seconds(stall_timeout_seconds=stall_timeout_seconds)
    if jax.distributed.is_initialized():
        _check_earlier_call(num_processes, process_id)
        return
    if jax_internals.has_started_devices():
        raise PortError(
            "this process has started its devices already, without the others",
            where="initialize_distributed",
            fix="call it first: before create_mesh, jax.devices() and the first array",
        )
    # Without an implementation, CPU devices of several processes cannot communicate.
    if jax.config.jax_cpu_collectives_implementation in (None, "none"):  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Process 0 itself is missed by jax's own heartbeats alone.
    options["heartbeat_timeout_seconds"] = math.ceil(heartbeat_timeout_seconds)
    _join(coordinator_address, num_processes, process_id, options)
    process_watch.start(heartbeat_timeout_seconds, stall_timeout_seconds)


def _check_arguments(
    coordinator_address: str | None, num_processes: int | None, process_id: int | None
) -> None:
    address = coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS", "")
    if num_processes is None or process_id is None:
        if (coordinator_address, num_processes, process_id) != (None, None, None):
            raise PortError(
                "some arguments are missing: the address of process 0, the number of processes, and the number of "
                "this one belong together",
                where=f"{coordinator_address=}, {num_processes=}, {process_id=}",
                fix="give all three, or none on a TPU pod, SLURM or Open MPI",
            )
        return
    if num_processes < 1 or not 0 <= process_id < num_processes:
        raise PortError(
            f"there is no process {process_id} of {num_processes}",
            fix="number them from 0",
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise PortError(
            f"{address or None!r} is not host:port",
            where="coordinator_address",
            fix="such as 10.0.0.1:1234",
        )


def _check_seconds(**options: Any) -> None:
    for name, seconds in options.items():
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not 1 <= seconds < 10**6
        ):
            raise PortError(
                f"{name} is {seconds!r:.60}",
                where="initialize_distributed",
                fix="a second or more",
            )


def _check_earlier_call(num_processes: int | None, process_id: int | None) -> None:
    state = jax_internals.distributed_state()
    earlier = (state.process_id, state.num_processes)
    if num_processes is not None and earlier != (process_id, num_processes):
        raise PortError(
            f"this process has joined already, as number {earlier[0]} of {earlier[1]}",
            where=f"{process_id=}, {num_processes=}",
            fix="call initialize_distributed once, or each time with the same arguments",
        )
    logger.info("this process has joined already, as number %d of %d", *earlier)


def _join(
    address: str | None,
    num_processes: int | None,
    process_id: int | None,
    options: dict[str, Any],
) -> None:
    if num_processes is not None and process_id is not None:
        seconds = options.get("initialization_timeout", _JOIN_SECONDS)
        address = address or os.environ["JAX_COORDINATOR_ADDRESS"]
        logger.info(
            "process %d of %d joins the others at %s; jax ends it if they are not there in %d seconds",
            process_id, num_processes, address, seconds,
        )  # fmt: skip
        if process_id > 0:
            _wait_for_coordinator(address, seconds)
        elif "coordinator_bind_address" not in options:
            _check_port_is_free(address)
    try:
        jax.distributed.initialize(address, num_processes, process_id, **options)
    except ValueError as error:
        raise PortError(
            "jax detects no cluster to join",
            where=str(error),
            fix="give coordinator_address, num_processes and process_id",
        ) from error
    logger.info("all processes have joined")


def _check_port_is_free(address: str) -> None:
    """Check that process 0 can listen: jax would wait forever for a port that is in
    use.
    """
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


def _wait_for_coordinator(address: str, seconds: float) -> None:
    """Wait until process 0 listens: jax itself would end this process without an
    exception.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise PortError(
                    f"process 0 did not answer in {seconds} seconds",
                    where=f"coordinator_address={address!r}: {error}",
                    fix="start process 0, with an address that this host reaches",
                ) from error
            time.sleep(0.2)
        else:
            return
