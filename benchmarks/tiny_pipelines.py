"""Tiny pipelines of diffusers with random weights, and a call of each: what `benchmarks.pipelines` runs.

Text is given as embeddings, which nearly every pipeline takes, so that no tokenizer is needed.
"""

from typing import Any, NamedTuple

import torch

from benchmarks import (
    tiny_pipelines_audio,
    tiny_pipelines_image,
    tiny_pipelines_image_newest,
    tiny_pipelines_image_rarer,
    tiny_pipelines_ltx,
    tiny_pipelines_mixed,
    tiny_pipelines_prior,
    tiny_pipelines_unet,
    tiny_pipelines_video,
    tiny_pipelines_video_newest,
    tiny_pipelines_video_rarer,
)
from benchmarks.tiny_pipeline_parts import Builder

_BUILDERS: dict[str, Builder] = {
    **tiny_pipelines_unet.BUILDERS,
    **tiny_pipelines_image.BUILDERS,
    **tiny_pipelines_image_rarer.BUILDERS,
    **tiny_pipelines_video.BUILDERS,
    **tiny_pipelines_video_rarer.BUILDERS,
    **tiny_pipelines_image_newest.BUILDERS,
    **tiny_pipelines_video_newest.BUILDERS,
    **tiny_pipelines_ltx.BUILDERS,
    **tiny_pipelines_mixed.BUILDERS,
    **tiny_pipelines_prior.BUILDERS,
    **tiny_pipelines_audio.BUILDERS,
}


class TinyPipeline(NamedTuple):
    """A pipeline and the keyword arguments of a call, without those that the runner decides."""

    pipe: Any
    inputs: dict[str, Any]


def names() -> list[str]:
    """The names of the pipelines: a class, and after a colon a variant of it."""
    return list(_BUILDERS)


def build(name: str) -> TinyPipeline:
    """A pipeline with components of random weights, always the same."""
    torch.manual_seed(0)
    pipe, inputs = _BUILDERS[name]()
    pipe.set_progress_bar_config(disable=True)
    return TinyPipeline(pipe, inputs)
