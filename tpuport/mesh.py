"""The device mesh and the start of several hosts."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from tpuport.errors import PortError

logger = logging.getLogger("tpuport")

AXES = ("dp", "sp", "tp")


def create_mesh(dp: int = 1, sp: int = 1, tp: int = 1, *, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh with axes dp (batch), sp (sequence) and tp (weights), tp on the devices that are nearest to each other.

    Args:
        dp, sp, tp: sizes; one of them may be -1 and takes the devices that the others leave.
        devices: the devices to use, all of them by default.

    Raises:
        PortError: a size below 1 other than one -1, or a product that is not the number of devices.
    """
    found = list(jax.devices() if devices is None else devices)
    sizes = _filled({"dp": dp, "sp": sp, "tp": tp}, len(found))
    return Mesh(_ordered(tuple(sizes.values()), found), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _filled(sizes: dict[str, int], count: int) -> dict[str, int]:
    asked = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if any(size < 1 and size != -1 for size in sizes.values()) or len(open_axes) > 1:
        raise PortError("a mesh axis is at least 1, and one of them may be -1", where=asked)
    known = math.prod(size for size in sizes.values() if size != -1)
    if open_axes and count % known == 0:
        return sizes | {open_axes[0]: count // known}
    if open_axes or known != count:
        fix = f"choose sizes whose product is {count}, or leave one at -1"
        if not open_axes and known < count:
            fix += f", or pass devices=jax.devices()[:{known}]"
        raise PortError(f"{asked} does not fit {count} device{'s' * (count != 1)}", where="create_mesh", fix=fix)
    return sizes


def _ordered(shape: tuple[int, ...], devices: list[Any]) -> np.ndarray:
    """Devices by topology; where slices are joined by a slower network, the batch axis crosses it."""
    slices = {getattr(device, "slice_index", 0) for device in devices}
    if len(slices) > 1 and shape[0] % len(slices) == 0:
        inner = (shape[0] // len(slices), *shape[1:])
        return mesh_utils.create_hybrid_device_mesh(inner, (len(slices), 1, 1), devices, allow_split_physical_axes=True)
    return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)


def initialize_distributed(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    **options: Any,
) -> None:
    """Join the processes of several hosts into one jax system; on TPU pods and SLURM every argument may be left out.

    Call it in each process before anything touches a device. Does nothing when the process has joined already.

    Args:
        coordinator_address: "host:port" of process 0, reachable from all.
        num_processes: how many processes there are.
        process_id: this one's number, from 0.
        options: further arguments of jax.distributed.initialize.

    Raises:
        PortError: some of the three are given and others not, a number out of range, or devices are in use already.
    """
    if jax.distributed.is_initialized():
        logger.info("this process is already number %d of %d", jax.process_index(), jax.process_count())
        return
    given = {"coordinator_address": coordinator_address, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        raise PortError("give all three of these, or none", where=", ".join(missing))
    if num_processes is not None and process_id is not None and not 0 <= process_id < num_processes:
        raise PortError(f"process_id {process_id} of {num_processes} processes", fix="number them from 0")
    if _backend_is_up():
        raise PortError(
            "jax has started its devices already, alone",
            where="initialize_distributed",
            fix="call it first: before create_mesh, before any array is made",
        )
    jax.distributed.initialize(coordinator_address, num_processes, process_id, **options)
    logger.info("process %d of %d, %d of %d devices", jax.process_index(), jax.process_count(),
                jax.local_device_count(), jax.device_count())  # fmt: skip


def _backend_is_up() -> bool:
    from jax._src import xla_bridge  # no public way to ask

    return xla_bridge.backends_are_initialized()
