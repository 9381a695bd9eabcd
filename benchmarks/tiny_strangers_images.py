"""More tiny models for images, of kornia and spandrel; see `benchmarks.tiny_strangers`."""

from typing import Any

import torch

from benchmarks.tiny_strangers_parts import (
    Build,
    images,
    model,
)

# --- kornia ---


def _grey(size: int = 64) -> torch.Tensor:
    return torch.rand(1, 1, size, size)


KORNIA = {
    "LoFTR": model("kornia.feature:LoFTR", {"data": {"image0": _grey(), "image1": _grey()}}, pretrained=None),
    "DISK": model("kornia.feature:DISK", {"images": torch.rand(1, 3, 64, 64), "n": 10}),
    "HardNet": model("kornia.feature:HardNet", {"input": torch.rand(4, 1, 32, 32)}, pretrained=False),
    "SOSNet": model("kornia.feature:SOSNet", {"input": torch.rand(4, 1, 32, 32)}, pretrained=False),
    "TFeat": model("kornia.feature:TFeat", {"input": torch.rand(4, 1, 32, 32)}, pretrained=False),
    "SIFTDescriptor": model(
        "kornia.feature:SIFTDescriptor", {"input": torch.rand(4, 1, 32, 32)}, patch_size=32
    ),
    "KeyNet": model("kornia.feature:KeyNet", {"x": _grey()}, pretrained=False),
    "OriNet": model("kornia.feature:OriNet", {"patch": torch.rand(4, 1, 32, 32)}, pretrained=False),
    "CornerHarris": model("kornia.feature:CornerHarris", {"input": _grey()}, k=0.04),
    "Canny": model("kornia.filters:Canny", {"input": _grey()}),
    "Sobel": model("kornia.filters:Sobel", {"input": _grey()}),
    "MedianBlur": model("kornia.filters:MedianBlur", {"input": _grey()}, kernel_size=(3, 3)),
    "UnsharpMask": model(
        "kornia.filters:UnsharpMask", {"input": _grey()}, kernel_size=(3, 3), sigma=(1.0, 1.0)
    ),
    "BilateralBlur": model(
        "kornia.filters:BilateralBlur",
        {"input": _grey()},
        kernel_size=(3, 3),
        sigma_color=0.1,
        sigma_space=(1.0, 1.0),
    ),
    "SSIM": model("kornia.metrics:SSIM", {"img1": _grey(), "img2": _grey()}, window_size=5),
    "FocalLoss": model(
        "kornia.losses:FocalLoss",
        {"pred": torch.randn(2, 5, 8, 8), "target": torch.randint(5, (2, 8, 8))},
        alpha=0.5,
    ),
    "DiceLoss": model(
        "kornia.losses:DiceLoss", {"pred": torch.randn(2, 5, 8, 8), "target": torch.randint(5, (2, 8, 8))}
    ),
    "LovaszHingeLoss": model(
        "kornia.losses:LovaszHingeLoss",
        {"pred": torch.randn(2, 1, 8, 8), "target": torch.randint(2, (2, 8, 8))},
    ),
    "Rgb2Lab": model("kornia.color:RgbToLab", {"image": images().sigmoid()}),
    "Rgb2Hsv": model("kornia.color:RgbToHsv", {"image": images().sigmoid()}),
    "ZCAWhitening": model("kornia.enhance:ZCAWhitening", {"x": torch.randn(8, 6), "include_fit": True}),
    "PyrDown": model("kornia.geometry.transform:PyrDown", {"input": images()}),
    "Resize": model("kornia.geometry.transform:Resize", {"input": images()}, size=(16, 16)),
    "HomographyWarper": model(
        "kornia.geometry.transform:HomographyWarper",
        {"patch_src": images(), "src_homo_dst": torch.eye(3).expand(2, 3, 3)},
        height=16,
        width=16,
    ),
    "SpatialSoftArgmax2d": model("kornia.geometry.subpix:SpatialSoftArgmax2d", {"input": images()}),
    "NonMaximaSuppression2d": model(
        "kornia.geometry.subpix:NonMaximaSuppression2d", {"x": images()}, kernel_size=(3, 3)
    ),
}

# --- spandrel ---


def _restoring(module: str, name: str, size: int = 32, **options: Any) -> Build:
    names = {"SCUNet": "x0", "NAFNet": "inp", "KBNet": "inp_img"}
    image = {names.get(module, "x"): torch.rand(1, 3, size, size)}
    return model(f"spandrel.architectures.{module}:{name}", image, **options)


SPANDREL = {
    "SwinIR": _restoring(
        "SwinIR", "SwinIR", img_size=32, embed_dim=12, depths=[1, 1], num_heads=[2, 2], window_size=8
    ),
    "OmniSR": _restoring("OmniSR", "OmniSR", num_feat=8, res_num=1, window_size=8),
    "NAFNet": _restoring("NAFNet", "NAFNet", width=8, enc_blk_nums=[1], dec_blk_nums=[1]),
    "ATD": _restoring(
        "ATD", "ATD", embed_dim=12, depths=(1,), num_heads=(2,), window_size=8, category_size=16
    ),
    "CRAFT": _restoring("CRAFT", "CRAFT", 64, embed_dim=12, depths=[1], num_heads=[2]),
    "RGT": _restoring("RGT", "RGT", img_size=32, embed_dim=12, depth=[2], num_heads=[2], split_size=[8, 8]),
    "DRCT": _restoring(
        "DRCT", "DRCT", img_size=32, embed_dim=12, depths=(1,), num_heads=(2,), window_size=8, gc=4
    ),
    "GRL": _restoring(
        "GRL", "GRL", 64, img_size=64, embed_dim=12, depths=[1], num_heads_window=[1], num_heads_stripe=[1]
    ),
    "Uformer": _restoring("Uformer", "Uformer", 128, img_size=128, embed_dim=8, depths=[1] * 9, win_size=8),
    "PLKSR": _restoring("PLKSR", "PLKSR", dim=8, n_blocks=1),
    "UpCunet2x": _restoring("RealCUGAN", "UpCunet2x", 64),
    "SPAN": _restoring("SPAN", "SPAN", num_in_ch=3, num_out_ch=3, feature_channels=8),
    "DnCNN": _restoring("DnCNN", "DnCNN", in_nc=3, out_nc=3, nc=8, nb=3),
    "MMRealSR": _restoring("MMRealSR", "MMRealSR", 32, num_in_ch=3, num_out_ch=3, num_feat=8, num_block=1),
    "SAFMN": _restoring("SAFMN", "SAFMN", dim=8, n_blocks=1),
    "MoSR": _restoring("MoSR", "MoSR", n_block=1, dim=8),
    "FDAT": _restoring(
        "FDAT", "FDAT", embed_dim=12, num_groups=1, depth_per_group=1, num_heads=2, window_size=8
    ),
    "HVICIDNet": _restoring("HVICIDNet", "HVICIDNet", 64),
    "RetinexFormer": _restoring("RetinexFormer", "RetinexFormer", 64, n_feat=8),
    "IPT": _restoring("IPT", "IPT", 48),
    "SeemoRe": _restoring("SeemoRe", "SeemoRe", embedding_dim=12, num_layers=1),
    "SwiftSRGAN": _restoring("SwiftSRGAN", "SwiftSRGAN", num_channels=8, num_blocks=1),
}

MODELS = {
    **{f"kornia.{name}": build for name, build in KORNIA.items()},
    **{f"spandrel.{name}": build for name, build in SPANDREL.items()},
}
