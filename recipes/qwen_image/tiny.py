"""A Qwen-Image pipeline of diffusers' and transformers' own classes, with random weights, for a CPU."""

import torch
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import AutoencoderKLQwenImage
from diffusers.models.transformers.transformer_qwenimage import QwenImageTransformer2DModel
from diffusers.pipelines.qwenimage.pipeline_qwenimage import QwenImagePipeline
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

from recipes.llama.tokenizer import byte_symbols

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEXT_WIDTH = 32


def build_tokenizer() -> Qwen2Tokenizer:
    """A token for each byte, and those of the chat template."""
    vocabulary = {symbol: byte for byte, symbol in enumerate([*byte_symbols(), PAD, START, END])}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[], padding_side="right")
    tokenizer.add_special_tokens({"additional_special_tokens": [START, END]})
    return tokenizer


def build_text_encoder() -> Qwen2_5_VLForConditionalGeneration:
    """Two layers; the part that sees pictures is there and never runs."""
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 264,  # 256 bytes and 3 special tokens, rounded up
            "hidden_size": TEXT_WIDTH,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 1, 1]},
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": TEXT_WIDTH,
        },
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def build_transformer() -> QwenImageTransformer2DModel:
    """Two blocks of width 96; 4 heads, so that up to 4 devices can share it."""
    return QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=64,
        out_channels=16,
        num_layers=2,
        attention_head_dim=24,
        num_attention_heads=4,
        joint_attention_dim=TEXT_WIDTH,
        axes_dims_rope=(8, 8, 8),
    )


def build_vae() -> AutoencoderKLQwenImage:
    """One latent for 8 x 8 pixels."""
    return AutoencoderKLQwenImage(
        base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )


def build_pipeline(seed: int = 0) -> QwenImagePipeline:
    """The tiny pipeline in float32 on the CPU; the same seed gives the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return QwenImagePipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
            vae=build_vae().eval(),
            text_encoder=build_text_encoder().eval(),
            tokenizer=build_tokenizer(),
            transformer=build_transformer().eval(),
        )
