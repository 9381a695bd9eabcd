from torch import nn

from anchor_det.registry import BACKBONES, HEADS, build


class Detector(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.backbone = build(cfg["backbone"], BACKBONES)
        self.head = build({**cfg["head"], "in_channels": self.backbone.out_channels}, HEADS)

    def forward(self, images, targets=None):
        if self.training and targets is None:
            raise ValueError("targets needed")
        assert images.ndim == 4 and images.shape[1] == 3, f"bad shape {images.shape}"
        features = self.backbone(images)
        out = self.head(images, features)
        if not isinstance(out, list):
            return out
        return [{k: v for k, v in d.items() if k in ("boxes", "scores", "labels")} for d in out]
