"""The sequence of a diffusion transformer over the axis sp, and its batch over dp: what
weights do not decide.

Shapes: B batch, S tokens of the video or picture, T tokens of the text, E model width.

The compiler propagates layouts from the operands on, and no weight has a sequence.
Attention divides its queries by itself, but everything between two attentions would be
computed by every device of sp and dp alike. So the hidden states that enter a block get
an explicit layout; residual connections, norms and feed-forwards follow.
"""

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuport import compat
from tpuport.hardware.mesh import dividing_axis
from tpuport.libraries.library_classes import is_diffusers_model

# Text is short: every device of sp has all of it, and blocks that work on text alone
# are left to the compiler.
_TEXT_BLOCKS = re.compile(r"context|text|caption|token_refiner", re.IGNORECASE)


def transformer_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The blocks of a diffusers model that work on the video or picture, in order; []
    for other models.
    """
    if not is_diffusers_model(model):
        return []
    blocks: list[torch.nn.Module] = []
    for name, child in model.named_children():
        if isinstance(child, torch.nn.ModuleList) and not _TEXT_BLOCKS.search(name):
            blocks += filter(_has_attention, child)
    return blocks


def _has_attention(block: torch.nn.Module) -> bool:
    names = " ".join(dict(block.named_modules()))
    return re.search("attn|attention", names) is not None


@contextlib.contextmanager
def sequence_sharded(model: torch.nn.Module, mesh: Mesh | None) -> Iterator[None]:
    """Traced. Divide the hidden states [B, S, E] that enter each block of a diffusion
    transformer over dp and sp.

    A sequence that sp does not divide is cut all the same, and the last device has less
    of it; a batch that dp does not divide is not cut. Text, [B, T, E] in an argument of
    its own, stays whole on every device of sp. Other models, and meshes without either
    axis, are left alone.
    """
    if mesh is None or mesh.shape.get("dp", 1) * mesh.shape.get("sp", 1) == 1:
        yield
        return
    with contextlib.ExitStack() as stack:
        for block in transformer_blocks(model):
            hook = functools.partial(_constrain_arguments, mesh)
            # Hooks of torch remove themselves on the way out.
            stack.enter_context(block.register_forward_pre_hook(hook, with_kwargs=True))
        yield


def hidden_spec(shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """The layout of hidden states [B, S, E]: batch over dp if that divides it, sequence
    over sp.
    """
    batch, length, _ = shape
    sequence_axis = None
    # A sequence shorter than the axis would leave devices with nothing.
    if 1 < mesh.shape.get("sp", 1) <= length:
        sequence_axis = "sp"
    return PartitionSpec(dividing_axis(mesh, "dp", batch), sequence_axis, None)


def text_spec(shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """The layout of the text's hidden states [B, T, E]: batch over dp if that divides
    it.
    """
    return PartitionSpec(dividing_axis(mesh, "dp", shape[0]), None, None)


# What blocks call their hidden states, and the layout of each.
_ARGUMENT_SPECS: dict[str, Callable[[tuple[int, ...], Mesh], PartitionSpec]] = {
    "hidden_states": hidden_spec,
    "x": hidden_spec,
    "visual_embed": hidden_spec,
    "encoder_hidden_states": text_spec,
}


def _constrain_arguments(
    mesh: Mesh, block: Any, args: tuple, kwargs: dict
) -> tuple[tuple, dict]:
    """Traced. The block's arguments, with a layout for its hidden states."""
    names = inspect.signature(block.forward).parameters
    positional = [
        _constrain(name, value, mesh) for name, value in zip(names, args, strict=False)
    ]
    keywords = {name: _constrain(name, value, mesh) for name, value in kwargs.items()}
    # A forward with *args takes more positional arguments than it names.
    return (*positional, *args[len(positional) :]), keywords


def _constrain(name: str, value: Any, mesh: Mesh) -> Any:
    """Traced. An argument with its layout, if it is a tensor [B, S, E] of hidden
    states.
    """
    if name not in _ARGUMENT_SPECS or not compat.is_ported(value) or value.ndim != 3:
        return value
    sharding = NamedSharding(mesh, _ARGUMENT_SPECS[name](tuple(value.shape), mesh))
    return compat.as_torch(
        jax.lax.with_sharding_constraint(compat.as_jax(value), sharding)
    )
