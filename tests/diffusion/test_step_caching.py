"""diffusers' caches across steps in a ported pipeline: latents are those of diffusers with the same cache."""

import types
from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch
from diffusers import hooks
from diffusers.hooks import (
    FasterCacheConfig,
    FirstBlockCacheConfig,
    MagCacheConfig,
    PyramidAttentionBroadcastConfig,
    SeaCacheConfig,
    TaylorSeerCacheConfig,
)
from diffusers.hooks.mag_cache import FLUX_MAG_RATIOS

import tpuport
from benchmarks import tiny_pipelines
from benchmarks.tiny_pipeline_parts import SIZE, image_vae, pipeline, positive, prompts

STEPS = 6
# Each skips some of the steps; of a pipeline, whose current timestep one of them reads.
CACHES: dict[str, Callable[[Any], Any]] = {
    "first block": lambda pipe: FirstBlockCacheConfig(threshold=0.5),
    "magnitude": lambda pipe: MagCacheConfig(
        threshold=0.5, num_inference_steps=STEPS, mag_ratios=FLUX_MAG_RATIOS, retention_ratio=0.1
    ),
    "attention": lambda pipe: PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2, spatial_attention_timestep_skip_range=(10, 990),
        current_timestep_callback=lambda: pipe.current_timestep,
        spatial_attention_block_identifiers=("transformer_blocks", "single_transformer_blocks"),
    ),
    "taylor": lambda pipe: TaylorSeerCacheConfig(
        cache_interval=2, disable_cache_before_step=1, taylor_factors_dtype=torch.float32
    ),
}  # fmt: skip


def build() -> Any:
    """A Flux of two blocks of each kind."""
    torch.manual_seed(0)
    transformer: Any = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8), guidance_embeds=True,
    ).eval()  # fmt: skip
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    pipe = pipeline("FluxPipeline", vae=image_vae(), scheduler=scheduler, transformer=transformer)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def latents(pipe: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    texts = positive(prompts(pooled=32))
    return pipe(**texts, **SIZE, num_inference_steps=STEPS, generator=generator, output_type="latent").images


@pytest.mark.slow  # operation by operation, each of which is compiled
@pytest.mark.parametrize(
    ("cache", "is_ported_first"), [("first block", True), *((cache, False) for cache in CACHES)]
)
def test_latents_are_those_of_diffusers(cache: str, is_ported_first: bool) -> None:
    theirs, ours = build(), build()
    whole = latents(theirs)
    theirs.transformer.enable_cache(CACHES[cache](theirs))
    expected = latents(theirs)
    # The cache has an effect, and one that is larger than rounding.
    assert abs(expected - whole).max() > 1e-3
    if is_ported_first:
        tpuport.port(ours)
        ours.transformer.enable_cache(CACHES[cache](ours))
    else:
        ours.transformer.enable_cache(CACHES[cache](ours))
        tpuport.port(ours)
    torch.testing.assert_close(latents(ours), expected, rtol=1e-4, atol=1e-5)
    # The second call begins without what the first has kept.
    torch.testing.assert_close(latents(ours), expected, rtol=1e-4, atol=1e-5)


def clip(pipe: Any, inputs: dict[str, Any]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return pipe(**inputs, num_inference_steps=STEPS, generator=generator, output_type="latent").frames


# Of clips, by the pipeline that has them.
CLIP_CACHES: dict[str, Callable[[Any], Any]] = {
    "CogVideoXPipeline": lambda pipe: FasterCacheConfig(
        spatial_attention_block_skip_range=2, spatial_attention_timestep_skip_range=(-1, 901),
        unconditional_batch_skip_range=2, unconditional_batch_timestep_skip_range=(-1, 901),
        current_timestep_callback=lambda: pipe.current_timestep, tensor_format="BFCHW",
        spatial_attention_block_identifiers=("transformer_blocks",), attention_weight_callback=lambda _: 0.3,
    ),
    "WanPipeline": lambda pipe: SeaCacheConfig(threshold=100.0),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:torch.meshgrid")  # FasterCache's own code
@pytest.mark.slow  # operation by operation, each of which is compiled
@pytest.mark.parametrize("name", CLIP_CACHES)
def test_clips_are_those_of_diffusers(name: str) -> None:
    theirs, inputs = tiny_pipelines.build(name)
    ours, _ = tiny_pipelines.build(name)
    whole = clip(theirs, inputs)
    tpuport.port(ours)
    for pipe in (theirs, ours):
        pipe.transformer.enable_cache(CLIP_CACHES[name](pipe))
    expected = clip(theirs, inputs)
    assert abs(expected - whole).max() > 1e-3
    torch.testing.assert_close(clip(ours, inputs), expected, rtol=1e-4, atol=1e-5)


def test_each_cache_of_diffusers_is_compared_or_refused() -> None:
    pipe = types.SimpleNamespace(current_timestep=0)
    compared = {type(config(pipe)).__name__ for config in (*CACHES.values(), *CLIP_CACHES.values())}
    # Skipping layers and smoothing attention are ways of guidance. `test_compiled_components.py` has the refusal.
    guidance = {"LayerSkipConfig", "SmoothedEnergyGuidanceConfig"}
    configs = {name for name in dir(hooks) if name.endswith("Config")}
    assert configs == compared | guidance | {"TextKVCacheConfig"}
