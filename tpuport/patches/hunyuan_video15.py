"""HunyuanVideo-1.5's transformer, in a form that can be traced.

Its own forward asks whether image embeddings are all zero, which is how the pipelines say text-to-video, and moves
valid tokens to the front by boolean reads. Here the first is decided outside of the traced code where it can be, by
`without_empty_streams`, and the second is a stable sort.
Shapes: B batch, C channels, F frames, h height, w width, N tokens of a stream, S of all streams, E model width.
"""

import inspect
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.utils.peft_utils import apply_lora_scale
from jax.core import Tracer
from torch.utils.weak import WeakIdKeyDictionary

from tpuport import compat
from tpuport.errors import PortError
from tpuport.patches.preparing import before_tracing
from tpuport.patches.reordering import valid_first

_MODULE = "diffusers.models.transformers.transformer_hunyuan_video15"
_TEXT, _GLYPHS, _IMAGE = range(3)  # rows of the model's embedding of token kinds
_INPUTS = (
    "hidden_states", "encoder_hidden_states", "encoder_attention_mask", "encoder_hidden_states_2",
    "encoder_attention_mask_2", "image_embeds",
)  # fmt: skip
_with_glyphs: weakref.WeakSet[Any] = weakref.WeakSet()
_zero: Any = WeakIdKeyDictionary()  # of arrays on a device, which never change


@apply_lora_scale("attention_kwargs")
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
    """Traced. `HunyuanVideo15Transformer3DModel.forward`, equal to it in every valid token and so in its output.

    Args:
        hidden_states: [B, C, F, h, w].
        timestep, timestep_r: [B].
        encoder_hidden_states, encoder_attention_mask: text, [B, N, _] and [B, N].
        encoder_hidden_states_2, encoder_attention_mask_2: glyphs, the same; None where no prompt has any.
        image_embeds: [B, N, _]; None, as well as zeros everywhere, is text-to-video. Without them no image token
            exists; zeros give image tokens that are all padding, which nothing reads.

    Raises:
        PortError: inputs that do not fit each other or the model.
    """
    check(self, hidden_states, encoder_hidden_states, encoder_attention_mask, encoder_hidden_states_2,
          encoder_attention_mask_2, image_embeds)  # fmt: skip
    rotary = self.rope(hidden_states)
    temb = self.time_embed(timestep, timestep_r=timestep_r)
    glyphs = (encoder_hidden_states_2, encoder_attention_mask_2)
    context, mask = _context(
        self, timestep, (encoder_hidden_states, encoder_attention_mask), glyphs, image_embeds
    )
    # Checkpointing of gradients, which the model's own forward offers, is torch's; here jax computes gradients.
    tokens = self.x_embedder(hidden_states)
    for block in self.transformer_blocks:
        tokens, context = block(tokens, context, temb, mask, rotary)
    sample = _unpatched(self, self.proj_out(self.norm_out(tokens, temb)), hidden_states.shape)
    return Transformer2DModelOutput(sample=sample) if return_dict else (sample,)


def _context(
    self: Any, timestep: torch.Tensor, text: tuple, glyphs: tuple, image_embeds: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [B, S, E] of images, glyphs and text, the valid ones first, and which of them are valid [B, S]."""
    tokens = self.context_embedder(text[0], timestep, text[1])
    streams = [(_of_kind(self, tokens, _TEXT), text[1], True)]
    if glyphs[0] is not None:
        tokens = self.context_embedder_2(glyphs[0])
        streams.insert(0, (_of_kind(self, tokens, _GLYPHS), glyphs[1], True))
    if image_embeds is not None:
        streams.insert(0, _image_stream(self, image_embeds))
    states, masks, zeroed = zip(*streams, strict=True)
    return valid_first(states, masks, zeroed)


def _of_kind(self: Any, tokens: torch.Tensor, kind: int) -> torch.Tensor:
    """Tokens [B, N, E] with the embedding of their kind added."""
    return tokens + self.cond_type_embed(torch.full((1, 1), kind, dtype=torch.int32, device=tokens.device))


def _image_stream(self: Any, image_embeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """(tokens [B, N, E], mask [B, N], False): all of the batch's images are valid, or all are padding."""
    given = torch.any(image_embeds != 0)
    tokens = self.image_embedder(image_embeds)
    tokens = _of_kind(self, torch.where(given, tokens, torch.zeros_like(tokens)), _IMAGE)
    return tokens, given.expand(tokens.shape[:2]), False


def _unpatched(self: Any, tokens: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """[B, (F h w) / patch, patch * C] -> [B, C, F, h, w]."""
    batch, _, *sizes = shape
    patch = _patch(self)
    counts = [size // step for size, step in zip(sizes, patch, strict=True)]
    tokens = tokens.reshape(batch, *counts, -1, *patch)
    return tokens.permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(batch, -1, *sizes)


@before_tracing(f"{_MODULE}:HunyuanVideo15Transformer3DModel")
def without_empty_streams(model: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Arguments of the transformer, checked, with None for image embeddings and glyphs that are all padding.

    Nothing reads such tokens, so the output is the same, from fewer tokens: text-to-video has 1,000 tokens of text
    where it would have 1,985. A model that has once met a prompt with glyphs keeps them, because guidance calls it with
    the same prompt's glyphs and with none in turn, which would be two programs.

    Raises:
        PortError: inputs that do not fit each other or the model.
    """
    given = inspect.signature(forward).bind_partial(model, *args, **kwargs).arguments
    given.pop("self")
    check(model, *(given.get(name) for name in _INPUTS))
    if _known_zero(given.get("image_embeds")):
        given["image_embeds"] = None
    mask = given.get("encoder_attention_mask_2")
    if mask is not None and model not in _with_glyphs:
        if _known_zero(mask):
            given["encoder_hidden_states_2"] = given["encoder_attention_mask_2"] = None
        else:
            _with_glyphs.add(model)
    return (), given


def _known_zero(tensor: Any) -> bool:
    """Whether these are concrete values, on the host or a device, all of them zero."""
    array = compat.as_jax(tensor)
    if isinstance(array, Tracer):
        return False
    if isinstance(array, jax.Array):
        if array not in _zero:
            _zero[array] = not bool(jnp.any(array))
        return _zero[array]
    return isinstance(tensor, torch.Tensor) and not tensor.is_meta and not bool(tensor.any())


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
    """PortError for inputs of the transformer that do not fit each other or the model; looks at shapes only."""
    _check_latents(model, hidden_states)
    batch = hidden_states.shape[0]
    if encoder_hidden_states is None:
        raise PortError(
            "no text embeddings", where="encoder_hidden_states", fix="give [batch, tokens, width]"
        )
    _check_stream("", encoder_hidden_states, encoder_attention_mask, batch, model.config.text_embed_dim)
    if encoder_hidden_states_2 is not None or encoder_attention_mask_2 is not None:
        width = model.config.text_embed_2_dim
        _check_stream("_2", encoder_hidden_states_2, encoder_attention_mask_2, batch, width)
    if image_embeds is not None:
        _check_states("image_embeds", image_embeds, batch, model.config.image_embed_dim)


def _check_latents(model: Any, latents: Any) -> None:
    if getattr(latents, "ndim", None) != 5 or latents.shape[1] != model.config.in_channels:
        raise PortError(
            f"latents of shape {list(getattr(latents, 'shape', ()))}", where="hidden_states",
            fix=f"give [batch, {model.config.in_channels} channels, frames, height, width]: noise, condition and mask",
        )  # fmt: skip
    named = zip(("frames", "height", "width"), latents.shape[2:], _patch(model), strict=True)
    for name, size, patch in named:
        if size == 0 or size % patch:
            raise PortError(
                f"{size} latent {name if name == 'frames' else f'rows of {name}'} are not a multiple of the patch, "
                f"{patch}", where=f"hidden_states {list(latents.shape)}", fix=_multiple(name, size, patch),
            )  # fmt: skip


def _multiple(name: str, size: int, patch: int) -> str:
    below, above = size // patch * patch, -(-size // patch) * patch
    return f"choose a video whose latent {name} is {f'{below} or ' if below else ''}{above or patch}"


def _check_stream(suffix: str, states: Any, mask: Any, batch: int, width: int) -> None:
    name, mask_name = f"encoder_hidden_states{suffix}", f"encoder_attention_mask{suffix}"
    if states is None or mask is None:
        missing, given = (name, mask_name) if states is None else (mask_name, name)
        raise PortError(
            f"{given} without {missing}", where=missing,
            fix="give both: without the mask, padding would be read as text" if mask is None else "give both or none",
        )  # fmt: skip
    _check_states(name, states, batch, width)
    if tuple(mask.shape) != tuple(states.shape[:2]):
        raise PortError(
            f"a mask of shape {list(mask.shape)} for embeddings of shape {list(states.shape)}", where=mask_name,
            fix=f"give {list(states.shape[:2])}: one number for each token, 1 for text and 0 for padding",
        )  # fmt: skip


def _check_states(name: str, states: Any, batch: int, width: int) -> None:
    if states.ndim != 3 or states.shape[0] != batch or states.shape[2] != width:
        raise PortError(
            f"embeddings of shape {list(states.shape)}", where=name,
            fix=f"give [{batch}, tokens, {width}]: a row for each video of the batch, of the model's width",
        )  # fmt: skip
