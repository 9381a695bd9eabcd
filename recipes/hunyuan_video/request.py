"""What is asked of the recipe, checked against the checkpoint's configuration before anything large is read."""

import dataclasses
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

import tpuport
from recipes.pipeline_checks import read_config

PIPELINE = "HunyuanVideo15Pipeline"
PAIRS = (("prompt_embeds", "prompt_embeds_mask"), ("prompt_embeds_2", "prompt_embeds_mask_2"))


@dataclasses.dataclass(frozen=True)
class Request:
    """One call of the pipeline: a clip for each prompt, or for each row of the embeddings.

    Args:
        prompts: what to show; empty where there are embeddings.
        negative_prompt: what to steer away from, the same for every clip.
        embeddings: tensors by the names that the pipeline's call has for them, masks included; or empty.
        height, width: pixels.
        guidance_scale: None for the checkpoint's own.
    """

    prompts: tuple[str, ...]
    negative_prompt: str
    embeddings: dict[str, torch.Tensor]
    height: int
    width: int
    frames: int
    steps: int
    guidance_scale: float | None
    seed: int

    @property
    def count(self) -> int:
        return len(self.prompts) or len(self.embeddings["prompt_embeds"])

    @property
    def names(self) -> list[str]:
        """A line of text for each clip."""
        return list(self.prompts) or [f"embeddings, row {row}" for row in range(self.count)]


def check_size(checkpoint: Path, height: int, width: int, frames: int) -> None:
    """Raise PortError for a resolution or a number of frames that latents and patches do not divide."""
    vae, transformer = (read_config(checkpoint, f"{part}/config.json") for part in ("vae", "transformer"))
    step = int(vae["spatial_compression_ratio"]) * int(transformer["patch_size"])
    for name, size in (("height", height), ("width", width)):
        if size < step or size % step:
            fix = f"{max(step, size // step * step)} or {(size // step + 1) * step}"
            what = f"a patch of latents is {step} pixels, which does not divide {size}"
            raise tpuport.PortError(what, where=f"--{name}", fix=fix)
    span = int(vae["temporal_compression_ratio"])
    if frames < 1 or (frames - 1) % span:
        fix = f"{max(frames - 1, 0) // span * span + 1} or {(max(frames - 1, 0) // span + 1) * span + 1}"
        what = f"one frame, then {span} for each latent: {frames} is not 1 + {span} n"
        raise tpuport.PortError(what, where="--frames", fix=fix)


def read_embeddings(file: Path, checkpoint: Path, guided: bool) -> dict[str, torch.Tensor]:
    """Text embeddings and masks from a safetensors file; `negative_` ones too where guidance needs them.

    `prompt_embeds [B, T, D]` with `prompt_embeds_mask [B, T]`, `prompt_embeds_2` with `prompt_embeds_mask_2`.

    Raises:
        PortError: the file or one of its tensors is not as it should be.
    """
    try:
        held = load_file(file)
    except (OSError, SafetensorError) as error:
        what = f"the embeddings cannot be read: {str(error).splitlines()[0]}"
        raise tpuport.PortError(what, where=str(file), fix="give a safetensors file") from error
    config = read_config(checkpoint, "transformer/config.json")
    widths = (int(config["text_embed_dim"]), int(config["text_embed_2_dim"]))
    chosen: dict[str, torch.Tensor] = {}
    for sign in ("", "negative_") if guided else ("",):
        for (embeds, mask), width in zip(PAIRS, widths, strict=True):
            chosen |= _pair(held, sign + embeds, sign + mask, width, file)
    rows = {name: len(tensor) for name, tensor in chosen.items()}
    if len(set(rows.values())) != 1:
        listed = ", ".join(f"{name} {count}" for name, count in rows.items())
        fix = "give each tensor one row a clip"
        raise tpuport.PortError(
            f"the tensors have different numbers of rows: {listed}", where=str(file), fix=fix
        )
    return chosen


def _pair(
    held: dict[str, torch.Tensor], embeds: str, mask: str, width: int, file: Path
) -> dict[str, torch.Tensor]:
    """One tensor of embeddings and its mask, checked."""
    for name in (embeds, mask):
        if name not in held:
            fix = "save the mask that the tokenizer made of the same text: without it padding is read as text"
            if name == embeds:
                fix = (
                    "save what pipe.encode_prompt returns, of the negative prompt under names with negative_"
                )
            raise tpuport.PortError(f"there is no {name}", where=str(file), fix=fix)
    text, valid = held[embeds], held[mask]
    if text.ndim != 3 or text.shape[-1] != width:
        what = f"{embeds} is {list(text.shape)}, the transformer reads [batch, tokens, {width}]"
        raise tpuport.PortError(what, where=str(file), fix="use the text encoders of the same checkpoint")
    if valid.shape != text.shape[:2]:
        what = f"{mask} is {list(valid.shape)}, but {embeds} is {list(text.shape)}"
        raise tpuport.PortError(
            what, where=str(file), fix="give a mask of one number for each token: [batch, tokens]"
        )
    if not bool(((valid == 0) | (valid == 1)).all()):
        raise tpuport.PortError(
            f"{mask} holds other numbers than 0 and 1", where=str(file), fix="1 for each token"
        )
    if not mask.endswith("_2") and not bool(valid.bool().any(dim=1).all()):
        raise tpuport.PortError(f"{mask} has a row without a token", where=str(file), fix="keep at least one")
    return {embeds: text, mask: valid}
