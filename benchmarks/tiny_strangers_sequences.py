"""Tiny models for text, sound, graphs and volumes, of packages that this project does not use.

See `benchmarks.tiny_strangers`.
"""

from typing import Any

import torch

from benchmarks.tiny_strangers_parts import (
    VOCABULARY,
    Build,
    Inputs,
    features,
    get,
    images,
    model,
    padding_mask,
    tokens,
)

# --- x_transformers ---


def _decoder(inputs: Inputs | None = None, wrapper: dict[str, Any] | None = None, **options: Any) -> Build:
    """A language model with these options of its layers, with and without a padding mask."""

    def build() -> tuple[Any, Inputs]:
        layers = get("x_transformers:Decoder")(**({"dim": 32, "depth": 2, "heads": 2} | options))
        sizes = {"num_tokens": VOCABULARY, "max_seq_len": 32} | (wrapper or {})
        network = get("x_transformers:TransformerWrapper")(attn_layers=layers, **sizes)
        return network, inputs or [{"x": tokens()}, {"x": tokens(), "mask": padding_mask()}]

    return build


def _encoder_decoder() -> tuple[Any, Inputs]:
    sizes = {
        f"{side}_{name}": value
        for side in ("enc", "dec")
        for name, value in {"num_tokens": VOCABULARY, "depth": 1, "heads": 2, "max_seq_len": 32}.items()
    }
    network = get("x_transformers:XTransformer")(dim=32, **sizes)
    return network, {"src": tokens(), "tgt": tokens(), "mask": padding_mask()}


def _wrapped(path: str, inputs: Inputs, encoder: bool = False, **options: Any) -> Build:
    def build() -> tuple[Any, Inputs]:
        layers = get(f"x_transformers:{'Encoder' if encoder else 'Decoder'}")(dim=32, depth=1, heads=2)
        sizes = {"num_tokens": VOCABULARY, "max_seq_len": 32}
        network = get("x_transformers:TransformerWrapper")(attn_layers=layers, **sizes)
        return get(f"x_transformers.{path}")(network, **options), inputs

    return build


def _continuous() -> tuple[Any, Inputs]:
    layers = get("x_transformers:Encoder")(dim=32, depth=1, heads=2)
    network = get("x_transformers:ContinuousTransformerWrapper")(
        dim_in=32, dim_out=8, max_seq_len=32, attn_layers=layers
    )
    return network, {"x": features(), "mask": padding_mask()}


def _image_encoder() -> tuple[Any, Inputs]:
    layers = get("x_transformers:Encoder")(dim=32, depth=1, heads=2)
    network = get("x_transformers:ViTransformerWrapper")(
        image_size=32, patch_size=8, num_classes=5, attn_layers=layers
    )
    return network, {"img": images()}


X_TRANSFORMERS = {
    "Decoder": _decoder(),
    "Rotary": _decoder(rotary_pos_emb=True),
    "RotaryXpos": _decoder(rotary_xpos=True),
    "Alibi": _decoder(alibi_pos_bias=True, alibi_num_heads=1),
    "RelativeBias": _decoder(rel_pos_bias=True),
    "DynamicBias": _decoder(dynamic_pos_bias=True, dynamic_pos_bias_log_distance=False),
    "Flash": _decoder(attn_flash=True),
    "FlashAlibi": _decoder(attn_flash=True, alibi_pos_bias=True, alibi_num_heads=1),
    "GroupedHeads": _decoder(attn_kv_heads=1, attn_qk_norm=True),
    "SparseTopk": _decoder(attn_sparse_topk=4),
    "TalkingHeads": _decoder(attn_pre_talking_heads=True, attn_post_talking_heads=True),
    "MemoryKeys": _decoder(attn_num_mem_kv=2, wrapper={"num_memory_tokens": 2}),
    "LocalMask": _decoder(attn_max_attend_past=4),
    "ShiftTokens": _decoder(shift_tokens=1, use_rmsnorm=True, ff_glu=True),
    "Residuals": _decoder(gate_residual=True, sandwich_norm=True, residual_attn=True),
    "Macaron": _decoder(macaron=True, use_scalenorm=True),
    "Hybrid": _decoder(num_residual_streams=2, cross_residual_attn=False),
    "HardAttention": _decoder(attn_hard=True),
    "Selective": _decoder(attn_selective=True, attn_add_zero_kv=True),
    "Recycled": _decoder(
        {"x": tokens(), "recycle_steps": 2}, {"recycling": True, "train_max_recycle_steps": 2}
    ),
    "MixtureOfSoftmax": _decoder(wrapper={"mixture_of_softmax": True, "mixture_of_softmax_k": 2}),
    "ScaledEmbedding": _decoder(wrapper={"l2norm_embed": True, "post_emb_norm": True}),
    "Pooled": _decoder(
        {"x": tokens(), "mask": padding_mask()}, {"average_pool_embed": True, "num_memory_tokens": 1}
    ),
    "ClassToken": _decoder({"x": tokens(), "mask": padding_mask()}, {"use_cls_token": True}),
    "Cached": _decoder([{"x": tokens(), "return_intermediates": True, "return_mems": False}]),
    "Memories": _decoder({"x": tokens(), "mems": [features(8, 32), features(8, 32)]}, {"max_mem_len": 16}),
    "EncoderDecoder": _encoder_decoder,
    "Continuous": _continuous,
    "ImageEncoder": _image_encoder,
    "Autoregressive": _wrapped(
        "autoregressive_wrapper:AutoregressiveWrapper", {"x": tokens(17)}, mask_prob=0.15
    ),
    "XLAutoregressive": _wrapped("xl_autoregressive_wrapper:XLAutoregressiveWrapper", {"x": tokens(17)}),
    "NonAutoregressive": _wrapped(
        "nonautoregressive_wrapper:NonAutoregressiveWrapper", {"x": tokens(32)}, True, mask_id=0
    ),
}

# --- torchscale ---

_SCALE = {
    "encoder_embed_dim": 32,
    "encoder_attention_heads": 2,
    "encoder_ffn_embed_dim": 64,
    "encoder_layers": 1,
}
_SCALE_BACK = {name.replace("encoder", "decoder"): value for name, value in _SCALE.items()}


def _torchscale(part: str, inputs: Inputs, **options: Any) -> Build:
    def build() -> tuple[Any, Inputs]:
        config = get(f"torchscale.architecture.config:{part}Config")(vocab_size=VOCABULARY, **options)
        path = {"EncoderDecoder": "encoder_decoder", "RetNet": "retnet"}.get(part, part.lower())
        name = {"RetNet": "RetNetDecoder"}.get(part, part)
        embedding = torch.nn.Embedding(VOCABULARY, 32)
        words = {"EncoderDecoder": {"encoder_embed_tokens": embedding, "decoder_embed_tokens": embedding}}
        own = words.get(part, {"embed_tokens": embedding})
        return get(f"torchscale.architecture.{path}:{name}")(config, **own), inputs

    return build


TORCHSCALE = {
    "Encoder": _torchscale(
        "Encoder",
        {"src_tokens": tokens(), "encoder_padding_mask": ~padding_mask()},
        **_SCALE,
        rel_pos_buckets=8,
        max_rel_pos=16,
        deepnorm=True,
    ),
    "Decoder": _torchscale("Decoder", {"prev_output_tokens": tokens()}, **_SCALE_BACK, xpos_rel_pos=True),
    "DecoderBuckets": _torchscale(
        "Decoder",
        {"prev_output_tokens": tokens()},
        **_SCALE_BACK,
        rel_pos_buckets=8,
        max_rel_pos=16,
        subln=True,
    ),
    "EncoderDecoder": _torchscale(
        "EncoderDecoder", {"src_tokens": tokens(), "prev_output_tokens": tokens()}, **_SCALE, **_SCALE_BACK
    ),
    "RetNet": _torchscale(
        "RetNet",
        {"prev_output_tokens": tokens()},
        decoder_embed_dim=32,
        decoder_value_embed_dim=64,
        decoder_retention_heads=2,
        decoder_ffn_embed_dim=64,
        decoder_layers=1,
    ),
    "RetNetChunks": _torchscale(
        "RetNet",
        {"prev_output_tokens": tokens()},
        decoder_embed_dim=32,
        decoder_value_embed_dim=64,
        decoder_retention_heads=2,
        decoder_ffn_embed_dim=64,
        decoder_layers=1,
        chunkwise_recurrent=True,
        recurrent_chunk_size=4,
    ),
}

# --- open_clip ---

_CLIP_IMAGES = {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 8}
_CLIP_TEXT = {"context_length": 16, "vocab_size": VOCABULARY, "width": 64, "heads": 2, "layers": 1}


def _clip(name: str = "CLIP", vision: dict[str, Any] | None = None, text: dict[str, Any] | None = None,
          **more: Any) -> Build:  # fmt: skip
    inputs = {"image": images(), "text": tokens()}
    sizes = {
        "embed_dim": 32,
        "vision_cfg": _CLIP_IMAGES | (vision or {}),
        "text_cfg": _CLIP_TEXT | (text or {}),
    }
    return model(f"open_clip:{name}", inputs, **sizes, **more)


OPEN_CLIP = {
    "CLIP": _clip(),
    "CustomTextCLIP": _clip("CustomTextCLIP"),
    "CoCa": _clip(
        "CoCa",
        {"attentional_pool": True, "output_tokens": True},
        {"embed_cls": True, "output_tokens": True},
        multimodal_cfg={"context_length": 16, "vocab_size": VOCABULARY, "width": 64, "heads": 2, "layers": 1},
    ),
    "Timm": _clip(vision={"timm_model_name": "resnet18", "timm_model_pretrained": False, "timm_pool": "avg"}),
    "NoCausalMask": _clip(text={"no_causal_mask": True, "pool_type": "last", "final_ln_after_pool": True}),
    "Eos": _clip(text={"pool_type": "eos", "eos_id": 3}),
}

# --- monai ---

_VOLUME = {"x": torch.randn(1, 1, 32, 32, 32)}


def _monai(name: str, inputs: Inputs = _VOLUME, **options: Any) -> Build:
    return model(f"monai.networks.nets:{name}", inputs, **options)


MONAI = {
    "UNet": _monai(
        "UNet", spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2)
    ),
    "BasicUNet": _monai("BasicUNet", spatial_dims=3, in_channels=1, features=(4, 4, 8, 8, 8, 4)),
    "UNETR": _monai(
        "UNETR",
        {"x_in": _VOLUME["x"]},
        in_channels=1,
        out_channels=2,
        img_size=32,
        feature_size=4,
        hidden_size=24,
        mlp_dim=48,
        num_heads=2,
    ),
    "SegResNet": _monai("SegResNet", init_filters=8, in_channels=1, out_channels=2),
    "SegResNetDS": _monai("SegResNetDS", init_filters=8, in_channels=1, out_channels=2),
    "VNet": _monai("VNet", spatial_dims=3),
    "AttentionUnet": _monai(
        "AttentionUnet", spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,)
    ),
    "DynUNet": _monai(
        "DynUNet",
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
        kernel_size=[3, 3, 3],
        strides=[1, 2, 2],
        upsample_kernel_size=[2, 2],
        filters=[4, 8, 8],
    ),
    "ViT": _monai(
        "ViT",
        in_channels=1,
        img_size=(32, 32, 32),
        patch_size=(16, 16, 16),
        hidden_size=24,
        mlp_dim=48,
        num_layers=1,
        num_heads=2,
        classification=True,
    ),
    "ViTAutoEnc": _monai(
        "ViTAutoEnc",
        in_channels=1,
        img_size=32,
        patch_size=16,
        hidden_size=24,
        mlp_dim=48,
        num_layers=1,
        num_heads=2,
    ),
    "MaskedAutoEncoderViT": _monai(
        "MaskedAutoEncoderViT",
        in_channels=1,
        img_size=32,
        patch_size=8,
        hidden_size=24,
        mlp_dim=48,
        num_layers=1,
        num_heads=2,
        decoder_hidden_size=24,
        decoder_mlp_dim=48,
        decoder_num_layers=1,
        decoder_num_heads=2,
    ),
    "DenseNet": _monai("DenseNet", spatial_dims=3, in_channels=1, out_channels=2, block_config=(1, 1)),
    "EfficientNetBN": _monai(
        "EfficientNetBN", {"inputs": images(64)}, model_name="efficientnet-b0", pretrained=False
    ),
    "HighResNet": _monai("HighResNet", spatial_dims=3, in_channels=1, out_channels=2),
    "AutoEncoder": _monai(
        "AutoEncoder", spatial_dims=3, in_channels=1, out_channels=1, channels=(4, 8), strides=(2, 2)
    ),
    "VarAutoEncoder": _monai(
        "VarAutoEncoder",
        spatial_dims=3,
        in_shape=(1, 32, 32, 32),
        out_channels=1,
        latent_size=4,
        channels=(4, 8),
        strides=(2, 2),
    ),
    "AutoencoderKL": _monai(
        "AutoencoderKL",
        spatial_dims=3,
        in_channels=1,
        out_channels=1,
        num_res_blocks=(1, 1),
        channels=(8, 8),
        attention_levels=(False, True),
        latent_channels=2,
        norm_num_groups=4,
    ),
    "VQVAE": _monai(
        "VQVAE",
        {"images": _VOLUME["x"]},
        spatial_dims=3,
        in_channels=1,
        out_channels=1,
        channels=(8, 8),
        num_res_channels=(8, 8),
        num_res_layers=1,
        downsample_parameters=((2, 4, 1, 1),) * 2,
        upsample_parameters=((2, 4, 1, 1, 0),) * 2,
        num_embeddings=8,
        embedding_dim=4,
    ),
    "DiffusionModelUNet": _monai(
        "DiffusionModelUNet",
        {"x": torch.randn(2, 1, 16, 16), "timesteps": torch.tensor([3, 7])},
        spatial_dims=2,
        in_channels=1,
        out_channels=1,
        channels=(8, 8),
        attention_levels=(False, True),
        num_res_blocks=1,
        norm_num_groups=4,
        num_head_channels=4,
    ),
    "ControlNet": _monai(
        "ControlNet",
        {
            "x": torch.randn(2, 1, 16, 16),
            "timesteps": torch.tensor([3, 7]),
            "controlnet_cond": torch.randn(2, 1, 16, 16),
        },
        spatial_dims=2,
        in_channels=1,
        channels=(8, 8),
        attention_levels=(False, True),
        num_res_blocks=1,
        norm_num_groups=4,
        num_head_channels=4,
        conditioning_embedding_num_channels=(4,),
    ),
    "DecoderOnlyTransformer": _monai(
        "DecoderOnlyTransformer",
        {"x": tokens()},
        num_tokens=VOCABULARY,
        max_seq_len=32,
        attn_layers_dim=16,
        attn_layers_depth=1,
        attn_layers_heads=2,
    ),
    "FlexibleUNet": _monai(
        "FlexibleUNet",
        {"inputs": images(64)},
        in_channels=3,
        out_channels=2,
        backbone="efficientnet-b0",
        pretrained=False,
    ),
    "SENet": _monai("SENet154", spatial_dims=3, in_channels=1, layers=(1, 1, 1, 1)),
    "RegUNet": _monai("RegUNet", spatial_dims=3, in_channels=1, num_channel_initial=4, depth=2),
    "LocalNet": _monai(
        "LocalNet", spatial_dims=3, in_channels=1, num_channel_initial=4, extract_levels=(0, 1)
    ),
    "DAF3D": _monai("DAF3D", in_channels=1, out_channels=2),
    "MedNeXt": _monai("MedNeXt", spatial_dims=3, in_channels=1, out_channels=2, init_filters=4),
    "HoVerNet": _monai("HoVerNet", {"x": images(256)}, mode="fast", out_classes=3),
    "MILModel": _monai(
        "MILModel", {"x": torch.randn(1, 3, 3, 64, 64)}, num_classes=2, mil_mode="att", pretrained=False
    ),
    "MILTransformer": _monai(
        "MILModel", {"x": torch.randn(1, 3, 3, 64, 64)}, num_classes=2, mil_mode="att_trans", pretrained=False
    ),
}

MODELS = {
    **{f"x_transformers.{name}": build for name, build in X_TRANSFORMERS.items()},
    **{f"torchscale.{name}": build for name, build in TORCHSCALE.items()},
    **{f"open_clip.{name}": build for name, build in OPEN_CLIP.items()},
    **{f"monai.{name}": build for name, build in MONAI.items()},
}
