"""Tiny models for images, of packages that this project does not use; see `benchmarks.tiny_strangers`."""

from typing import Any

import torch

from benchmarks.tiny_strangers_parts import Build, Inputs, get, images, model, video

# --- vit_pytorch ---

_VIT = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 64}


def _vit(path: str, inputs: Inputs | None = None, **options: Any) -> Build:
    return lambda: (get(f"vit_pytorch.{path}")(**options), inputs or {"img": images()})


def _navit(path: str, name: str) -> Build:
    packed = [torch.randn(3, 16, 32), torch.randn(3, 32, 16), torch.randn(3, 32, 32)]
    return lambda: (
        get(path)(**_VIT),
        {name: [packed[:2], packed[2:]] if name == "batched_images" else packed},
    )


def _extractor() -> tuple[Any, Inputs]:
    return get("vit_pytorch.extractor:Extractor")(get("vit_pytorch:ViT")(**_VIT)), {"img": images()}


def _distill() -> tuple[Any, Inputs]:
    student = get("vit_pytorch.distill:DistillableViT")(**_VIT)
    teacher = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 5))
    wrapper = get("vit_pytorch.distill:DistillWrapper")(
        student=student, teacher=teacher, temperature=3, alpha=0.5
    )
    return wrapper, {"img": images(), "labels": torch.tensor([1, 2])}


_VIT_3D = _VIT | {"image_patch_size": 8, "frames": 4, "frame_patch_size": 2}
_VIT_3D.pop("patch_size")

VIT_PYTORCH = {
    "ViT": _vit("vit:ViT", **_VIT),
    "SimpleViT": _vit("simple_vit:SimpleViT", **_VIT),
    "DeepViT": _vit("deepvit:DeepViT", **_VIT),
    "CaiT": _vit("cait:CaiT", **_VIT, cls_depth=1, layer_dropout=0.1),
    "T2TViT": _vit(
        "t2t:T2TViT",
        dim=32,
        image_size=32,
        depth=1,
        heads=2,
        mlp_dim=64,
        num_classes=5,
        t2t_layers=((7, 4), (3, 2)),
    ),
    "CCT": _vit(
        "cct:CCT",
        {"x": images()},
        img_size=32,
        embedding_dim=32,
        n_conv_layers=1,
        num_layers=1,
        num_heads=2,
        num_classes=5,
    ),
    "CrossViT": _vit(
        "cross_vit:CrossViT",
        image_size=32,
        num_classes=5,
        sm_dim=16,
        lg_dim=32,
        sm_patch_size=8,
        lg_patch_size=16,
        depth=1,
    ),
    "PiT": _vit(
        "pit:PiT", image_size=32, patch_size=4, dim=32, num_classes=5, depth=(1, 1), heads=2, mlp_dim=64
    ),
    "LeViT": _vit(
        "levit:LeViT",
        image_size=64,
        num_classes=5,
        stages=2,
        dim=(16, 32),
        depth=1,
        heads=(2, 2),
        mlp_mult=2,
        inputs={"img": images(64)},
    ),
    "CvT": _vit(
        "cvt:CvT",
        {"x": images(64)},
        num_classes=5,
        s1_emb_dim=16,
        s2_emb_dim=16,
        s3_emb_dim=16,
        s1_depth=1,
        s2_depth=1,
        s3_depth=1,
    ),
    "RegionViT": _vit(
        "regionvit:RegionViT",
        {"x": images(56)},
        dim=(16, 16, 16, 16),
        depth=(1, 1, 1, 1),
        window_size=7,
        num_classes=5,
        tokenize_local_3_conv=False,
    ),
    "ScalableViT": _vit(
        "scalable_vit:ScalableViT",
        num_classes=5,
        dim=16,
        heads=(1, 1, 1, 1),
        depth=(1, 1, 1, 1),
        ssa_dim_key=8,
        reduction_factor=(4, 2, 1, 1),
        window_size=(8, 4, None, None),
        inputs={"img": images(64)},
    ),
    "SepViT": _vit(
        "sep_vit:SepViT",
        {"x": images(224)},
        num_classes=5,
        dim=8,
        dim_head=8,
        heads=(1, 1, 1, 1),
        depth=(1, 1, 1, 1),
        window_size=7,
    ),
    "MaxViT": _vit(
        "max_vit:MaxViT",
        {"x": images(224)},
        num_classes=5,
        dim=8,
        dim_head=8,
        depth=(1, 1),
        window_size=7,
        mbconv_expansion_rate=2,
        dim_conv_stem=8,
    ),
    "NesT": _vit(
        "nest:NesT",
        image_size=32,
        patch_size=4,
        dim=16,
        heads=1,
        num_hierarchies=2,
        block_repeats=(1, 1),
        num_classes=5,
    ),
    "MobileViT": _vit(
        "mobile_vit:MobileViT",
        {"x": images(64)},
        image_size=(64, 64),
        dims=[16, 16, 16],
        channels=[8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8],
        num_classes=5,
    ),
    "XCiT": _vit(
        "xcit:XCiT",
        image_size=32,
        patch_size=8,
        num_classes=5,
        dim=32,
        depth=2,
        cls_depth=1,
        heads=2,
        mlp_dim=64,
    ),
    "ViT3D": _vit("vit_3d:ViT", {"video": video()}, **_VIT_3D),
    "SimpleViT3D": _vit("simple_vit_3d:SimpleViT", {"video": video()}, **_VIT_3D),
    "ViT1D": _vit(
        "vit_1d:ViT",
        {"series": torch.randn(2, 3, 32)},
        seq_len=32,
        patch_size=8,
        num_classes=5,
        dim=32,
        depth=1,
        heads=2,
        mlp_dim=64,
    ),
    "SmallDatasetViT": _vit("vit_for_small_dataset:ViT", **_VIT),
    "PatchDropoutViT": _vit("vit_with_patch_dropout:ViT", **_VIT, patch_dropout=0.25),
    "PatchMergerViT": _vit(
        "vit_with_patch_merger:ViT", **_VIT, patch_merge_layer=0, patch_merge_num_tokens=4
    ),
    "ParallelViT": _vit("parallel_vit:ViT", **_VIT),
    "ATS": _vit("ats_vit:ViT", **_VIT, max_tokens_per_depth=(12, 8)),
    "LearnableMemoryViT": _vit("learnable_memory_vit:ViT", **_VIT),
    "RvT": _vit("rvt:RvT", **_VIT),
    "Registers": _vit("simple_vit_with_register_tokens:SimpleViT", **_VIT),
    "QkNorm": _vit("simple_vit_with_qk_norm:SimpleViT", **_VIT),
    "FFT": _vit("simple_vit_with_fft:SimpleViT", **_VIT, freq_patch_size=8),
    "ValueResidual": _vit("simple_vit_with_value_residual:SimpleViT", **_VIT),
    "HyperConnections": _vit("simple_vit_with_hyper_connections:SimpleViT", **_VIT, num_residual_streams=2),
    "NormalizedViT": _vit("normalized_vit:nViT", {"images": images()}, **_VIT),
    "Extractor": _extractor,
    "Distill": _distill,
    "NaViT": _navit("vit_pytorch.na_vit:NaViT", "batched_images"),
    "NaViTNested": _navit("vit_pytorch.na_vit_nested_tensor:NaViT", "images"),
}


def _timm(name: str, size: int = 32, **options: Any) -> Build:
    return lambda: (get("timm:create_model")(name, num_classes=5, **options), {"x": images(size)})


TIMM = {
    name: _timm(name, **options)
    for name, options in {
        "vit_tiny_patch16_224": {"img_size": 32, "depth": 1},
        "swin_tiny_patch4_window7_224": {"img_size": 56, "size": 56, "depths": (1, 1, 1, 1), "embed_dim": 24},
        "swinv2_tiny_window8_256": {"img_size": 64, "size": 64, "depths": (1, 1, 1, 1), "embed_dim": 24},
        "resnet18": {},
        "efficientnet_b0": {},
        "mobilenetv3_small_050": {},
        "mobilenetv4_conv_small_035": {"size": 64},
        "convnext_atto": {},
        "beit_base_patch16_224": {"img_size": 32, "depth": 1, "embed_dim": 48, "num_heads": 3},
        "eva02_tiny_patch14_224": {"img_size": 28, "size": 28, "depth": 1},
        "deit_tiny_distilled_patch16_224": {"img_size": 32, "depth": 1},
        "cait_xxs24_224": {"img_size": 32, "depth": 1},
        "coat_tiny": {"img_size": 64, "size": 64},
        "convit_tiny": {"img_size": 32, "depth": 2, "local_up_to_layer": 1},
        "efficientformer_l1": {"size": 224},
        "efficientvit_b0": {"size": 64},
        "fastvit_t8": {"size": 64},
        "focalnet_tiny_srf": {"size": 64, "depths": (1, 1, 1, 1), "embed_dim": 24},
        "hiera_tiny_224": {"size": 224},
        "levit_128s": {"size": 224},
        "coatnet_pico_rw_224": {"size": 224},
        "mixer_s32_224": {"img_size": 32},
        "gmlp_ti16_224": {"img_size": 32},
        "mobilevit_xxs": {"size": 64},
        "naflexvit_base_patch16_gap": {"size": 64, "depth": 1},
        "pvt_v2_b0": {"size": 64},
        "tnt_s_patch16_224": {"size": 224},
        "volo_d1_224": {"size": 224},
        "xcit_nano_12_p16_224": {"size": 64},
        "halonet26t": {"size": 256},
        "swiftformer_xs": {"size": 224},
        "nextvit_small": {"size": 64},
    }.items()
}

# --- torchvision ---


TORCHVISION = {
    "DeepLab": model(
        "torchvision.models.segmentation:deeplabv3_mobilenet_v3_large",
        {"x": images(64)},
        weights=None,
        weights_backbone=None,
    ),
    "LRASPP": model(
        "torchvision.models.segmentation:lraspp_mobilenet_v3_large",
        {"input": images(64)},
        weights=None,
        weights_backbone=None,
    ),
    "RAFT": model(
        "torchvision.models.optical_flow:raft_small",
        {"image1": images(128), "image2": images(128), "num_flow_updates": 2},
    ),
    "Swin": model("torchvision.models:swin_v2_t", {"x": images(64)}),
    "ViT": model("torchvision.models:vit_b_32", {"x": images(64)}, image_size=64),
    "MaxVit": model("torchvision.models:maxvit_t", {"x": images(224)}),
    "R3D": model("torchvision.models.video:r3d_18", {"x": video(4, 32)}),
    "SwinVideo": model("torchvision.models.video:swin3d_t", {"x": video(4, 64)}),
    "MViT": model("torchvision.models.video:mvit_v2_s", {"x": video(16, 224)}),
    "GoogLeNet": model("torchvision.models:googlenet", {"x": images(64)}, init_weights=False),
    "ShuffleNet": model("torchvision.models:shufflenet_v2_x0_5", {"x": images(64)}),
}

# --- segmentation_models_pytorch ---


def _segmentation(name: str, size: int = 64, **options: Any) -> Build:
    options = {"encoder_name": "resnet18", "encoder_weights": None} | options
    return model(f"segmentation_models_pytorch:{name}", {"x": images(size)}, **options)


SEGMENTATION = {
    name: _segmentation(name)
    for name in (
        "Unet",
        "UnetPlusPlus",
        "MAnet",
        "Linknet",
        "FPN",
        "PSPNet",
        "DeepLabV3",
        "DeepLabV3Plus",
        "Segformer",
    )
} | {
    "UPerNet": _segmentation("UPerNet", encoder_name="mit_b0"),
    "DPT": _segmentation("DPT", 224, encoder_name="tu-vit_tiny_patch16_224", dynamic_img_size=True),
    "UnetMobileOne": _segmentation("Unet", encoder_name="mobileone_s0"),
    "UnetInception": _segmentation("Unet", 128, encoder_name="inceptionv4"),
    "UnetDpn": _segmentation("Unet", encoder_name="dpn68"),
}

MODELS = {
    **{f"vit_pytorch.{name}": build for name, build in VIT_PYTORCH.items()},
    **{f"timm.{name}": build for name, build in TIMM.items()},
    **{f"torchvision.{name}": build for name, build in TORCHVISION.items()},
    **{f"segmentation_models_pytorch.{name}": build for name, build in SEGMENTATION.items()},
}
