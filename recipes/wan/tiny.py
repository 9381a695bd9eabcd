"""A Wan 2.2 pipeline of diffusers' and transformers' own classes, with random weights, for a CPU."""

from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from diffusers.pipelines.wan.pipeline_wan import WanPipeline
from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler
from transformers import ByT5Tokenizer, UMT5Config, UMT5EncoderModel

TEXT_WIDTH = 32


def build_transformer() -> WanTransformer3DModel:
    """Two blocks of width 96; 4 heads, so that up to 4 devices can share it."""
    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=4,
        attention_head_dim=24,
        in_channels=16,
        out_channels=16,
        text_dim=TEXT_WIDTH,
        freq_dim=32,
        ffn_dim=192,
        num_layers=2,
        rope_max_seq_len=64,
    )


def build_vae() -> AutoencoderKLWan:
    """One latent for 8 x 8 pixels of 4 frames."""
    return AutoencoderKLWan(
        base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )


def build_text_encoder() -> UMT5EncoderModel:
    """Two layers that read bytes."""
    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=264,  # 256 bytes and 3 special tokens, rounded up
            d_model=TEXT_WIDTH,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            feed_forward_proj="gated-gelu",
        )
    )


def build_pipeline(seed: int = 0) -> WanPipeline:
    """The tiny pipeline in float32 on the CPU; the same seed gives the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # Annotated with the tokenizer and scheduler of the real weights.
        pipeline_class: Any = WanPipeline
        return pipeline_class(
            tokenizer=ByT5Tokenizer(extra_ids=0),
            text_encoder=build_text_encoder().eval(),
            vae=build_vae().eval(),
            scheduler=UniPCMultistepScheduler(
                prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
            ),
            transformer=build_transformer().eval(),
            transformer_2=build_transformer().eval(),
            boundary_ratio=0.875,
        )
