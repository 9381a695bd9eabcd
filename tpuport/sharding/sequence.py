"""The sequence of a diffusion transformer over the axis sp, and its batch over dp: what weights do not decide.

Shapes: B batch, S tokens of the video or picture, E model width.

The compiler follows layouts from the operands on, and no weight has a sequence. Attention shares out its queries by
itself, but what stands between two attentions would be computed by every device of sp and dp alike. So the hidden
states that enter a block are told where they live; residual connections, norms and feed-forwards follow.
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
from tpuport.library_classes import is_diffusers_model

# Text is short: every device of sp has all of it, and the blocks that work on text alone are left to the compiler.
_TEXT_BLOCKS = re.compile(r"context|text|caption|token_refiner", re.IGNORECASE)
_VIDEO = ("hidden_states", "x", "visual_embed")
_TEXT = ("encoder_hidden_states",)


def transformer_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The transformer blocks of a diffusers model that work on the video or picture, in order; none for others."""
    if not is_diffusers_model(model):
        return []
    return [
        block
        for name, blocks in model.named_children()
        if isinstance(blocks, torch.nn.ModuleList) and not _TEXT_BLOCKS.search(name)
        for block in blocks
        if any("attn" in name or "attention" in name for name, _ in block.named_modules())
    ]


@contextlib.contextmanager
def sequence_sharded(model: torch.nn.Module, mesh: Mesh | None) -> Iterator[None]:
    """Traced. Let the hidden states [B, S, E] that enter each block of a diffusion transformer be cut over dp and sp.

    A sequence that sp does not divide is cut all the same, the last device having less of it; a batch that dp does not
    divide is not. Text, [B, T, E] in an argument of its own, stays whole on every device of sp. Nothing happens for
    other models, and on a mesh that has neither axis.
    """
    sizes = {} if mesh is None else dict(mesh.shape)
    if mesh is None or sizes.get("dp", 1) * sizes.get("sp", 1) == 1:
        yield
        return

    with contextlib.ExitStack() as stack:
        for block in transformer_blocks(model):
            hook = functools.partial(_constrain, mesh)
            stack.callback(block.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


def _constrain(mesh: Mesh, block: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Traced. The block's arguments, with the layout of its hidden states told."""
    names = list(inspect.signature(block.forward).parameters)
    given = dict(zip(names, args, strict=False)) | kwargs
    told = {name: _placed(given[name], mesh, hidden_spec) for name in _VIDEO if name in given}
    told |= {name: _placed(given[name], mesh, text_spec) for name in _TEXT if name in given}
    placed = tuple(told.get(name, value) for name, value in zip(names, args, strict=False))
    return (*placed, *args[len(placed) :]), {name: told.get(name, kwargs[name]) for name in kwargs}


def _placed(value: Any, mesh: Mesh, spec: Callable[[tuple[int, ...], Mesh], PartitionSpec]) -> Any:
    """Traced. The tensor [B, S, E] with its layout told; anything else as it is."""
    if not isinstance(value, torch.Tensor) or not compat.is_ported(value) or value.ndim != 3:
        return value
    sharding = NamedSharding(mesh, spec(tuple(value.shape), mesh))
    return compat.as_torch(jax.lax.with_sharding_constraint(compat.as_jax(value), sharding))


def hidden_spec(shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """The layout of hidden states [B, S, E]: batch over dp where that divides it, sequence over sp."""
    batch, length, _ = shape
    sp = mesh.shape.get("sp", 1)
    return PartitionSpec(_batch_axis(batch, mesh), "sp" if 1 < sp <= length else None, None)


def text_spec(shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """The layout of the text's hidden states [B, T, E]: batch over dp where it divides."""
    return PartitionSpec(_batch_axis(shape[0], mesh), None, None)


def _batch_axis(batch: int, mesh: Mesh) -> str | None:
    dp = mesh.shape.get("dp", 1)
    return "dp" if dp > 1 and batch % dp == 0 else None
