"""Tiny models of packages that no version of the linter was improved on; see `benchmarks.tiny_strangers`."""

from typing import Any

import torch
from torch import nn

from benchmarks.tiny_strangers_parts import VOCABULARY, Build, features, get, images, model, tokens


def _pytorchcv(name: str) -> Build:
    """A classifier by its name in the package, which downloads nothing."""
    return lambda: (
        get("pytorchcv.model_provider:get_model")(name, pretrained=False).eval(), {"x": images(224)}
    )  # fmt: skip


def _unet(name: str, blocks: str) -> Build:
    options: dict[str, Any] = {
        "input_channels": 3, "n_stages": 3, "features_per_stage": [4, 8, 16], "conv_op": nn.Conv2d,
        "kernel_sizes": 3, "strides": [1, 2, 2], blocks: 1, "num_classes": 2, "n_conv_per_stage_decoder": 1,
        "norm_op": nn.InstanceNorm2d, "nonlin": nn.ReLU, "conv_bias": True,
    }  # fmt: skip
    return model(f"dynamic_network_architectures.architectures.unet:{name}", {"x": images()}, **options)


def _segment_anything() -> tuple[Any, dict[str, Any]]:
    parts = {
        name: get(f"segment_anything.modeling:{name}")
        for name in ("ImageEncoderViT", "PromptEncoder", "MaskDecoder", "TwoWayTransformer", "Sam")
    }
    encoder = parts["ImageEncoderViT"](
        img_size=64, embed_dim=32, depth=2, num_heads=2, out_chans=32, use_rel_pos=True, window_size=2,
        global_attn_indexes=[1],
    )  # fmt: skip
    prompts = parts["PromptEncoder"](
        32, image_embedding_size=(4, 4), input_image_size=(64, 64), mask_in_chans=16
    )
    decoder = parts["MaskDecoder"](
        transformer_dim=32, iou_head_hidden_dim=16,
        transformer=parts["TwoWayTransformer"](depth=1, embedding_dim=32, num_heads=2, mlp_dim=32),
    )  # fmt: skip
    points = {"point_coords": torch.tensor([[[9.0, 9.0]]]), "point_labels": torch.ones(1, 1)}
    image = {"image": torch.rand(3, 64, 64), "original_size": (64, 64), **points}
    return parts["Sam"](encoder, prompts, decoder), {"batched_input": [image], "multimask_output": True}


def _electra() -> tuple[Any, dict[str, Any]]:
    generator = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY))
    discriminator = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, 1))
    electra = get("electra_pytorch:Electra")(generator, discriminator, num_tokens=VOCABULARY)
    return electra, {"input": tokens()}


_LM: dict[str, Any] = {"num_tokens": VOCABULARY, "dim": 32, "depth": 2, "max_seq_len": 64}
_TABLE = {"x_cont": torch.randn(4, 3), "x_cat": torch.randint(0, 4, (4, 2))}

MODELS: dict[str, Build] = {
    "efficientnet_pytorch.B0": lambda: (
        get("efficientnet_pytorch:EfficientNet").from_name("efficientnet-b0", num_classes=4).eval(),
        {"inputs": images(64)},
    ),
    **{
        f"pytorchcv.{name}": _pytorchcv(name)
        for name in (
            "resnet10 preresnet10 seresnet10 mobilenet_wd4 mobilenetv2_wd4 shufflenet_g1_wd4 shufflenetv2_wd2 "
            "squeezenet_v1_1 ghostnet hardnet39ds igcv3_wd4 darknet_ref peleenet fishnet99 "
            "mixnet_s spnasnet proxylessnas_gpu bninception diracnet18v2 menet108_8x1_g3 airnet50_1x64d_r2"
        ).split()
    },
    "mega_pytorch.Mega": model("mega_pytorch:Mega", {"x": tokens()}, num_tokens=VOCABULARY, dim=32, depth=1),
    **{
        f"h_transformer_1d.{'causal' if causal else 'both'}": model(
            "h_transformer_1d:HTransformer1D", {"x": tokens(64)}, causal=causal, heads=2, dim_head=16,
            block_size=16, **_LM,
        )
        for causal in (False, True)
    },
    "routing_transformer.LM": model(
        "routing_transformer:RoutingTransformerLM", {"x": tokens(64)}, heads=4, window_size=16,
        n_local_attn_heads=2, causal=True, **_LM,
    ),
    **{
        f"sinkhorn_transformer.{'causal' if causal else 'both'}": model(
            "sinkhorn_transformer:SinkhornTransformerLM", {"x": tokens(64)}, heads=2, bucket_size=16,
            causal=causal, **_LM,
        )
        for causal in (False, True)
    },
    "pytorch_tabnet.TabNet": model(
        "pytorch_tabnet.tab_network:TabNet", {"x": torch.randn(8, 6)}, input_dim=6, output_dim=2,
        group_attention_matrix=torch.eye(6),
    ),
    "pytorch_tabnet.categories": model(
        "pytorch_tabnet.tab_network:TabNet", {"x": torch.randint(0, 3, (8, 6)).float()}, input_dim=6,
        output_dim=2, cat_idxs=[0, 2], cat_dims=[4, 4], cat_emb_dim=[2, 2], group_attention_matrix=torch.eye(6),
    ),
    "pytorch_tabnet.TabNetPretraining": model(
        "pytorch_tabnet.tab_network:TabNetPretraining", {"x": torch.randn(8, 6)}, input_dim=6,
        group_attention_matrix=torch.eye(6),
    ),
    "rtdl_revisiting_models.MLP": model(
        "rtdl_revisiting_models:MLP", {"x": features(8, 6)}, d_in=6, d_out=2, n_blocks=2, d_block=8, dropout=0.1
    ),
    "rtdl_revisiting_models.ResNet": model(
        "rtdl_revisiting_models:ResNet", {"x": torch.randn(4, 6)}, d_in=6, d_out=2, n_blocks=2, d_block=8,
        d_hidden_multiplier=2.0, dropout1=0.1, dropout2=0.0,
    ),
    "rtdl_revisiting_models.FTTransformer": lambda: (
        get("rtdl_revisiting_models:FTTransformer")(
            n_cont_features=3, cat_cardinalities=[4, 5], d_out=1,
            **get("rtdl_revisiting_models:FTTransformer").get_default_kwargs(1),
        ),
        _TABLE,
    ),
    "dynamic_network_architectures.PlainConvUNet": _unet("PlainConvUNet", "n_conv_per_stage"),
    "dynamic_network_architectures.ResidualEncoderUNet": _unet("ResidualEncoderUNet", "n_blocks_per_stage"),
    "segment_anything.Sam": _segment_anything,
    "mlp_mixer_pytorch.MLPMixer": model(
        "mlp_mixer_pytorch:MLPMixer", {"input": images()}, image_size=32, channels=3, patch_size=8, dim=16,
        depth=1, num_classes=4,
    ),
    "electra_pytorch.Electra": _electra,
    "timesformer_pytorch.TimeSformer": model(
        "timesformer_pytorch:TimeSformer", {"video": torch.randn(1, 2, 3, 32, 32)}, dim=32, num_frames=2,
        num_classes=4, image_size=32, depth=1, heads=2, dim_head=16,
    ),
}  # fmt: skip
