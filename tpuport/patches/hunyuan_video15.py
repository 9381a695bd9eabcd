"""HunyuanVideo-1.5's transformer, in a form that can be traced.

The original forward tests whether image embeddings are all zero, which is how the
pipelines signal text-to-video, and moves valid tokens to the front by boolean indexing.
Here `without_empty_streams` makes the first decision outside the traced code where it
can, and a stable sort replaces the second. Shapes: B batch, C channels, F frames, h
height, w width, N tokens of a stream, S of all streams, E model width.
"""

import inspect
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from jax.core import Tracer
from torch.utils.weak import WeakIdKeyDictionary

from tpuport import compat
from tpuport.errors import PortError
from tpuport.patches.lora_scale import with_lora_scale
from tpuport.patches.reordering import valid_first
from tpuport.patches.switch import before_tracing

_MODULE = "diffusers.models.transformers.transformer_hunyuan_video15"
_TEXT, _GLYPHS, _IMAGE = range(3)  # rows of the model's embedding of token kinds
_INPUTS = (
    "hidden_states", "encoder_hidden_states", "encoder_attention_mask", "encoder_hidden_states_2",
    "encoder_attention_mask_2", "image_embeds",
)  # fmt: skip
_with_glyphs: weakref.WeakSet[Any] = weakref.WeakSet()
# Whether a device array is all zero. Such arrays never change, and reading one back
# costs a transfer.
_is_zero: Any = WeakIdKeyDictionary()


@with_lora_scale
def forward(
    self: Any,
    hidden_states: torch.Tensor,
    timestep: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    encoder_attention_mask: torch.Tensor | None = None,
    timestep_r: torch.Tensor | None = None,
    encoder_hidden_states_2: torch.Tensor | None = None,
    encoder_attention_mask_2: torch.Tensor | None = None,
    image_embeds: torch.Tensor | None = None,
    attention_kwargs: dict[str, Any] | None = None,
    return_dict: bool = True,
) -> tuple[torch.Tensor] | Transformer2DModelOutput:
    """Traced. `HunyuanVideo15Transformer3DModel.forward`, equal in every valid token
    and so in its output.

    Args:
        hidden_states: [B, C, F, h, w].
        timestep, timestep_r: [B].
        encoder_hidden_states, encoder_attention_mask: text, [B, N, _] and [B, N].
        encoder_hidden_states_2, encoder_attention_mask_2: glyphs, of the same shapes;
            None if no prompt has any.
        image_embeds: [B, N, _]; None and all zeros both mean text-to-video. With None
            there are no image tokens; zeros give image tokens that are all padding,
            which nothing reads.

    Raises:
        PortError: the inputs do not match each other or the model.
    """
    check(self, hidden_states, encoder_hidden_states, encoder_attention_mask, encoder_hidden_states_2,
          encoder_attention_mask_2, image_embeds)  # fmt: skip
    rotary = self.rope(hidden_states)
    temb = self.time_embed(timestep, timestep_r=timestep_r)
    glyphs = (encoder_hidden_states_2, encoder_attention_mask_2)
    context, mask = _context(
        self,
        timestep,
        (encoder_hidden_states, encoder_attention_mask),
        glyphs,
        image_embeds,
    )
    # The original can checkpoint gradients, which is a feature of torch's autograd;
    # here jax computes gradients.
    tokens = self.x_embedder(hidden_states)
    for block in self.transformer_blocks:
        tokens, context = block(tokens, context, temb, mask, rotary)
    sample = _unpatchify(
        self, self.proj_out(self.norm_out(tokens, temb)), hidden_states.shape
    )
    if not return_dict:
        return (sample,)
    return Transformer2DModelOutput(sample=sample)


def _context(
    self: Any,
    timestep: torch.Tensor,
    text: tuple,
    glyphs: tuple,
    image_embeds: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [B, S, E] of images, glyphs and text, valid ones first, and the mask of
    valid tokens [B, S].
    """
    tokens = self.context_embedder(text[0], timestep, text[1])
    streams = [(_add_kind(self, tokens, _TEXT), text[1], True)]
    if glyphs[0] is not None:
        tokens = self.context_embedder_2(glyphs[0])
        streams.insert(0, (_add_kind(self, tokens, _GLYPHS), glyphs[1], True))
    if image_embeds is not None:
        streams.insert(0, _image_stream(self, image_embeds))
    states, masks, zeroed = zip(*streams, strict=True)
    return valid_first(states, masks, zeroed)


def _add_kind(self: Any, tokens: torch.Tensor, kind: int) -> torch.Tensor:
    """Tokens [B, N, E] with the embedding of their kind added."""
    return tokens + self.cond_type_embed(
        torch.full((1, 1), kind, dtype=torch.int32, device=tokens.device)
    )


def _image_stream(
    self: Any, image_embeds: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """(tokens [B, N, E], mask [B, N], False): all of the batch's images are valid, or
    all are padding.
    """
    has_image = torch.any(image_embeds != 0)
    tokens = self.image_embedder(image_embeds)
    tokens = _add_kind(
        self, torch.where(has_image, tokens, torch.zeros_like(tokens)), _IMAGE
    )
    return tokens, has_image.expand(tokens.shape[:2]), False


def _unpatchify(self: Any, tokens: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """[B, (F h w) / patch, patch * C] -> [B, C, F, h, w]."""
    batch, _, *sizes = shape
    patch = _patch(self)
    counts = [size // step for size, step in zip(sizes, patch, strict=True)]
    tokens = tokens.reshape(batch, *counts, -1, *patch)
    return tokens.permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(batch, -1, *sizes)


@before_tracing(f"{_MODULE}:HunyuanVideo15Transformer3DModel")
def without_empty_streams(
    model: Any, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """Check the transformer's arguments, and replace image embeddings and glyphs that
    are all padding by None.

    Nothing reads such tokens, so the output is the same with fewer of them:
    text-to-video has 1,000 text tokens instead of 1,985. Once a model has seen a prompt
    with glyphs, glyphs stay: guidance alternates between the prompt's glyphs and none,
    and dropping them would compile a second program.

    Raises:
        PortError: the inputs do not match each other or the model.
    """
    # By name, so that both ways of passing an argument are seen.
    arguments = (
        inspect.signature(forward).bind_partial(model, *args, **kwargs).arguments
    )
    del arguments["self"]
    check(model, *(arguments.get(name) for name in _INPUTS))
    if _is_known_zero(arguments.get("image_embeds")):
        arguments["image_embeds"] = None
    mask = arguments.get("encoder_attention_mask_2")
    if mask is not None and model not in _with_glyphs:
        if _is_known_zero(mask):
            arguments["encoder_hidden_states_2"] = None
            arguments["encoder_attention_mask_2"] = None
        else:
            _with_glyphs.add(model)
    return (), arguments


def _is_known_zero(tensor: Any) -> bool:
    """Whether a tensor has concrete values, on the host or a device, that are all
    zero.
    """
    array = compat.as_jax(tensor)
    # Inside a trace nothing is known, and asking would end it.
    if isinstance(array, Tracer):
        return False
    if isinstance(array, jax.Array):
        if array not in _is_zero:
            _is_zero[array] = not bool(jnp.any(array))
        return _is_zero[array]
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
        return False
    return not bool(tensor.any())


def _patch(self: Any) -> tuple[int, int, int]:
    return self.config.patch_size_t, self.config.patch_size, self.config.patch_size


def check(
    model: Any,
    hidden_states: Any,
    encoder_hidden_states: Any,
    encoder_attention_mask: Any,
    encoder_hidden_states_2: Any = None,
    encoder_attention_mask_2: Any = None,
    image_embeds: Any = None,
) -> None:
    """Raise a PortError if the transformer's inputs do not match each other or the
    model; only shapes are read.
    """
    _check_latents(model, hidden_states)
    batch = hidden_states.shape[0]
    if encoder_hidden_states is None:
        raise PortError(
            "no text embeddings",
            where="encoder_hidden_states",
            fix="give [batch, tokens, width]",
        )
    _check_stream(
        "",
        encoder_hidden_states,
        encoder_attention_mask,
        batch,
        model.config.text_embed_dim,
    )
    if encoder_hidden_states_2 is not None or encoder_attention_mask_2 is not None:
        width = model.config.text_embed_2_dim
        _check_stream(
            "_2", encoder_hidden_states_2, encoder_attention_mask_2, batch, width
        )
    if image_embeds is not None:
        _check_states("image_embeds", image_embeds, batch, model.config.image_embed_dim)


def _check_latents(model: Any, latents: Any) -> None:
    shape = tuple(getattr(latents, "shape", ()))
    channels = model.config.in_channels
    if len(shape) != 5 or shape[1] != channels:
        raise PortError(
            f"latents of shape {list(shape)}", where="hidden_states",
            fix=f"give [batch, {channels} channels, frames, height, width]: noise, condition and mask",
        )  # fmt: skip
    for name, size, patch in zip(
        ("frames", "height", "width"), latents.shape[2:], _patch(model), strict=True
    ):
        if size == 0 or size % patch:
            raise PortError(
                f"the latents' {name}, {size}, is not a multiple of the patch, {patch}",
                where=f"hidden_states {list(latents.shape)}", fix=_suggest_sizes(name, size, patch),
            )  # fmt: skip


def _suggest_sizes(name: str, size: int, patch: int) -> str:
    # A size of zero has no multiple below.
    below = size // patch * patch
    above = max(-(-size // patch) * patch, patch)
    sizes = f"{below} or {above}" if below else f"{above}"
    return f"choose a video whose latent {name} is {sizes}"


def _check_stream(suffix: str, states: Any, mask: Any, batch: int, width: int) -> None:
    name = f"encoder_hidden_states{suffix}"
    mask_name = f"encoder_attention_mask{suffix}"
    if mask is None:
        fix = "give both: without the mask, padding would be read as text"
        raise PortError(f"{name} without {mask_name}", where=mask_name, fix=fix)
    if states is None:
        raise PortError(
            f"{mask_name} without {name}", where=name, fix="give both or none"
        )
    _check_states(name, states, batch, width)
    if tuple(mask.shape) != tuple(states.shape[:2]):
        raise PortError(
            f"a mask of shape {list(mask.shape)} for embeddings of shape {list(states.shape)}", where=mask_name,
            fix=f"give {list(states.shape[:2])}: one number for each token, 1 for text and 0 for padding",
        )  # fmt: skip


def _check_states(name: str, states: Any, batch: int, width: int) -> None:
    # One row too many would be taken for a batch of another size only deep inside the
    # model.
    if states.ndim != 3 or (states.shape[0], states.shape[2]) != (batch, width):
        raise PortError(
            f"embeddings of shape {list(states.shape)}", where=name,
            fix=f"give [{batch}, tokens, {width}]: a row for each video of the batch, of the model's width",
        )  # fmt: skip
