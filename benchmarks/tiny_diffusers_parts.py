"""The rest of diffusers' U-Nets, ControlNets, adapters and autoencoders: small configurations and inputs."""

import functools
import sys
import types
from typing import Any

import torch

from benchmarks.tiny_diffusers_table import UNET_2D, UNET_CONDITION, Small, padded


def several(name: str) -> dict[str, Any]:
    """Constructor arguments of a stack of two ControlNets of a class."""
    return {"only": True, "controlnets": lambda: two_of(name)}


def two_of(name: str) -> list[torch.nn.Module]:
    """Two tiny models of a class."""
    from benchmarks.tiny_diffusers import construct

    return [construct(name), construct(name)]


def member_inputs(name: str) -> dict[str, Any]:
    """The inputs of a ControlNet of this class, its condition and scale given twice."""
    from benchmarks.tiny_diffusers import build

    _, (call, *_) = build(name)
    return {**call, "controlnet_cond": [call["controlnet_cond"]] * 2, "conditioning_scale": [1.0, 0.5]}


def stack(name: str, **inputs: Any) -> Small:
    """A stack of two ControlNets; `inputs` over those of a member."""
    return Small(several(name), lambda: {**member_inputs(name), **inputs})


def use_small_tiles(model: Any) -> None:
    """Let Allegro's autoencoder, which only works in tiles, use tiles of 24 frames of 32 by 32."""
    model.enable_tiling()
    model.kernel, model.stride = (24, 32, 32), (16, 16, 16)


def share_embedders(model: Any) -> None:
    """Give Z-Image's ControlNet a transformer's embedders, and the flag that it reads if gradients are enabled."""
    model.gradient_checkpointing = False
    from benchmarks.tiny_diffusers import construct

    type(model).from_transformer(model, construct("ZImageTransformer2DModel"))


def stand_in_for_torchvision(model: Any) -> None:
    """Give Cosmos' ControlNet the one function of torchvision that it calls, if there is no torchvision."""
    module = sys.modules[type(model).__module__]
    if hasattr(module, "transforms"):
        return
    resize = functools.partial(torch.nn.functional.interpolate, mode="nearest")
    functional = types.SimpleNamespace(resize=lambda image, size, interpolation: resize(image, size))
    modes = types.SimpleNamespace(NEAREST="nearest")
    module.transforms = types.SimpleNamespace(functional=functional, InterpolationMode=modes)  # type: ignore[attr-defined]


def protein_conditions() -> dict[str, torch.Tensor]:
    """What RFD4's models know of twelve tokens of a protein, the last three of which are padding in one row."""
    return {
        "is_in_context_conditioning": torch.zeros(2, 12, dtype=torch.bool),
        "supports_local_latent": torch.ones(2, 12, dtype=torch.bool), "bond_mask": torch.eye(12).expand(2, 12, 12),
        "token_bond_path_length": torch.randint(0, 8, (2, 12, 12)), "chain_iid": torch.zeros(2, 12),
        "molecule_iid": torch.arange(12).expand(2, 12) // 6, "molecule_entity_id": torch.zeros(2, 12),
    }  # fmt: skip


CONTROLNET = {
    **{key: value for key, value in UNET_CONDITION.items() if key not in ("up_block_types", "sample_size")},
    "conditioning_embedding_out_channels": (8, 16),
}
HUNYUAN_DIT = {
    "in_channels": 4, "patch_size": 2, "hidden_size": 32, "text_len": 8, "text_len_t5": 8, "sample_size": 16,
    "cross_attention_dim": 32, "cross_attention_dim_t5": 32, "pooled_projection_dim": 32, "num_attention_heads": 2,
    "attention_head_dim": 16,
}  # fmt: skip
HUNYUAN_DIT_INPUTS = {
    "text_embedding_mask": padded(8), "text_embedding_mask_t5": padded(8), "image_meta_size": torch.rand(2, 6),
    "encoder_hidden_states_t5": torch.randn(2, 8, 32), "style": torch.zeros(2, dtype=torch.long),
    "image_rotary_emb": (torch.rand(64, 16), torch.rand(64, 16)),
}  # fmt: skip

TABLE: dict[str, Small] = {
    # U-Nets
    "I2VGenXLUNet": Small(
        {"only": True, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8,
         "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"), "cross_attention_dim": 32,
         "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"), "attention_head_dim": 4, "num_attention_heads": 4},
        {"fps": torch.tensor([8, 8]), "image_latents": torch.randn(2, 4, 5, 16, 16),
         "image_embeddings": torch.randn(2, 32)}, "video",
    ),
    "UNetMotionModel": Small(
        {**UNET_2D, "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"), "cross_attention_dim": 32,
         "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"), "motion_num_attention_heads": 2,
         "num_attention_heads": 2},
        {"encoder_hidden_states": torch.randn(10, 8, 32)}, "video",
    ),
    "UNet1DModel": Small(
        {"only": True, "block_out_channels": (32, 32, 64), "extra_in_channels": 64}, {"sample": torch.randn(2, 2, 64)}
    ),
    "Kandinsky3UNet": Small(
        {"time_embedding_dim": 32, "groups": 2, "attention_head_dim": 4, "layers_per_block": 3,
         "block_out_channels": (16, 32), "cross_attention_dim": 32, "encoder_hid_dim": 32},
        {"encoder_attention_mask": padded(8)}, "image",
    ),
    "StableCascadeUNet": Small(
        {"timestep_ratio_embedding_dim": 16, "conditioning_dim": 32, "block_out_channels": (16, 32),
         "num_attention_heads": (2, 2), "down_num_layers_per_block": (1, 1), "up_num_layers_per_block": (1, 1),
         "clip_text_in_channels": 32, "clip_text_pooled_in_channels": 32, "clip_image_in_channels": 32,
         "in_channels": 4, "out_channels": 4, "patch_size": 1, "clip_seq": 4},
        {"timestep_ratio": torch.tensor([0.5, 0.7]), "clip_text_pooled": torch.randn(2, 1, 32),
         "clip_text": torch.randn(2, 8, 32), "clip_img": torch.randn(2, 1, 32)}, "image",
    ),
    "UVit2DModel": Small(
        {"hidden_size": 32, "cond_embed_dim": 32, "micro_cond_encode_dim": 8, "micro_cond_embed_dim": 40,
         "encoder_hidden_size": 32, "vocab_size": 32, "codebook_size": 16, "in_channels": 32, "block_out_channels": 32,
         "num_res_blocks": 1, "block_num_heads": 2, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 64, "sample_size": 16},
        {"input_ids": torch.randint(0, 32, (2, 8, 8)), "encoder_hidden_states": torch.randn(2, 8, 32),
         "pooled_text_emb": torch.randn(2, 32), "micro_conds": torch.rand(2, 5)},
    ),
    # ControlNets and adapters
    "ControlNetUnionModel": Small(
        {**CONTROLNET, "num_trans_channel": 16, "num_trans_head": 2, "num_proj_channel": 16,
         "addition_embed_type": None, "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 8 * 6},
        {"controlnet_cond": [torch.randn(2, 3, 32, 32)] * 2, "control_type_idx": [0, 3],
         "control_type": torch.tensor([[1.0, 0, 0, 1, 0, 0]] * 2)}, "image",
    ),
    "UNetControlNetXSModel": Small(
        {"only": True, "sample_size": 16, "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
         "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"), "block_out_channels": (16, 32), "norm_num_groups": 8,
         "cross_attention_dim": 32, "num_attention_heads": 2, "ctrl_conditioning_embedding_out_channels": (8, 16),
         "ctrl_block_out_channels": (8, 16), "ctrl_num_attention_heads": 2, "ctrl_max_norm_num_groups": 4},
        {"sample": torch.randn(2, 4, 16, 16), "controlnet_cond": torch.randn(2, 3, 32, 32)}, "image",
    ),
    "SparseControlNetModel": Small(
        {"only": True, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8,
         "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"), "cross_attention_dim": 32,
         "num_attention_heads": 2, "motion_num_attention_heads": 2, "conditioning_embedding_out_channels": (8, 16)},
        {"controlnet_cond": torch.randn(2, 4, 5, 16, 16), "conditioning_mask": torch.ones(2, 1, 5, 16, 16),
         "encoder_hidden_states": torch.randn(10, 8, 32)}, "video",
    ),
    "HunyuanDiT2DControlNetModel": Small(
        {**HUNYUAN_DIT, "transformer_num_layers": 2},
        {**HUNYUAN_DIT_INPUTS, "controlnet_cond": torch.randn(2, 4, 16, 16)}, "image",
    ),
    "CosmosControlNetModel": Small(
        {"n_controlnet_blocks": 1, "in_channels": 10, "latent_channels": 6, "model_channels": 32,
         "num_attention_heads": 2, "attention_head_dim": 16, "text_embed_dim": 32, "adaln_lora_dim": 4,
         "max_size": (8, 16, 16), "encoder_hidden_states_channels": 32, "crossattn_proj_in_channels": 32},
        {"controls_latents": torch.randn(1, 4, 5, 16, 16), "latents": torch.randn(1, 4, 5, 16, 16),
         "timestep": torch.tensor([0.5]), "encoder_hidden_states": torch.randn(1, 8, 32),
         "condition_mask": torch.ones(1, 1, 5, 16, 16), "padding_mask": torch.zeros(1, 1, 16, 16)},
        prepare=lambda model: stand_in_for_torchvision(model),
    ),
    "ZImageControlNetModel": Small(
        {"control_layers_places": [0], "control_refiner_layers_places": [], "control_in_dim": 16, "dim": 32,
         "n_heads": 2, "n_kv_heads": 2, "n_refiner_layers": 1},
        {"x": [torch.randn(16, 1, 16, 16)] * 2, "t": torch.tensor([0.5, 0.5]),
         "cap_feats": [torch.randn(8, 32), torch.randn(5, 32)], "control_context": [torch.randn(16, 1, 16, 16)] * 2},
        prepare=lambda model: share_embedders(model),
    ),
    "MultiControlNetModel": stack("ControlNetModel"),
    "MultiControlNetUnionModel": stack(
        "ControlNetUnionModel", controlnet_cond=[[torch.randn(2, 3, 32, 32)]] * 2, control_type_idx=[[0], [3]],
        control_type=[torch.tensor([[1.0, 0, 0, 0, 0, 0]] * 2), torch.tensor([[0.0, 0, 0, 1, 0, 0]] * 2)],
    ),
    "FluxMultiControlNetModel": stack(
        "FluxControlNetModel", controlnet_mode=[torch.tensor([0, 0]), torch.tensor([1, 1])]
    ),
    "SD3MultiControlNetModel": stack("SD3ControlNetModel"),
    "HunyuanDiT2DMultiControlNetModel": stack("HunyuanDiT2DControlNetModel"),
    "QwenImageMultiControlNetModel": Small(
        {"only": True, "controlnets": lambda: two_of("QwenImageControlNetModel")[:1]},
        lambda: {**member_inputs("QwenImageControlNetModel"), "conditioning_scale": [1.0, 0.5]},
    ),
    "MultiAdapter": Small(
        {"only": True, "adapters": lambda: two_of("T2IAdapter")}, {"xs": [torch.randn(2, 3, 64, 64)] * 2}
    ),
    "AnimaTextConditioner": Small(
        {"source_dim": 32, "target_dim": 32, "model_dim": 32, "num_layers": 2, "num_attention_heads": 2,
         "target_vocab_size": 64, "min_sequence_length": 16},
        {"source_hidden_states": torch.randn(2, 8, 32), "target_input_ids": torch.randint(0, 64, (2, 6)),
         "source_attention_mask": padded(8), "target_attention_mask": padded(6)},
    ),
    "MiniMaxMusic3ConditionEncoder": Small(
        {"condition_hidden_dim": 32, "num_condition_layers": 2, "out_dim": 16},
        {"hidden_states": torch.randn(2, 8, 64)},
    ),
    "Kandinsky6SRLatentUpscalerBank": Small(
        {"in_channels": 4, "stage_channels": (32, 16, 8), "num_pre_blocks": 1, "num_mid_blocks": 1,
         "num_post_blocks": 1, "num_x2_adapter_blocks": 1},
        {"latents": torch.randn(1, 4, 2, 8, 8), "scale": 2}, more=({"scale": 4},),
    ),
    # Proteins
    "RFD4ProteinaTransformer": Small(
        {"nlayers": 2, "token_dim": 32, "nheads": 2, "dim_cond": 16, "pair_repr_dim": 16, "latent_dim": 8,
         "token_type_emb_dim": 8, "cath_emb_dim": 8, "t_emb_dim": 16, "seq_sep_dim": 8, "tri_mult_c": 16,
         "feats_seq": ("xt_bb_ca", "xt_local_latents", "token_type"),
         "feats_pair_repr": ("xt_bb_ca_pair_dists", "bond_mask", "molecule_idx_pair", "token_bond_path_length")},
        lambda: {
            "bb_ca": torch.randn(2, 12, 3), "local_latents": torch.randn(2, 12, 8), "bb_ca_time": torch.rand(2),
            "local_latents_time": torch.rand(2), "padding_mask": padded(12),
            "token_type": torch.randint(0, 7, (2, 12)), "conditioning": protein_conditions(),
        },
    ),
    "RFD4ProteinaAutoencoder": Small(
        {"atom37_mask": [[True] * 37] * 9, "allowed_residue_types": [[True] * 9] * 7, "n_residue_types": 9,
         "latent_dim": 8, "nlayers": 2, "token_dim": 32, "nheads": 2, "dim_cond": 16, "pair_repr_dim": 16,
         "token_type_emb_dim": 8},
        lambda: {
            "z_latent": torch.randn(2, 12, 8), "ca_coors_nm": torch.randn(2, 12, 3), "padding_mask": padded(12),
            "token_type": torch.randint(0, 7, (2, 12)), "conditioning": protein_conditions(),
        },
    ),
    # Autoencoders
    "AutoencoderKLAllegro": Small(
        {"only": True, "block_out_channels": (8, 8, 8, 8), "norm_num_groups": 4, "layers_per_block": 1,
         "sample_size": 160}, {"sample": torch.randn(1, 3, 24, 32, 32)}, prepare=lambda model: use_small_tiles(model),
    ),
    "AutoencoderKLKVAE": Small(
        {"only": True, "channels": 32, "num_enc_blocks": 1, "num_dec_blocks": 1, "z_channels": 4, "ch_mult": (1, 2),
         "sample_size": 16}, layout="image",
    ),
    "AutoencoderKLKVAEAudio": Small(
        {"encoder_dim": 8, "encoder_rates": [2, 4], "latent_dim": 32, "codebook_dim": 8, "decoder_dim": 32,
         "decoder_rates": [4, 2], "attn_num_heads": 2}, {"sample": torch.randn(2, 1, 256)},
    ),
    "AutoencoderKLLTX2Video": Small(
        {"latent_channels": 8, "block_out_channels": (8, 16, 32, 64), "decoder_block_out_channels": (8, 16, 32),
         "layers_per_block": (1,) * 5, "decoder_layers_per_block": (1,) * 4},
        {"sample": torch.randn(1, 3, 9, 64, 64)},
    ),
    "AutoencoderKLMiniMaxH3": Small(
        {"latent_channels": 4, "block_out_channels": (8,) * 6, "layers_per_block": 1, "norm_num_groups": 4,
         "decoder_num_layers": 2, "decoder_num_attention_heads": 2, "decoder_attention_head_dim": 16,
         "latents_mean": (0.0,) * 4, "latents_std": (1.0,) * 4}, {"sample": torch.randn(1, 3, 34, 64, 64)},
    ),
    "AutoencoderKLMiniMaxH3Audio": Small(
        {"encoder_dim": 8, "encoder_rates": (2, 4), "latent_dim": 32, "latent_channels": 8, "num_attention_heads": 2,
         "decoder_dim": 32, "decoder_rates": (4, 2), "decoder_kernel_sizes": (8, 4), "resblock_kernel_sizes": (3,),
         "resblock_dilation_sizes": ((1, 3),)}, {"sample": torch.randn(1, 1, 256)},
    ),
    "AutoencoderRAE": Small(
        {"encoder_hidden_size": 64, "encoder_patch_size": 4, "encoder_num_hidden_layers": 1, "decoder_hidden_size": 32,
         "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2, "decoder_intermediate_size": 64,
         "patch_size": 4, "encoder_input_size": 16, "image_size": 16}, {"sample": torch.rand(2, 3, 16, 16)},
    ),
    "AutoencoderSAME": Small(
        {"patch_size": 4, "encoder_channels": 16, "encoder_c_mults": (2,), "encoder_strides": (2,),
         "encoder_transformer_depths": (1,), "latent_dim": 8, "dim_heads": 8}, {"sample": torch.randn(2, 2, 64)},
    ),
    "AutoencoderVidTok": Small(
        {"ch": 32, "ch_mult": [1, 1, 1, 1], "num_res_blocks": 1},
        {"sample": torch.randn(1, 3, 5, 16, 16), "sample_posterior": False},
    ),
    "Cosmos3AVAEAudioTokenizer": Small(
        {"vocoder_input_dim": 4, "dec_dim": 8, "dec_c_mults": (1, 2), "dec_strides": (2, 4), "enc_dim": 16,
         "enc_intermediate_dim": 32, "enc_num_layers": 1, "enc_num_blocks": 1, "enc_n_fft": 16, "enc_hop_length": 4,
         "enc_latent_dim": 8, "enc_c_mults": (1,), "enc_strides": (2,)}, {"sample": torch.randn(1, 2, 64)},
    ),
    "LTX2VideoDiffusionDecoderModel": Small(
        {"latent_channels": 8, "decoder_head_dim": 8, "decoder_stage_channels": (64, 32, 16, 16, 8),
         "decoder_stage_depths": (1,) * 5, "decoder_t_emb_dim": 16,
         "decoder_stage_kernels": ((3, 3, 3),) * 4, "decoder_stage5_kernel": (3, 3, 3)},
        {"z": torch.randn(1, 8, 2, 3, 3)},
    ),
    "LongCatAudioDiTVae": Small(
        {"channels": 8, "c_mults": [1, 2], "strides": [2, 4], "latent_dim": 4, "encoder_latent_dim": 8,
         "downsampling_ratio": 8}, {"sample": torch.randn(2, 1, 64)},
    ),
    "MMAudioVAE": Small(
        {"mel_bins": 16, "latent_channels": 4, "hidden_channels": 32, "channel_multipliers": (1, 2),
         "layers_per_block": 1, "n_fft": 64, "hop_length": 16}, {"sample": torch.randn(2, 512)},
    ),
    "MMAudioVocoder": Small(
        {"num_mels": 16, "upsample_initial_channel": 32, "upsample_rates": (4, 2), "upsample_kernel_sizes": (8, 4),
         "resblock_kernel_sizes": (3,), "resblock_dilation_sizes": ((1, 3, 5),)}, {"mel": torch.randn(2, 16, 8)},
    ),
    "MiniMaxMusic3Vocoder": Small(
        {"latent_channels": 8, "decoder_input_dim": 16, "decoder_hidden_dim": 32, "upsampling_ratios": (4, 2)},
        {"latents": torch.randn(2, 8, 8)},
    ),
}  # fmt: skip
