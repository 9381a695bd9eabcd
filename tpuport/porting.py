"""`port`, `load` and `to_cpu`: of one model, or of a whole pipeline of diffusers."""

import functools
import sys
from typing import Any

import torch

from tpuport import checkpoint
from tpuport.checkpoint import model_sizes, saving
from tpuport.compilation import LostValue, keep_shared, model_calls
from tpuport.errors import PortError
from tpuport.libraries.library_classes import is_of_library, is_pipeline
from tpuport.libraries.model_results import warn_of_failures

_DEVICE_MAP = "hf_device_map"
_PORTED_MAP = {"": "jax"}


def port(model: Any, **options: Any) -> Any:
    """Move a model, or every model of a diffusers pipeline, to the devices of a mesh,
    in place.

    The model is called as before, `model(**inputs)`, with tensors of the host or the
    device: its call is a compiled program, as of `tpuport.compile(model)`.
    `model.generate` of a language model of transformers runs `tpuport.generate`.
    `to_cpu` takes both back.

    Args:
        model: a `torch.nn.Module` (see `tpuport.checkpoint.port`) or a
            `DiffusionPipeline` (see `tpuport.diffusion.port_pipeline`).
        options: `mesh`, `rules`, `dtype`, `allow`, `quantize`; for a pipeline those of
            `port_pipeline`.

    Returns:
        The same object.

    Raises:
        PortError: it cannot be moved; nothing was moved then.
    """
    _refuse_translated(model)
    _unstack_layers(model)
    if is_pipeline(model):
        from tpuport import diffusion

        ported = diffusion.port_pipeline(model, **options)
    else:
        with keep_shared(model):
            ported = checkpoint.port(model, **options)
        _replace_calls(ported)
    warn_of_failures(ported)
    return ported


@functools.wraps(checkpoint.load)
def load(*args: Any, **options: Any) -> Any:  # noqa: D103 - it has that of `checkpoint.load`
    model = _replace_calls(checkpoint.load(*args, **options))
    warn_of_failures(model)
    return model


def to_cpu(value: Any) -> Any:
    """Move a ported pipeline, a ported model, or results on the device back to the
    host.

    Args:
        value: a ported `DiffusionPipeline`, which becomes what it was before, in place;
            or anything that `tpuport.checkpoint.to_cpu` takes.

    Returns:
        The same with everything on the host.
    """
    if isinstance(value, LostValue):
        value.refuse()
    _unstack_layers(value)
    if is_pipeline(value):
        from tpuport import diffusion

        return diffusion.take_back(value)
    # Only a model of a ported pipeline has a compiled forward, and then the module
    # below is imported.
    diffusion_pipeline = sys.modules.get("tpuport.diffusion.pipeline")
    if isinstance(value, torch.nn.Module):
        if diffusion_pipeline is not None:
            diffusion_pipeline.restore(value)
        _restore_calls(value)
    with keep_shared(value):
        return checkpoint.to_cpu(value)


def _refuse_translated(model: Any) -> None:
    """PortError for what TorchScript and `torch.export` have made of a model: its code
    is no longer Python's.
    """
    if isinstance(model, torch.jit.ScriptModule):
        translator = "TorchScript"
    elif isinstance(model, torch.fx.GraphModule) and "eval" in vars(model):
        # Only modules of exported programs have an `eval` of their own, which raises.
        translator = "torch.export"
    else:
        return
    raise PortError(
        f"a model that {translator} has translated cannot be ported",
        where=type(model).__name__,
        fix="port the model that it was translated from; tpuport makes the compiled program itself",
    )


def _replace_calls(model: torch.nn.Module) -> torch.nn.Module:
    """Let a ported model's own call, and its `generate`, run on the device."""
    model_calls.compile_call(model, _call_on_host if is_of_library(model) else None)
    saving.replace_save(model)
    model_sizes.replace_sizes(model)
    # A model of transformers, which has been imported then.
    if hasattr(model, "can_generate"):
        from tpuport.generation import model_generate

        model_generate.replace_generate(model)
        # transformers' pipelines move a model to the host if there is no GPU, unless it
        # has such a map.
        vars(model).setdefault(_DEVICE_MAP, _PORTED_MAP)
    return model


def _call_on_host(model: torch.nn.Module) -> model_calls.CallOnHost:
    """What runs a call that no program can compute, of a model whose code is not the
    user's to change.
    """
    from tpuport.generation.untraced_call import UntracedCall

    return UntracedCall(model)


def _restore_calls(model: torch.nn.Module) -> None:
    model_calls.restore_call(model)
    saving.restore_save(model)
    model_sizes.restore_sizes(model)
    vars(model).pop("tpuport_state", None)
    if vars(model).get(_DEVICE_MAP) == _PORTED_MAP:
        delattr(model, _DEVICE_MAP)
    if "generate" in vars(model):
        from tpuport.generation import model_generate

        model_generate.restore_generate(model)


def _unstack_layers(value: Any) -> None:
    """Give blocks their own weights again, if `layers.stack_layers` has stacked
    them.
    """
    # If nothing has imported the layers, nothing was stacked.
    layers = sys.modules.get("tpuport.compilation.layers")
    if layers is None:
        return
    models = value.components.values() if is_pipeline(value) else [value]
    for model in models:
        if isinstance(model, torch.nn.Module):
            layers.unstack_layers(model)
