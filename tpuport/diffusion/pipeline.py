"""`tpuport.port(pipeline)`: the user's own pipeline object, its models on the devices, called as before.

The pipeline's class becomes a subclass of itself, of the same name, whose `__call__` runs the user's code under
`mixing.mixed()`. Its `device` is the host: what the pipeline makes out of nothing is made there, as torch makes it;
latents and predictions are on the device from the first call of the denoiser on.
"""

import contextlib
import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from jax.sharding import Mesh

from tpuport import checkpoint, pytrees
from tpuport.checkpoint import mesh_of
from tpuport.diffusion import mixing
from tpuport.diffusion.components import compile_forward, restore_forward
from tpuport.diffusion.vae import compile_parts, is_autoencoder, restore_parts
from tpuport.errors import PortError
from tpuport.sharding import ShardingRules

logger = logging.getLogger("tpuport")


@dataclasses.dataclass
class Ported:
    """What `port_pipeline` did to one pipeline.

    Attributes:
        mesh: where its models are.
        components: the models by the name that the pipeline has for them.
    """

    mesh: Mesh
    components: dict[str, torch.nn.Module]


def port_pipeline(
    pipe: Any,
    *,
    mesh: Mesh | None = None,
    rules: ShardingRules | Mapping[str, ShardingRules] | None = None,
    dtype: torch.dtype | str | None = None,
    allow: str | Iterable[str] = (),
    components: Iterable[str] | None = None,
) -> Any:
    """Move the models of a diffusers pipeline to the devices of a mesh, in place, and compile them."""
    for name, module in pipe.components.items():
        if isinstance(module, torch.nn.Module):
            checkpoint.port(module, mesh=mesh, allow=allow, dtype=dtype)
            _compile(module)
    pipe.__class__ = _ported_class(type(pipe))
    pipe._tpuport = Ported(mesh_of(pipe.transformer), {})
    return pipe


def _compile(module):
    if is_autoencoder(module):
        compile_parts(module)
    else:
        compile_forward(module)


class _Methods:
    @property
    def device(self):
        return torch.device("cpu")

    @property
    def _execution_device(self):
        return torch.device("cpu")


@functools.cache
def _ported_class(cls: type) -> type:
    original = cls.__call__

    @functools.wraps(original)
    def __call__(self, *args, **kwargs):
        with mixing.mixed(self._tpuport.mesh):
            return checkpoint.to_cpu(original(self, *args, **kwargs))

    return type(
        cls.__name__,
        (_Methods, cls),
        {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__call__": __call__},
    )
