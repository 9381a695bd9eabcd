"""Tiny pipelines of diffusers, and the process as `tpuport.enable` makes it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler, ImagePipelineOutput
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin

import tpuport


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pytest takes back, after each test, the filters that `enable` installs once for all of them."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64"))


@pytest.fixture(scope="package", autouse=True)
def enabled() -> Iterator[None]:
    tpuport.enable()
    yield
    tpuport.disable()


def _hunyuan_transformer(layers: int = 1) -> Any:
    from diffusers import HunyuanVideo15Transformer3DModel

    return HunyuanVideo15Transformer3DModel(
        in_channels=9,
        out_channels=4,
        num_attention_heads=4,
        attention_head_dim=16,
        num_layers=layers,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        patch_size=1,
        text_embed_dim=24,
        text_embed_2_dim=12,
        image_embed_dim=20,
        rope_axes_dim=(4, 6, 6),
        target_size=16,
        task_type="t2v",
    )


def _hunyuan_vae() -> Any:
    from diffusers import AutoencoderKLHunyuanVideo15

    return AutoencoderKLHunyuanVideo15(
        latent_channels=4,
        block_out_channels=(8, 8, 8),
        layers_per_block=1,
        spatial_compression_ratio=4,
        temporal_compression_ratio=2,
        scaling_factor=1.0,
    )


@pytest.fixture(scope="package")
def hunyuan() -> Callable[..., Any]:
    """Makes HunyuanVideo-1.5 pipelines without text encoders, always of the same random weights for as many layers."""
    from diffusers import ClassifierFreeGuidance, HunyuanVideo15Pipeline

    def build(layers: int = 1) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            none: Any = None
            pipe = HunyuanVideo15Pipeline(
                text_encoder=none,
                tokenizer=none,
                text_encoder_2=none,
                tokenizer_2=none,
                transformer=_hunyuan_transformer(layers).eval(),
                vae=_hunyuan_vae().eval(),
                scheduler=FlowMatchEulerDiscreteScheduler(shift=2.0),
                guider=ClassifierFreeGuidance(guidance_scale=3.0),
            )
        pipe.vision_num_semantic_tokens = 3
        pipe.set_progress_bar_config(disable=True)
        return pipe

    return build


@pytest.fixture(scope="package")
def prompts() -> Callable[..., dict[str, torch.Tensor]]:
    """Makes embeddings of HunyuanVideo-1.5 for a batch, positive and negative, of different padding."""

    def build(batch: int = 1, glyphs: bool = True) -> dict[str, torch.Tensor]:
        draw = torch.Generator().manual_seed(1)
        given: dict[str, torch.Tensor] = {}
        for prefix, valid in (("", 7), ("negative_", 2)):
            mask, mask_2 = torch.zeros(batch, 10), torch.zeros(batch, 4)
            mask[:, :valid] = 1
            mask_2[:, : 3 if glyphs and not prefix else 0] = 1
            given[f"{prefix}prompt_embeds"] = torch.randn(batch, 10, 24, generator=draw)
            given[f"{prefix}prompt_embeds_mask"] = mask
            given[f"{prefix}prompt_embeds_2"] = torch.randn(batch, 4, 12, generator=draw)
            given[f"{prefix}prompt_embeds_mask_2"] = mask_2
        return given

    return build


class Denoiser(ModelMixin, ConfigMixin):
    """Predicts noise from latents [B, T, E], a timestep [B] and a prompt [B, T, E]."""

    @register_to_config
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2 * width, width)

    def forward(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, encoder_hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor]:
        joined = torch.cat([hidden_states, encoder_hidden_states.expand_as(hidden_states)], dim=-1)
        return (torch.tanh(self.inner(joined)) * (1 + timestep[:, None, None] / 1000),)


class TinyPipeline(DiffusionPipeline):
    """As diffusers' own pipelines are written, with a model that compiles at once."""

    _optional_components = ("extra",)

    def __init__(self, transformer: Denoiser, scheduler: Any, extra: Any = None) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler, extra=extra)

    def encode_prompt(self, prompt_embeds: torch.Tensor) -> torch.Tensor:
        return self.transformer(prompt_embeds, torch.zeros(len(prompt_embeds)), prompt_embeds)[0] * 2

    @torch.no_grad()
    def __call__(
        self,
        prompt_embeds: torch.Tensor,
        num_inference_steps: int = 3,
        guidance_scale: float = 1.0,
        generator: torch.Generator | None = None,
        output_type: str = "pt",
        callback_on_step_end: Any = None,
        callback_on_step_end_tensor_inputs: Any = ("latents",),
    ) -> Any:
        self._interrupt = False
        device = self._execution_device
        latents = torch.randn(prompt_embeds.shape, generator=generator, device=device)
        self.scheduler.set_timesteps(num_inference_steps, device=device)
        with self.progress_bar(total=num_inference_steps) as bar:
            for step, timestep in enumerate(self.scheduler.timesteps):
                if self._interrupt:
                    continue
                noise = self.transformer(
                    hidden_states=latents,
                    timestep=timestep.expand(len(latents)),
                    encoder_hidden_states=prompt_embeds,
                )[0]
                latents = self.scheduler.step(noise * guidance_scale, timestep, latents, return_dict=False)[0]
                if callback_on_step_end is not None:
                    held = {"latents": latents, "prompt_embeds": prompt_embeds}
                    shown = {name: held[name] for name in callback_on_step_end_tensor_inputs}
                    returned = callback_on_step_end(self, step, timestep, shown)
                    latents = returned.pop("latents", latents)
                bar.update()
        images = (latents / 2 + 0.5).clamp(0, 1)
        if output_type == "np":
            return ImagePipelineOutput(images=images.cpu().float().numpy())
        if output_type == "tuple":
            return (images,)
        return ImagePipelineOutput(images=images)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="package")
def tiny() -> Callable[..., Any]:
    """Makes pipelines of a model that compiles at once, always of the same random weights."""

    def build(scheduler: Any = None, **components: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            pipe = TinyPipeline(
                Denoiser().eval(), scheduler or FlowMatchEulerDiscreteScheduler(), **components
            )
        pipe.set_progress_bar_config(disable=True)
        return pipe

    return build
