"""Tiny pipelines with a prior that makes embeddings of pictures: Kandinsky 1 and 2.2, Stable unCLIP, Shap-E."""

import functools
from typing import Any

import diffusers
import torch
from diffusers import DDIMScheduler, DDPMScheduler, EulerDiscreteScheduler, UnCLIPScheduler

from benchmarks.tiny_diffusers import construct
from benchmarks.tiny_pipeline_parts import (
    SIZE,
    Builder,
    call,
    draw,
    fill_zeros,
    frames,
    image_vae,
    mask,
    pipeline,
    prompts,
    text_encoder,
    vision_encoder,
    vision_processor,
)
from benchmarks.tiny_pipelines_unet import kandinsky_2, stable_cascade, unet

_WIDTH, _TOKENS = 32, 8


def prior_transformer(**options: Any) -> torch.nn.Module:
    """A transformer over embeddings of 32 numbers and prompts of eight tokens."""
    return fill_zeros(
        construct("PriorTransformer", **{"embedding_dim": _WIDTH, "num_embeddings": _TOKENS, **options})
    )


def encoded(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """So many prompts of eight tokens: their embeddings, the states of their tokens, and their masks."""
    valid = torch.arange(_TOKENS)[None] < _TOKENS - torch.arange(count)[:, None]
    return draw(count, _WIDTH, seed=1), draw(count, _TOKENS, _WIDTH, seed=2), valid


def kandinsky_prior(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """The model that makes embeddings of pictures for Kandinsky's decoder."""
    scheduler = UnCLIPScheduler(
        variance_type="fixed_small_log",
        prediction_type="sample",
        num_train_timesteps=1000,
        clip_sample_range=5.0,
    )
    pipe = pipeline(
        name, prior=prior_transformer(), image_encoder=vision_encoder(), text_encoder=text_encoder(),
        image_processor=vision_processor(), scheduler=scheduler,
    )  # fmt: skip
    pipe._encode_prompt = lambda *_: encoded(2)
    return pipe, {"prompt": "a cat", "guidance_scale": 4.0, **inputs}


def kandinsky_1(name: str, channels: int = 4, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Kandinsky's first decoder, from embeddings of pictures and the states of a prompt."""
    decoder, embeddings = kandinsky_2("KandinskyV22Pipeline")
    options = {
        "in_channels": channels, "out_channels": 8, "addition_embed_type": "text_image", "layers_per_block": 1,
        "down_block_types": ("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"), "encoder_hid_dim": 32,
        "up_block_types": ("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"), "class_embed_type": None,
        "mid_block_type": "UNetMidBlock2DSimpleCrossAttn", "encoder_hid_dim_type": "text_image_proj",
        "block_out_channels": (32, 64), "resnet_time_scale_shift": "scale_shift", "cross_attention_dim": 32,
        "attention_head_dim": 4, "norm_num_groups": 8,
    }  # fmt: skip
    pipe = pipeline(
        name, unet=construct("UNet2DConditionModel", **options), movq=decoder.movq, text_encoder=text_encoder(),
        scheduler=DDIMScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1),
    )  # fmt: skip
    pipe._encode_prompt = lambda *_: encoded(2)
    return pipe, {"prompt": "a cat", **embeddings, **inputs}


def kandinsky_combined(name: str, decoder: Builder, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Both models of Kandinsky in one pipeline."""
    prior, _ = kandinsky_prior("KandinskyV22PriorPipeline" if "V22" in name else "KandinskyPriorPipeline")
    components = {f"prior_{key}": part for key, part in prior.components.items()}
    pipe = pipeline(name, **components, **decoder()[0].components)
    pipe.prior_pipe._encode_prompt = lambda *_: encoded(2)
    pipe.decoder_pipe._encode_prompt = lambda *_: encoded(2)
    return pipe, {"prompt": "a cat", "prior_num_inference_steps": 2, **SIZE, **inputs}


def stable_cascade_combined() -> tuple[Any, dict[str, Any]]:
    """Both models of Stable Cascade in one pipeline."""
    prior, texts = stable_cascade("StableCascadePriorPipeline")
    decoder, _ = stable_cascade("StableCascadeDecoderPipeline")
    components = {f"prior_{key}": part for key, part in prior.components.items()}
    pipe = pipeline("StableCascadeCombinedPipeline", **components, **decoder.components)
    return pipe, {**texts, "prior_num_inference_steps": 2, "height": 128, "width": 128}


def stable_unclip(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Stable Diffusion from embeddings of pictures, to which a scheduler adds noise."""
    from diffusers.pipelines.stable_diffusion.stable_unclip_image_normalizer import (
        StableUnCLIPImageNormalizer,
    )

    components: dict[str, Any] = {
        "unet": unet(class_embed_type="projection", projection_class_embeddings_input_dim=2 * _WIDTH),
        "image_normalizer": StableUnCLIPImageNormalizer(embedding_dim=_WIDTH).eval(),
        "image_noising_scheduler": DDPMScheduler(beta_schedule="squaredcos_cap_v2"),
        "scheduler": DDIMScheduler(clip_sample=False), "vae": image_vae(),
    }  # fmt: skip
    if name == "StableUnCLIPPipeline":
        components["prior"] = prior_transformer()
        components["prior_scheduler"] = UnCLIPScheduler(
            variance_type="fixed_small_log", prediction_type="sample", clip_sample_range=5.0
        )
        inputs |= {"prompt": None, "prior_num_inference_steps": 2}
    else:
        components |= {"image_encoder": vision_encoder(), "feature_extractor": vision_processor()}
    pipe = pipeline(name, **components)
    pipe._encode_prior_prompt = lambda **_: encoded(2)
    return pipe, {**prompts(), "noise_level": 10, **SIZE, **inputs}


def shap_e(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Shap-E, whose latents are the weights of a radiance field."""
    from diffusers.pipelines.shap_e.renderer import ShapERenderer

    from_image = "Img2Img" in name
    prior = prior_transformer(
        num_attention_heads=2, attention_head_dim=16, num_layers=1, num_embeddings=_WIDTH, embedding_dim=16,
        embedding_proj_dim=_WIDTH, time_embed_dim=64, clip_embed_dim=2 * 16, additional_embeddings=0,
        time_embed_act_fn="gelu", norm_in_type="layer", encoder_hid_proj_type=None, added_emb_type=None,
        embedding_proj_norm_type="layer" if from_image else None,
    )  # fmt: skip
    renderer = ShapERenderer(
        param_shapes=((8, 93), (8, 8), (8, 8), (8, 8)), d_latent=16, d_hidden=8, n_output=12,
        background=(0.1, 0.1, 0.1),
    ).eval()  # fmt: skip
    # A few samples of each ray.
    renderer.decode_to_image = functools.partial(
        renderer.decode_to_image, n_coarse_samples=4, n_fine_samples=4
    )
    components: dict[str, Any] = {"text_encoder": text_encoder()}
    if from_image:
        components = {
            "image_encoder": vision_encoder(with_projection=False),
            "image_processor": vision_processor(),
        }
    scheduler = diffusers.HeunDiscreteScheduler(
        beta_schedule="exp", num_train_timesteps=1024, prediction_type="sample", use_karras_sigmas=True,
        clip_sample=True, clip_sample_range=1.0,
    )  # fmt: skip
    pipe = pipeline(name, prior=prior, shap_e_renderer=renderer, scheduler=scheduler, **components)
    if not from_image:
        pipe._encode_prompt = lambda *_: torch.cat([torch.zeros(1, _WIDTH), draw(1, _WIDTH, seed=1)])
    return pipe, {"frame_size": 32, **inputs}


def latent_upscale() -> tuple[Any, dict[str, Any]]:
    """Stable Diffusion's upscaler of latents."""
    net = unet(in_channels=8, out_channels=5, time_cond_proj_dim=160, cross_attention_dim=32)
    pipe = pipeline(
        "StableDiffusionLatentUpscalePipeline", unet=net, vae=image_vae(), text_encoder=text_encoder(),
        scheduler=EulerDiscreteScheduler(prediction_type="sample"),
    )  # fmt: skip
    texts = prompts(pooled=32)
    return pipe, {**texts, "image": draw(1, 4, 8, 8, seed=3)}


_INPAINTING = {"image": frames(1)[0], "mask_image": mask()[0, 0].numpy()}
BUILDERS: dict[str, Builder] = {
    "KandinskyPriorPipeline": call(kandinsky_prior, "KandinskyPriorPipeline"),
    "KandinskyV22PriorPipeline": call(kandinsky_prior, "KandinskyV22PriorPipeline"),
    "KandinskyV22PriorEmb2EmbPipeline": call(
        kandinsky_prior, "KandinskyV22PriorEmb2EmbPipeline", image=frames(1, side=32)[0], strength=0.9
    ),
    "KandinskyPipeline": call(kandinsky_1, "KandinskyPipeline", **SIZE),
    "KandinskyImg2ImgPipeline": call(
        kandinsky_1, "KandinskyImg2ImgPipeline", image=frames(1)[0], strength=0.9, **SIZE
    ),
    "KandinskyInpaintPipeline": call(kandinsky_1, "KandinskyInpaintPipeline", 9, **_INPAINTING, **SIZE),
    "KandinskyCombinedPipeline": call(
        kandinsky_combined, "KandinskyCombinedPipeline", call(kandinsky_1, "KandinskyPipeline")
    ),
    "KandinskyImg2ImgCombinedPipeline": call(
        kandinsky_combined, "KandinskyImg2ImgCombinedPipeline", call(kandinsky_1, "KandinskyImg2ImgPipeline"),
        image=frames(1)[0], strength=0.9,
    ),
    "KandinskyInpaintCombinedPipeline": call(
        kandinsky_combined, "KandinskyInpaintCombinedPipeline", call(kandinsky_1, "KandinskyInpaintPipeline", 9),
        **_INPAINTING,
    ),
    "KandinskyV22CombinedPipeline": call(
        kandinsky_combined, "KandinskyV22CombinedPipeline", call(kandinsky_2, "KandinskyV22Pipeline")
    ),
    "KandinskyV22Img2ImgCombinedPipeline": call(
        kandinsky_combined, "KandinskyV22Img2ImgCombinedPipeline", call(kandinsky_2, "KandinskyV22Img2ImgPipeline"),
        image=frames(1)[0], strength=0.9,
    ),
    "KandinskyV22InpaintCombinedPipeline": call(
        kandinsky_combined, "KandinskyV22InpaintCombinedPipeline", call(kandinsky_2, "KandinskyV22InpaintPipeline", 9),
        **_INPAINTING,
    ),
    "StableCascadeCombinedPipeline": stable_cascade_combined,
    "StableUnCLIPPipeline": call(stable_unclip, "StableUnCLIPPipeline"),
    "StableUnCLIPImg2ImgPipeline": call(
        stable_unclip, "StableUnCLIPImg2ImgPipeline", image=frames(1, side=32)[0]
    ),
    "ShapEPipeline": call(shap_e, "ShapEPipeline", prompt="a shark"),
    "ShapEImg2ImgPipeline": call(shap_e, "ShapEImg2ImgPipeline", image=frames(1, side=32)[0]),
    "StableDiffusionLatentUpscalePipeline": latent_upscale,
}  # fmt: skip
