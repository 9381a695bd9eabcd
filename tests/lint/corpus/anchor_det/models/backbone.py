from collections import OrderedDict

import torch.nn.functional as F
from torch import nn

from ..registry import BACKBONES


def conv_block(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


@BACKBONES.register("tiny_fpn")
class TinyFPN(nn.Module):
    def __init__(self, width=8, out_channels=8):
        super().__init__()
        self.stem = conv_block(3, width, 2)
        self.layer1 = conv_block(width, width, 2)
        self.layer2 = conv_block(width, width * 2, 2)
        self.inner = nn.ModuleList([nn.Conv2d(c, out_channels, 1) for c in (width, width * 2)])
        self.outer = nn.ModuleList([nn.Conv2d(out_channels, out_channels, 3, padding=1) for _ in range(2)])
        self.out_channels = out_channels

    def forward(self, x):
        x = self.stem(x)
        feats = []
        for name in ("layer1", "layer2"):
            x = getattr(self, name)(x)
            feats.append(x)
        last = self.inner[-1](feats[-1])
        results = [self.outer[-1](last)]
        for idx in range(len(feats) - 2, -1, -1):
            lateral = self.inner[idx](feats[idx])
            size = lateral.shape[-2:]
            last = lateral + F.interpolate(last, size=size, mode="nearest")
            results.insert(0, self.outer[idx](last))
        return OrderedDict((f"p{i}", v) for i, v in enumerate(results))
