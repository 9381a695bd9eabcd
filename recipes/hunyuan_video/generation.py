"""Clips from a pipeline, ported or not: the call is the same, which is the point of the recipe.

Clips are arrays `[B, F, H, W, 3]` from 0 to 1; latents are tensors `[B, C, F, H, W]`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

import tpuport
from recipes.hunyuan_video.masking import without_masks, zeroed_padding
from recipes.hunyuan_video.request import Request
from recipes.hunyuan_video.tiny import load_pipeline


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
    """One call of the pipeline; the noise depends only on the seed and the clip's number.

    Args:
        embeddings: used instead of the request's prompts.
        options: override those of the request.
    """
    texts: dict[str, Any] = dict(embeddings or request.embeddings)
    if not texts:
        texts["prompt"] = list(request.prompts)
        texts["negative_prompt"] = [request.negative_prompt] * request.count
    generators = [torch.Generator().manual_seed(request.seed + row) for row in range(request.count)]
    shape = {"height": request.height, "width": request.width, "num_frames": request.frames}
    defaults = {"num_inference_steps": request.steps, "generator": generators, "output_type": "np"}
    return pipeline(**(texts | shape | defaults | options)).frames


def embed_texts(pipeline: Any, request: Request) -> dict[str, torch.Tensor]:
    """Embeddings and masks of the request's texts, including the negative ones."""
    if request.embeddings:
        return dict(request.embeddings)
    names = ("prompt_embeds", "prompt_embeds_mask", "prompt_embeds_2", "prompt_embeds_mask_2")
    texts = (("", list(request.prompts)), ("negative_", [request.negative_prompt] * request.count))
    embeddings: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for prefix, prompts in texts:
            parts = pipeline.encode_prompt(
                prompts, batch_size=request.count, dtype=pipeline.transformer.dtype
            )
            embeddings |= {prefix + name: part for name, part in zip(names, parts, strict=True)}
    return embeddings


def wrong_ways(pipeline: Any, request: Request) -> dict[str, np.ndarray]:
    """The clips of two wrong ways to handle padding, in plain torch; the pipeline must not be ported."""
    texts = embed_texts(pipeline, request)
    dropped = call(pipeline, request, without_masks(texts))
    with zeroed_padding(pipeline.transformer):
        zeroed = call(pipeline, request, texts)
    return {"mask dropped": dropped, "padding zeroed": zeroed}
