"""Tiny pipelines of the newest families that make pictures, and of those that edit or measure them."""

from types import SimpleNamespace
from typing import Any

import diffusers
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler

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
    picture,
    pipeline,
    positive,
    prompts,
    text_encoder,
)
from benchmarks.tiny_pipelines_image import flow, shrink_pictures
from benchmarks.tiny_pipelines_image_rarer import flux2_vae
from benchmarks.tiny_pipelines_unet import BLOCKS, SIZES, XL, unet
from benchmarks.tiny_pipelines_video import wan_vae

_LARGE = {"height": 32, "width": 32}
_EMBEDS_MASK = "_embeds_mask"


# --- Qwen-Image ---


def qwen_image_21(**inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Qwen-Image 2.1, whose prompts are part of the picture's sequence."""
    transformer = construct("QwenImage21Transformer2DModel", in_channels=16, out_channels=16)
    vae = construct("AutoencoderKLQwenImage21", z_dim=16, latents_mean=[0.1] * 16, latents_std=[1.2] * 16)
    pipe = pipeline(
        "QwenImage21Pipeline", vae=vae, scheduler=flow(use_dynamic_shifting=True), transformer=transformer,
        processor=ChatProcessor(),
    )  # fmt: skip
    return pipe, {**prompts(attention_mask=_EMBEDS_MASK), **_LARGE, "true_cfg_scale": 2.0, **inputs}


class ChatProcessor:
    """A processor whose tokens pipelines count when they are built."""

    image_processor = None

    def apply_chat_template(self, *_: Any, **__: Any) -> list[list[int]]:
        """A message of three tokens."""
        return [[1, 2, 3]]

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer, for which every text is one token."""
        return SimpleNamespace(encode=lambda text: [4])


def qwen_image_layered() -> tuple[Any, dict[str, Any]]:
    """Qwen-Image that takes a picture apart into layers."""
    transformer = diffusers.QwenImageTransformer2DModel(
        patch_size=2, in_channels=64, out_channels=16, num_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, axes_dims_rope=(8, 4, 4), use_additional_t_cond=True, use_layer3d_rope=True,
    ).eval()  # fmt: skip
    vae = diffusers.AutoencoderKLQwenImage(
        base_dim=4, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
        latents_mean=[0.1] * 16, latents_std=[1.2] * 16, input_channels=4,
    ).eval()  # fmt: skip
    pipe = pipeline(
        "QwenImageLayeredPipeline", vae=vae, scheduler=flow(use_dynamic_shifting=True), transformer=transformer,
        text_encoder=text_encoder(),
    )  # fmt: skip
    shrink_pictures(pipe)
    picture = frames(1, side=32)[0].convert("RGBA")
    return pipe, {**prompts(attention_mask=_EMBEDS_MASK), "prompt": "x", "image": picture, "layers": 2}


# --- others ---


def ideogram() -> tuple[Any, dict[str, Any]]:
    """Ideogram 4, which has another transformer for the steps without a prompt."""
    sizes = {"in_channels": 16, "llm_features_dim": 32}
    pipe = pipeline(
        "Ideogram4Pipeline", vae=flux2_vae(), scheduler=flow(),
        transformer=construct("Ideogram4Transformer2DModel", **sizes),
        unconditional_transformer=construct("Ideogram4Transformer2DModel", **sizes),
    )  # fmt: skip

    def encode(
        prompt: Any, grid_h: int, grid_w: int, device: Any, max_sequence_length: int
    ) -> tuple[Any, ...]:
        text, image = draw(1, max_sequence_length, 32, seed=1), torch.zeros(1, grid_h * grid_w, 32)
        ids = pipe._prepare_ids([max_sequence_length - 1], grid_h, grid_w, max_sequence_length, device)
        return torch.cat([text, image], dim=1), *ids

    pipe.encode_prompt = encode
    return pipe, {"prompt": "a cat", **_LARGE, "max_sequence_length": 8, "guidance_schedule": (3.0, 2.0)}


def bria_fibo(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Bria Fibo, whose blocks read the states of a text encoder's layers."""
    transformer = construct(
        "BriaFiboTransformer2DModel", in_channels=16, num_layers=1, num_single_layers=1, joint_attention_dim=32,
        text_encoder_dim=16, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    pipe = pipeline(
        name, vae=wan_vae(), scheduler=flow(), transformer=transformer, text_encoder=text_encoder()
    )

    def embed(prompt: Any, **_: Any) -> tuple[Any, ...]:
        seed = len(prompt[0])
        return draw(1, 7, 32, seed=seed), [draw(1, 7, 16, seed=seed)] * 2, torch.ones(1, 7)

    pipe.get_prompt_embeds = embed
    return pipe, {"prompt": '{"edit_instruction": "blue"}', "negative_prompt": "", **_LARGE, **inputs}


def joy_image_plus() -> tuple[Any, dict[str, Any]]:
    """JoyImage, which edits several pictures."""
    transformer = construct(
        "JoyImageEditPlusTransformer3DModel", in_channels=16, out_channels=16, text_dim=32
    )
    pipe = pipeline("JoyImageEditPlusPipeline", vae=wan_vae(), scheduler=flow(), transformer=transformer)
    # Its own sizes are about 1,024 pixels a side.
    pipe.image_processor.get_default_height_width = lambda image, *_: (32, 32)

    def encode(prompt: list[str], **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return draw(1, 7, 32, seed=len(prompt[0])), torch.ones(1, 7, dtype=torch.long)

    pipe.encode_prompt_multiple_images = encode
    return pipe, {"prompt": "blue", "negative_prompt": "", **_LARGE, "images": [frames(2, side=32)]}


def long_cat_edit() -> tuple[Any, dict[str, Any]]:
    """LongCat-Image, which edits a picture."""
    transformer = construct(
        "LongCatImageTransformer2DModel", in_channels=64, num_layers=1, num_single_layers=1, joint_attention_dim=32,
        axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    pipe = pipeline(
        "LongCatImageEditPipeline", vae=image_vae(16), scheduler=flow(use_dynamic_shifting=True),
        transformer=transformer, text_processor=ChatProcessor(),
    )  # fmt: skip
    shrink_pictures(pipe)
    # It asks for texts, also beside embeddings.
    pipe._encode_prompt = lambda texts, image: draw(len(texts), 7, 32, seed=len(texts[0]))
    return pipe, {"prompt": "blue", "negative_prompt": "", "image": frames(1, side=32)[0]}


def omni_gen(**inputs: Any) -> tuple[Any, dict[str, Any]]:
    """OmniGen, one transformer for text and pictures."""
    transformer = construct("OmniGenTransformer2DModel", in_channels=4)
    vae = image_vae(
        block_out_channels=(8,) * 4, down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
    )  # fmt: skip
    scheduler = FlowMatchEulerDiscreteScheduler(invert_sigmas=True, num_train_timesteps=1)
    stand_in_for_transforms()
    pipe = pipeline("OmniGenPipeline", vae=vae, scheduler=scheduler, transformer=transformer)
    pipe.multimodal_processor.text_tokenizer = Letters()
    return pipe, {"prompt": "a cat", **_LARGE, **inputs}


def stand_in_for_transforms() -> None:
    """Give OmniGen's processor what it builds of torchvision, if there is none; it reads no picture with it here."""
    from diffusers.pipelines.omnigen import pipeline_omnigen, processor_omnigen

    if hasattr(pipeline_omnigen, "OmniGenMultiModalProcessor"):
        return
    anything = SimpleNamespace(
        Compose=list, Lambda=lambda function: function, ToTensor=list, Normalize=lambda **_: None
    )
    processor_omnigen.transforms = anything  # type: ignore[attr-defined]
    pipeline_omnigen.OmniGenMultiModalProcessor = processor_omnigen.OmniGenMultiModalProcessor  # type: ignore[attr-defined]


class Letters:
    """A tokenizer with a token a letter."""

    def __call__(self, text: str) -> Any:
        """The tokens, of which there are 60."""
        return SimpleNamespace(input_ids=[1 + ord(letter) % 60 for letter in text])


def visual_cloze(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """VisualCloze: Flux's transformer over a grid of pictures, of which it makes the missing one."""
    # Latents of 4 channels in patches of 2 x 2, the same of masked pictures, and a mask of 2 x 2 x 2 x 2 pixels.
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=16 + 16 + 16, out_channels=16, num_layers=1, num_single_layers=1,
        attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8), guidance_embeds=True,
    ).eval()  # fmt: skip
    pipe = pipeline(
        name,
        vae=image_vae(),
        scheduler=flow(use_dynamic_shifting=True),
        transformer=transformer,
        resolution=32,
    )
    texts = positive(prompts(pooled=32))
    ids = torch.zeros(7, 3)
    for part in (pipe, getattr(pipe, "generation_pipe", None), getattr(pipe, "upsampling_pipe", None)):
        if part is not None:
            part.encode_prompt = lambda **_: (*texts.values(), ids)
    first, second, third = frames(3, side=32)
    grid = {"image": [[first, second], [third, None]]}
    return pipe, {"task_prompt": "blue", "content_prompt": "a cat", **grid, **inputs}


def dream_lite(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """DreamLite, a small U-Net with a small autoencoder."""
    net = construct(
        "DreamLiteUNetModel", block_out_channels=(8, 8, 16), norm_num_groups=4, in_channels=4, out_channels=4,
        cross_attention_dim=32, attention_head_dim=4,
    )  # fmt: skip
    vae = diffusers.AutoencoderTiny(
        latent_channels=4, encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8),
        num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1), upsampling_scaling_factor=2,
    ).eval()  # fmt: skip
    pipe = pipeline(name, unet=net, vae=vae, scheduler=flow(), text_encoder=text_encoder())

    def encode(**call: Any) -> tuple[torch.Tensor, torch.Tensor]:
        count = len(call["prompts"])
        return draw(count, 7, 32), torch.ones(count, 7, dtype=torch.long)

    pipe.encode_prompt = encode
    return pipe, {"prompt": "a cat", **_LARGE, **inputs}


def marigold(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Marigold, which measures depths, normals or materials in a picture."""
    count = 2 if "Intrinsics" in name else 1
    net = unet(in_channels=4 + 4 * count, out_channels=4 * count)
    targets = {
        "target_names": ["albedo", "shading"],
        "albedo": {"up_to_scale": False},
        "shading": {"up_to_scale": 1},
    }
    options = {"target_properties": targets} if count == 2 else {}
    pipe = pipeline(
        name, unet=net, vae=image_vae(), scheduler=DDIMScheduler(clip_sample=False), default_denoising_steps=2,
        default_processing_resolution=0, **options,
    )  # fmt: skip
    pipe.empty_text_embedding = draw(1, 2, 32)
    return pipe, {"image": picture(1), "output_latent": True, **inputs}


# --- U-Nets ---


def union_controlnet(name: str, **inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Stable Diffusion XL with one ControlNet for six kinds of pictures."""
    net = construct(
        "ControlNetUnionModel", **SIZES, **BLOCKS, **XL, conditioning_embedding_out_channels=(8, 8),
        num_trans_channel=8, num_proj_channel=8,
    )  # fmt: skip
    pipe = pipeline(
        name, vae=image_vae(), unet=unet(**XL), controlnet=fill_zeros(net),
        scheduler=diffusers.EulerDiscreteScheduler(),
    )  # fmt: skip
    options = {"control_image": [picture(1, seed=6)], "control_mode": [1]}
    return pipe, {**prompts(pooled=32), **SIZE, **options, **inputs}


def latent_larger() -> tuple[Any, dict[str, Any]]:
    """Latent diffusion that makes a picture larger."""
    net = diffusers.UNet2DModel(
        block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, sample_size=16, in_channels=6,
        out_channels=3, down_block_types=("DownBlock2D", "AttnDownBlock2D"), attention_head_dim=4,
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).eval()  # fmt: skip
    vae = diffusers.VQModel(
        block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2, latent_channels=3,
        up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4, num_vq_embeddings=12,
    ).eval()  # fmt: skip
    pipe = pipeline("LDMSuperResolutionPipeline", vqvae=vae, unet=net, scheduler=DDIMScheduler())
    return pipe, {"image": picture(1)}


_INPAINTING = {"mask_image": mask(), "strength": 0.9}
BUILDERS: dict[str, Builder] = {
    "QwenImage21Pipeline": qwen_image_21,
    "QwenImageLayeredPipeline": qwen_image_layered,
    "Ideogram4Pipeline": ideogram,
    "BriaFiboPipeline": call(bria_fibo, "BriaFiboPipeline"),
    "BriaFiboEditPipeline": call(
        bria_fibo, "BriaFiboEditPipeline", image=frames(1, side=32)[0], _auto_resize=False
    ),
    "JoyImageEditPlusPipeline": joy_image_plus,
    "LongCatImageEditPipeline": long_cat_edit,
    "OmniGenPipeline": omni_gen,
    "VisualClozePipeline": call(
        visual_cloze, "VisualClozePipeline", upsampling_height=32, upsampling_width=32
    ),
    "VisualClozeGenerationPipeline": call(visual_cloze, "VisualClozeGenerationPipeline"),
    "DreamLitePipeline": call(dream_lite, "DreamLitePipeline"),
    "DreamLiteMobilePipeline": call(dream_lite, "DreamLiteMobilePipeline", image=frames(1, side=32)[0]),
    "MarigoldDepthPipeline": call(marigold, "MarigoldDepthPipeline"),
    "MarigoldNormalsPipeline": call(marigold, "MarigoldNormalsPipeline"),
    "MarigoldIntrinsicsPipeline": call(marigold, "MarigoldIntrinsicsPipeline"),
    "StableDiffusionXLControlNetUnionPipeline": call(
        union_controlnet, "StableDiffusionXLControlNetUnionPipeline"
    ),
    "StableDiffusionXLControlNetUnionImg2ImgPipeline": call(
        union_controlnet, "StableDiffusionXLControlNetUnionImg2ImgPipeline", image=picture(1), strength=0.9
    ),
    "StableDiffusionXLControlNetUnionInpaintPipeline": call(
        union_controlnet, "StableDiffusionXLControlNetUnionInpaintPipeline", image=picture(1), **_INPAINTING
    ),
    "LDMSuperResolutionPipeline": latent_larger,
}  # fmt: skip
