"""A Flux pipeline of diffusers' and transformers' own classes, with random weights, for a CPU."""

from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from transformers import (
    ByT5Tokenizer,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
)

from recipes.llama.tokenizer import byte_symbols

START, END = "<|startoftext|>", "<|endoftext|>"
LATENT_CHANNELS = 4
TEXT_WIDTH = 32


def build_tokenizer() -> CLIPTokenizer:
    """A token for each byte within a word and for each at its end."""
    symbols = byte_symbols()
    tokens = [*symbols, *(f"{symbol}</w>" for symbol in symbols), START, END]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)


def build_text_encoder(tokenizer: Any) -> CLIPTextModel:
    """CLIP, of which the transformer reads one vector for the whole prompt."""
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=TEXT_WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=77,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return CLIPTextModel(config)


def build_text_encoder_2() -> T5EncoderModel:
    """T5, of which the transformer reads a vector for each token."""
    return T5EncoderModel(
        T5Config(
            vocab_size=264,  # 256 bytes and 3 special tokens, rounded up
            d_model=TEXT_WIDTH,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            feed_forward_proj="gated-gelu",
        )
    )


def build_transformer() -> FluxTransformer2DModel:
    """Two double blocks and two single ones of width 96; 4 heads, so that up to 4 devices can share it."""
    return FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * LATENT_CHANNELS,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=24,
        num_attention_heads=4,
        joint_attention_dim=TEXT_WIDTH,
        pooled_projection_dim=TEXT_WIDTH,
        guidance_embeds=True,
        axes_dims_rope=(8, 8, 8),
    )


def build_vae() -> AutoencoderKL:
    """One latent for 4 x 4 pixels."""
    # Annotated with the number of blocks that the default has.
    model_class: Any = AutoencoderKL
    return model_class(
        block_out_channels=(16, 16, 16),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=4,
        shift_factor=0.1159,
        scaling_factor=0.3611,
    )


def build_pipeline(seed: int = 0) -> FluxPipeline:
    """The tiny pipeline in float32 on the CPU; the same seed gives the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer = build_tokenizer()
        # Annotated with the tokenizer of the real weights.
        pipeline_class: Any = FluxPipeline
        return pipeline_class(
            scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0),
            vae=build_vae().eval(),
            text_encoder=build_text_encoder(tokenizer).eval(),
            tokenizer=tokenizer,
            text_encoder_2=build_text_encoder_2().eval(),
            tokenizer_2=ByT5Tokenizer(extra_ids=0),
            transformer=build_transformer().eval(),
        )
