"""`port` and `to_cpu`: of one model, or of a whole pipeline of diffusers."""

import sys
from typing import Any

import torch

from tpuport import checkpoint
from tpuport.library_classes import is_pipeline


def port(model: Any, **options: Any) -> Any:
    """Move a model, or every model of a diffusers pipeline, to the devices of a mesh, in place.

    Args:
        model: a `torch.nn.Module` (see `tpuport.checkpoint.port`) or a `DiffusionPipeline` (see
            `tpuport.diffusion.port_pipeline`).
        options: `mesh`, `rules`, `dtype`, `allow`, and for a pipeline those of `port_pipeline`.

    Returns:
        The same object.

    Raises:
        PortError: it cannot be moved; nothing was moved then.
    """
    _unstack_layers(model)
    if is_pipeline(model):
        from tpuport import diffusion

        return diffusion.port_pipeline(model, **options)
    return checkpoint.port(model, **options)


def to_cpu(value: Any) -> Any:
    """Move a ported pipeline, a ported model, or results on the device back to the host.

    Args:
        value: a ported `DiffusionPipeline`, which becomes what it was before, in place; or anything that
            `tpuport.checkpoint.to_cpu` takes.

    Returns:
        The same with everything on the host.
    """
    _unstack_layers(value)
    if is_pipeline(value):
        from tpuport import diffusion

        return diffusion.take_back(value)
    # Only a model of a ported pipeline has a compiled forward, and then the module below is imported.
    diffusion_pipeline = sys.modules.get("tpuport.diffusion.pipeline")
    if diffusion_pipeline is not None and isinstance(value, torch.nn.Module):
        diffusion_pipeline.restore(value)
    return checkpoint.to_cpu(value)


def _unstack_layers(value: Any) -> None:
    """Give blocks their own weights again, if `layers.stack_layers` has stacked them."""
    # If nothing has imported the layers, nothing was stacked.
    layers = sys.modules.get("tpuport.layers")
    if layers is None:
        return
    models = value.components.values() if is_pipeline(value) else [value]
    for model in models:
        if isinstance(model, torch.nn.Module):
            layers.unstack_layers(model)
