"""Clips from a pipeline, ported or not: the call is the same, and that is the point of the recipe.

Clips are arrays `[B, F, H, W, 3]` from 0 to 1; latents are tensors `[B, C, F, H, W]`.
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tpuport
from recipes.hunyuan_video.masking import without_masks, zeroed_padding
from recipes.hunyuan_video.request import Request
from recipes.hunyuan_video.tiny import load_pipeline


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of the first call, two steps that compile everything, and of the whole call after it."""

    first: float
    whole: float
    steps: int

    @property
    def step(self) -> float:
        """Seconds a step; text encoders and VAE are counted in."""
        return self.whole / self.steps


def load(checkpoint: Path, request: Request, dtype: torch.dtype) -> Any:
    """The checkpoint's pipeline on the host, with the request's guidance.

    Raises:
        PortError: diffusers cannot read the checkpoint.
    """
    try:
        pipeline: Any = load_pipeline(checkpoint, dtype)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        what = f"diffusers cannot load this checkpoint: {str(error).strip().splitlines()[0]}"
        fix = "give a complete directory in diffusers' layout"
        raise tpuport.PortError(what, where=str(checkpoint), fix=fix) from error
    if request.guidance_scale is not None:
        pipeline.guider.guidance_scale = request.guidance_scale
    return pipeline


def call(
    pipeline: Any, request: Request, embeddings: dict[str, torch.Tensor] | None = None, **options: Any
) -> Any:
    """One call of the pipeline; the noise depends on the seed and on the clip's number alone.

    Args:
        embeddings: in place of the request's prompts.
        options: over those of the request.
    """
    given: dict[str, Any] = dict(request.embeddings if embeddings is None else embeddings)
    if not given:
        given = {
            "prompt": list(request.prompts),
            "negative_prompt": [request.negative_prompt] * request.count,
        }
    generators = [torch.Generator().manual_seed(request.seed + row) for row in range(request.count)]
    shape = {"height": request.height, "width": request.width, "num_frames": request.frames}
    asked = {"num_inference_steps": request.steps, "generator": generators, "output_type": "np"}
    return pipeline(**(given | shape | asked | options)).frames


def timed_call(pipeline: Any, request: Request, **options: Any) -> tuple[Any, Timing]:
    """The pipeline's result and what it took; a call of two steps goes first, which compiles the same programs."""
    start = time.perf_counter()
    pipeline.set_progress_bar_config(disable=True)
    call(pipeline, request, num_inference_steps=min(2, request.steps), **options)
    middle = time.perf_counter()
    pipeline.set_progress_bar_config(disable=None)
    result = call(pipeline, request, **options)  # of the host, so the device has finished
    return result, Timing(middle - start, time.perf_counter() - middle, request.steps)


def embedded(pipeline: Any, request: Request) -> dict[str, torch.Tensor]:
    """The request's texts as embeddings and masks, negative ones too."""
    if request.embeddings:
        return dict(request.embeddings)
    names = ("prompt_embeds", "prompt_embeds_mask", "prompt_embeds_2", "prompt_embeds_mask_2")
    texts = (("", list(request.prompts)), ("negative_", [request.negative_prompt] * request.count))
    found: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for sign, prompts in texts:
            parts = pipeline.encode_prompt(
                prompts, batch_size=request.count, dtype=pipeline.transformer.dtype
            )
            found |= {sign + name: part for name, part in zip(names, parts, strict=True)}
    return found


def wrong_ways(pipeline: Any, request: Request) -> dict[str, np.ndarray]:
    """What torch makes of the request where padding is treated wrongly; the pipeline is not a ported one."""
    texts = embedded(pipeline, request)
    dropped = call(pipeline, request, without_masks(texts))
    with zeroed_padding(pipeline.transformer):
        zeroed = call(pipeline, request, texts)
    return {"mask dropped": dropped, "padding zeroed": zeroed}


def compilations(pipeline: Any) -> dict[str, int]:
    """How many programs each model of a ported pipeline was compiled to, by its name in the pipeline."""
    counts: dict[str, int] = {}
    for name, module in pipeline.components.items():
        if not isinstance(module, torch.nn.Module):
            continue
        parts = {
            name: module,
            f"{name}.encoder": getattr(module, "encoder", None),
            f"{name}.decoder": getattr(module, "decoder", None),
        }
        for place, part in parts.items():
            program = getattr(getattr(part, "forward", None), "program", None)
            if program is not None and program.compilations:
                counts[place] = program.compilations
    return counts
