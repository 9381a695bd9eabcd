"""Tiny pipelines whose models read words or residues beside pictures: Cosmos 3, Z-Image Omni, RFD4 and others."""

from types import SimpleNamespace
from typing import Any

import diffusers
import torch

from benchmarks.tiny_diffusers import construct
from benchmarks.tiny_diffusers_parts import protein_conditions
from benchmarks.tiny_pipeline_parts import Builder, draw, frames, image_vae, pipeline
from benchmarks.tiny_pipelines_image import flow
from benchmarks.tiny_pipelines_unet import unet
from benchmarks.tiny_pipelines_video import wan_vae

_LARGE = {"height": 32, "width": 32}


class Vocabulary:
    """A tokenizer of which a pipeline asks for single tokens, and to which every text is the same."""

    eos_token_id = 2
    model_max_length = 8

    def convert_tokens_to_ids(self, token: str) -> int:
        """Of the token that starts a picture."""
        return 3

    def __call__(self, texts: Any, **_: Any) -> Any:
        """Eight tokens for each text, other ones for an empty one."""
        texts = [texts] if isinstance(texts, str) else texts
        return SimpleNamespace(input_ids=torch.tensor([[4 + len(text) % 8] * 8 for text in texts]))


def cosmos_3() -> tuple[Any, dict[str, Any]]:
    """Cosmos 3, one transformer for the tokens of a prompt and of a clip."""
    transformer = construct("Cosmos3OmniTransformer", latent_channel=16, patch_latent_dim=64)
    scheduler = diffusers.UniPCMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction")
    pipe = pipeline(
        "Cosmos3OmniPipeline", vae=wan_vae(), transformer=transformer, scheduler=scheduler,
        text_tokenizer=Vocabulary(), enable_safety_checker=False,
    )  # fmt: skip
    pipe.tokenize_prompt = lambda *_, **__: ([5, 6, 7, 8], [5, 9])
    return pipe, {"prompt": "a cat", **_LARGE, "num_frames": 5, "image": frames(1, side=32)[0]}


def z_image_omni() -> tuple[Any, dict[str, Any]]:
    """Z-Image Omni without a picture: it encodes one in bfloat16 only."""
    transformer = construct("ZImageTransformer2DModel", in_channels=4, cap_feat_dim=32, siglip_feat_dim=32)
    pipe = pipeline(
        "ZImageOmniPipeline",
        vae=image_vae(),
        scheduler=flow(use_dynamic_shifting=True),
        transformer=transformer,
    )
    texts = {"prompt_embeds": [[draw(7, 32, seed=1)]], "negative_prompt_embeds": [[draw(5, 32, seed=2)]]}
    return pipe, {**texts, **_LARGE}


def latent_diffusion() -> tuple[Any, dict[str, Any]]:
    """Latent diffusion's first pipeline, with a text encoder of its own."""
    from diffusers.pipelines.latent_diffusion.pipeline_latent_diffusion import LDMBertConfig, LDMBertModel

    encoder = LDMBertModel(
        LDMBertConfig(
            vocab_size=32, d_model=32, encoder_layers=1, encoder_ffn_dim=32, encoder_attention_heads=2, head_dim=16,
            max_position_embeddings=16,
        )
    ).eval()  # fmt: skip
    pipe = pipeline(
        "LDMTextToImagePipeline", vqvae=image_vae(), bert=encoder, tokenizer=Vocabulary(), unet=unet(),
        scheduler=diffusers.DDIMScheduler(clip_sample=False),
    )  # fmt: skip
    return pipe, {"prompt": "a cat", "height": 64, "width": 64, "guidance_scale": 3.0}


def protein_design() -> tuple[Any, dict[str, Any]]:
    """RFD4, which designs a protein: the positions of its residues and what they are."""
    options = {"schedule_mode": "log", "noise_mode": "1/t", "tsr_k": 1.0, "tsr_sigma": 1.0, "tail_steps": 1}
    pipe = pipeline(
        "RFD4ProteinaPipeline", transformer=construct("RFD4ProteinaTransformer", num_sequence_classes=9),
        vae=construct("RFD4ProteinaAutoencoder"), bb_ca_scheduler=diffusers.RFD4ProteinaScheduler(**options),
        local_latents_scheduler=diffusers.RFD4ProteinaScheduler(**options),
        recycle_depths=[0, 0],
    )  # fmt: skip
    features = {name: value[:1] for name, value in protein_conditions().items()}
    features["condition_sequence_1_residue"] = torch.zeros(1, 12, dtype=torch.long)
    context = {name: features.pop(name) for name in ("is_in_context_conditioning", "supports_local_latent")}
    inputs = {
        "padding_mask": torch.ones(1, 12, dtype=torch.bool),
        "token_type": torch.ones(1, 12, dtype=torch.long),
    }
    return pipe, {**inputs, **context, "conditioning_features": features}


BUILDERS: dict[str, Builder] = {
    "Cosmos3OmniPipeline": cosmos_3,
    "ZImageOmniPipeline": z_image_omni,
    "LDMTextToImagePipeline": latent_diffusion,
    "RFD4ProteinaPipeline": protein_design,
}
