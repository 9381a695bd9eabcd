"""What the GPU shim answers for `torch.distributed`: one process, and meshes and
wrappers of one device.

Over one device, a sharded tensor is the tensor and a wrapped module computes what the
module computes. More devices than one are refused: `tpuport.create_mesh` and
`tpuport.port` have them.
"""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tpuport.errors import PortError


def nothing(*args: Any, **kwargs: Any) -> None:
    """Whatever is asked."""


class Mesh:
    """A `DeviceMesh` of one device.

    Args:
        device_type: as it was asked for.
        names: of its dimensions; None if they have none.
    """

    def __init__(
        self, device_type: str, dimensions: int, names: Sequence[str] | None
    ) -> None:
        self.device_type = device_type
        self.ndim = dimensions
        self.mesh_dim_names = None if names is None else tuple(names)
        self.shape = (1,) * dimensions
        self.mesh = torch.zeros(self.shape, dtype=torch.int)

    def __getitem__(self, name: str | Sequence[str]) -> "Mesh":
        names = (name,) if isinstance(name, str) else tuple(name)
        unknown = set(names) - set(self.mesh_dim_names or ())
        if unknown:
            raise KeyError(
                f"the mesh has the dimensions {self.mesh_dim_names}, and none called {unknown.pop()!r}"
            )
        return Mesh(self.device_type, len(names), names)

    def size(self, mesh_dim: int | None = None) -> int:
        """1."""
        return 1

    def get_rank(self) -> int:
        """0."""
        return 0

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """0."""
        return 0

    def get_coordinate(self) -> list[int]:
        """Of the one device."""
        return [0] * self.ndim

    get_group = nothing


class Wrapped(torch.nn.Module):
    """A module as DistributedDataParallel and FSDP wrap it, `.module` being the
    module.
    """

    def __init__(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own call."""
        return self.module(*args, **kwargs)


def _init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    **options: Any,
) -> Mesh:
    if math.prod(mesh_shape) != 1:
        sizes = ", ".join(
            f"{name}={size}"
            for name, size in zip(mesh_dim_names or "", mesh_shape, strict=False)
        )
        raise PortError(
            f"a mesh of {math.prod(mesh_shape)} processes is asked for, and the GPU shim answers as one process",
            where="init_device_mesh",
            fix=f"build the model over one; then tpuport.port(model, mesh=tpuport.create_mesh({sizes or 'tp=8'})) "
            "shards it, by the model's own plan or rules=",
        )
    return Mesh(device_type, len(mesh_shape), mesh_dim_names)


def _first(value: Any, *args: Any, **kwargs: Any) -> Any:
    """The module or tensor: over one device, nothing is distributed."""
    return value


def _all_gather(
    tensor_list: list[torch.Tensor], tensor: torch.Tensor, *args: Any, **kwargs: Any
) -> None:
    tensor_list[0].copy_(tensor)


# Modules whose functions are answered, which are imported for it.
MODULES = ("torch.distributed.tensor.parallel", "torch.distributed.fsdp")

# Classes that wrap a module, by the modules in which people find them.
WRAPPERS = {
    "torch.nn.parallel": "DistributedDataParallel",
    "torch.nn.parallel.distributed": "DistributedDataParallel",
    "torch.distributed.fsdp": "FullyShardedDataParallel",
}


class Distributed:
    """`torch.distributed` for one process: rank 0 of 1."""

    def __init__(self) -> None:
        self.initialized = False

    def answers(self) -> dict[str, Callable[..., Any]]:
        """Functions of torch.distributed by name."""
        return {
            "all_gather": _all_gather,
            "all_reduce": nothing,
            "barrier": nothing,
            "broadcast": nothing,
            "destroy_process_group": self._destroy,
            "device_mesh.init_device_mesh": _init_device_mesh,
            "fsdp.fully_shard": _first,
            "get_backend": lambda *args, **kwargs: "gloo",
            "get_node_local_rank": lambda *args, **kwargs: 0,
            "get_rank": lambda *args, **kwargs: 0,
            "get_world_size": lambda *args, **kwargs: 1,
            "init_device_mesh": _init_device_mesh,
            "init_process_group": self._initialize,
            "is_initialized": lambda: self.initialized,
            "new_group": nothing,
            "tensor.distribute_module": _first,
            "tensor.distribute_tensor": _first,
            "tensor.parallel.parallelize_module": _first,
        }

    def _initialize(self, *args: Any, world_size: int = -1, **kwargs: Any) -> None:
        size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        if size > 1:
            raise PortError(
                f"{size} processes are started, and the GPU shim answers each as the only one",
                where="init_process_group",
                fix="start one process (python script.py); its "
                f"tpuport.port(model, mesh=tpuport.create_mesh(dp={size})) uses several devices",
            )
        self.initialized = True

    def _destroy(self, *args: Any) -> None:
        self.initialized = False
