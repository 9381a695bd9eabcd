"""What the names of arguments do not tell about diffusers' classes: small configurations and inputs by hand.

`tiny_diffusers_transformers` and `tiny_diffusers_parts` have the same for the rarer classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Small:
    """How a class is made small.

    Attributes:
        config: Constructor arguments, over those cut down by name; "only" takes these alone. A function makes the
            argument anew for each model.
        inputs: Arguments of `forward`, over those made by name, or a function that makes them; a value that is a
            function is given the model's configuration.
        layout: How the sample is laid out: image, video, tokens or sound; by default whichever the model takes.
        more: Further calls: what they change in the first.
        prepare: What a user does with a new model before its first call.
    """

    config: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] | Callable[[], dict[str, Any]] = field(default_factory=dict)
    layout: str = ""
    more: tuple[dict[str, Any], ...] = ()
    prepare: Callable[[Any], None] = lambda model: None


def padded(length: int, dtype: torch.dtype = torch.bool) -> torch.Tensor:
    """A mask of two rows, the second of which is padded."""
    mask = torch.ones(2, length, dtype=dtype)
    mask[1, -3:] = 0
    return mask


UNET_2D = {
    "only": True, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8, "sample_size": 16,
}  # fmt: skip
UNET_CONDITION = {
    **UNET_2D, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "cross_attention_dim": 32,
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"), "attention_head_dim": 8,
}  # fmt: skip
TWO_IN_TWO_OUT = {
    "only": True, "block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1,
    "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
}  # fmt: skip

TABLE: dict[str, Small] = {
    "FluxTransformer2DModel": Small(layout="tokens", config={"guidance_embeds": True}),
    "SD3Transformer2DModel": Small(
        {"caption_projection_dim": 32, "num_attention_heads": 2, "attention_head_dim": 16, "qk_norm": "rms_norm"},
        {"encoder_hidden_states": torch.randn(2, 8, 32)},
    ),
    "HiDreamImageTransformer2DModel": Small(
        {"patch_size": 2, "axes_dims_rope": (4, 6, 6), "caption_channels": [32, 32],
         "llama_layers": [0, 1, 0, 1], "force_inference_output": True, "max_resolution": (32, 32)},
        {"encoder_hidden_states_t5": torch.randn(2, 8, 32), "encoder_hidden_states_llama3": torch.randn(2, 2, 8, 32),
         "pooled_embeds": torch.randn(2, 32), "img_ids": None},
        "image", more=({"hidden_states": torch.randn(2, 16, 16, 8)},),
    ),
    "Lumina2Transformer2DModel": Small({"hidden_size": 32, "num_kv_heads": 1}, layout="image"),
    "HunyuanVideoTransformer3DModel": Small(layout="video"),
    "HunyuanVideo15Transformer3DModel": Small(
        {}, {"encoder_hidden_states_2": torch.randn(2, 8, 32), "encoder_attention_mask_2": padded(8),
             "encoder_attention_mask": padded(8), "image_embeds": torch.randn(2, 4, 32)}, "video",
        more=({"image_embeds": torch.zeros(2, 4, 32)},),
    ),
    "WanTransformer3DModel": Small({"rope_max_seq_len": 32}, layout="video"),
    "LTXVideoTransformer3DModel": Small({"cross_attention_dim": 32}, layout="tokens"),
    "CogVideoXTransformer3DModel": Small(
        {"sample_frames": 5, "max_text_seq_length": 8, "sample_width": 16, "sample_height": 16},
        {"hidden_states": lambda config: torch.randn(2, 2, config.in_channels, 16, 16)},
    ),
    "MochiTransformer3DModel": Small(layout="video", config={"time_embed_dim": 32}),
    "AllegroTransformer3DModel": Small(
        {"cross_attention_dim": 48, "attention_head_dim": 24},
        {"attention_mask": torch.ones(2, 5, 16, 16), "image_rotary_emb": lambda config: allegro_rotary()}, "video",
    ),
    "PixArtTransformer2DModel": Small({"cross_attention_dim": 32, "num_attention_heads": 2}, layout="image"),
    "SanaTransformer2DModel": Small(
        {"num_cross_attention_heads": 2, "cross_attention_head_dim": 16, "cross_attention_dim": 32}, layout="image"
    ),
    "QwenImageTransformer2DModel": Small(layout="tokens"),
    "AuraFlowTransformer2DModel": Small({"caption_projection_dim": 32}, layout="image"),
    "ChromaTransformer2DModel": Small({"approximator_num_channels": 64}, layout="tokens"),
    "UNet2DModel": Small(
        {**UNET_2D, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "attention_head_dim": 8,
         "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}, layout="image",
    ),
    "UNet2DConditionModel": Small(UNET_CONDITION, layout="image"),
    "UNet3DConditionModel": Small(
        {"only": True, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8,
         "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"), "cross_attention_dim": 32,
         "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"), "attention_head_dim": 8}, layout="video",
    ),
    "AutoencoderKL": Small(TWO_IN_TWO_OUT, layout="image"),
    "AutoencoderKLWan": Small({"base_dim": 8, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1}, layout="video"),
    "AutoencoderKLQwenImage": Small({"base_dim": 8, "num_res_blocks": 1}, {"sample": torch.randn(1, 3, 1, 32, 32)}),
    "AutoencoderKLHunyuanVideo": Small(layout="video"),
    "AutoencoderKLCogVideoX": Small(layout="video"),
    "AutoencoderKLMochi": Small(
        {"encoder_block_out_channels": (32, 32, 32, 32), "decoder_block_out_channels": (32, 32, 32, 32)},
        {"sample": torch.randn(1, 3, 7, 32, 32)},
    ),
    "AutoencoderKLLTXVideo": Small(
        {"latent_channels": 8}, {"sample": torch.randn(1, 3, 9, 64, 64)}
    ),
    "AutoencoderDC": Small(
        {"attention_head_dim": 8, "encoder_block_out_channels": (8, 16), "decoder_block_out_channels": (8, 16),
         "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1), "latent_channels": 4,
         "encoder_block_types": ("ResBlock", "EfficientViTBlock"), "encoder_qkv_multiscales": ((), (5,)),
         "decoder_block_types": ("ResBlock", "EfficientViTBlock"), "decoder_qkv_multiscales": ((), (5,))},
        layout="image",
    ),
    "ControlNetModel": Small(
        {**{k: v for k, v in UNET_CONDITION.items() if k not in ("up_block_types", "sample_size")},
         "conditioning_embedding_out_channels": (8, 16)},
        {"controlnet_cond": torch.randn(2, 3, 32, 32)}, "image",
    ),
    "FluxControlNetModel": Small({}, {"controlnet_cond": torch.randn(2, 16, 16)}, "tokens"),
    "SD3ControlNetModel": Small(
        {"caption_projection_dim": 32},
        {"controlnet_cond": lambda config: torch.randn(2, config.in_channels, 16, 16),
         "encoder_hidden_states": torch.randn(2, 8, 32)}, "image",
    ),
    "DiTTransformer2DModel": Small({}, {"class_labels": torch.tensor([1, 2])}, "image"),
    "VQModel": Small({**TWO_IN_TWO_OUT, "num_vq_embeddings": 32}, layout="image"),
    "ZImageTransformer2DModel": Small(
        {"dim": 32, "n_heads": 2, "n_kv_heads": 2, "axes_dims": [4, 6, 6], "axes_lens": [256, 64, 64]},
        {"x": [torch.randn(16, 1, 16, 16)] * 2, "t": torch.tensor([0.5, 0.5]),
         "cap_feats": [torch.randn(8, 32), torch.randn(5, 32)]},
    ),
    "Kandinsky5Transformer3DModel": Small(
        {"axes_dims": (4, 6, 6)},
        {"hidden_states": torch.randn(2, 5, 16, 16, 4), "text_rope_pos": torch.arange(8), "timestep": torch.rand(2),
         "visual_rope_pos": (torch.arange(5), torch.arange(8), torch.arange(8))},
    ),
    "WanVACETransformer3DModel": Small(
        {"vace_layers": [0], "vace_in_channels": 16, "rope_max_seq_len": 32},
        {"control_hidden_states": torch.randn(2, 16, 5, 16, 16)}, "video",
    ),
    "PriorTransformer": Small(
        {"num_embeddings": 8},
        {"hidden_states": torch.randn(2, 32), "proj_embedding": torch.randn(2, 32), "attention_mask": padded(8),
         "encoder_hidden_states": torch.randn(2, 8, 32)},
    ),
    "StableAudioDiTModel": Small(
        {"global_states_input_dim": 32},
        {"encoder_attention_mask": None,
         "global_hidden_states": torch.randn(2, 1, 32), "hidden_states": torch.randn(2, 16, 16)},
    ),
    "LatteTransformer3DModel": Small(
        {"in_channels": 4, "patch_size": 2, "caption_channels": 32, "cross_attention_dim": 32,
         "norm_type": "ada_norm_single", "norm_elementwise_affine": False,
         "video_length": 5, "sample_size": 16}, {"encoder_attention_mask": None}, "video",
    ),
    "CosmosTransformer3DModel": Small({"concat_padding_mask": False, "max_size": (8, 16, 16)}, {"fps": 24}, "video"),
    "UNetSpatioTemporalConditionModel": Small(
        {"only": True, "block_out_channels": (32, 64), "layers_per_block": 1, "num_attention_heads": (2, 4),
         "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"), "num_frames": 5,
         "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"), "cross_attention_dim": 32,
         "addition_time_embed_dim": 32, "projection_class_embeddings_input_dim": 96},
        {"sample": torch.randn(2, 5, 8, 16, 16), "encoder_hidden_states": torch.randn(2, 1, 32),
         "added_time_ids": torch.rand(2, 3)},
    ),
    "ErnieImageTransformer2DModel": Small(
        {}, {"text_bth": torch.randn(2, 8, 32), "text_lens": torch.tensor([8, 5])}, "image"
    ),
    "BriaFiboTransformer2DModel": Small(
        {"text_encoder_dim": 16}, {"text_encoder_layers": [torch.randn(2, 8, 16)] * 4}, "tokens"
    ),
    "PRXTransformer2DModel": Small({"axes_dim": [8, 8]}, layout="image"),
    "LTX2VideoTransformer3DModel": Small(
        {"cross_attention_dim": 32, "audio_cross_attention_dim": 32},
        {"audio_hidden_states": torch.randn(2, 6, 16), "num_frames": 1, "height": 4, "width": 4, "audio_num_frames": 6,
         "audio_encoder_hidden_states": lambda config: torch.randn(2, 8, config.caption_channels),
         "encoder_hidden_states": lambda config: torch.randn(2, 8, config.caption_channels)}, "tokens",
    ),
    "SanaControlNetModel": Small(
        {"num_cross_attention_heads": 2, "cross_attention_head_dim": 16, "cross_attention_dim": 32},
        {"controlnet_cond": torch.randn(2, 16, 16, 16)}, "image",
    ),
    "QwenImageControlNetModel": Small({}, {"controlnet_cond": torch.randn(2, 16, 16)}, "tokens"),
    "HunyuanDiT2DModel": Small(
        {"in_channels": 4, "patch_size": 2, "hidden_size": 32, "text_len": 8, "text_len_t5": 8,
         "cross_attention_dim_t5": 32},
        {"text_embedding_mask": padded(8), "text_embedding_mask_t5": padded(8), "image_meta_size": torch.rand(2, 6),
         "encoder_hidden_states_t5": torch.randn(2, 8, 32), "style": torch.zeros(2, dtype=torch.long),
         "image_rotary_emb": (torch.rand(64, 16), torch.rand(64, 16))}, "image",
    ),
    "Transformer2DModel": Small({"in_channels": 16, "cross_attention_dim": 32}, layout="image"),
    "TransformerTemporalModel": Small({"in_channels": 16}, {"num_frames": 2, "encoder_hidden_states": None}, "image"),
    "AutoencoderKLTemporalDecoder": Small(
        {"block_out_channels": (32,)}, {"num_frames": 2}, "image"
    ),
    "AutoencoderKLHunyuanImage": Small(
        {"in_channels": 3, "out_channels": 3, "latent_channels": 8, "block_out_channels": (32, 32),
         "layers_per_block": 1, "spatial_compression_ratio": 2, "sample_size": 16}, layout="image",
    ),
    "AutoencoderKLHunyuanVideo15": Small(
        {"latent_channels": 8, "block_out_channels": (32,) * 5, "layers_per_block": 1},
        {"sample": torch.randn(1, 3, 5, 64, 64)},
    ),
    "AutoencoderKLHunyuanImageRefiner": Small(
        {"latent_channels": 8, "block_out_channels": (32,) * 5, "layers_per_block": 1},
        {"sample": torch.randn(1, 3, 5, 64, 64)},
    ),
    "AutoencoderKLQwenImage21": Small({}, {"sample": torch.randn(1, 4, 1, 64, 64)}),
    "AutoencoderOobleck": Small({}, {"sample": torch.randn(1, 2, 4096)}),
    "GlmImageTransformer2DModel": Small(
        {}, {"prior_token_id": torch.randint(0, 16, (2, 64)), "prior_token_drop": torch.zeros(2, 64).bool()}, "image"
    ),
    "AnyFlowTransformer3DModel": Small(
        {"rope_max_seq_len": 32}, {"timestep": torch.full((2, 5), 500.0), "r_timestep": torch.full((2, 5), 400.0),
         "hidden_states": torch.randn(2, 5, 16, 16, 16)},
        "video",
    ),
}  # fmt: skip


def allegro_rotary() -> tuple[Any, Any]:
    """Rotary tables and the grid for five frames of eight by eight patches."""
    from diffusers.models.embeddings import get_3d_rotary_pos_embed_allegro

    frequencies_t, frequencies_h, frequencies_w, grid_t, grid_h, grid_w = get_3d_rotary_pos_embed_allegro(
        embed_dim=24, crops_coords=((0, 0), (8, 8)), grid_size=(8, 8), temporal_size=5
    )
    # As `AllegroPipeline._prepare_rotary_positional_embeddings`: the coordinates of every patch, by axis.
    coordinates = torch.cartesian_prod(grid_t.long(), grid_h.long(), grid_w.long())
    return (frequencies_t, frequencies_h, frequencies_w), tuple(coordinates.T.reshape(3, 1, -1))
