from torch import nn

from . import mixins
from .mixins import DecodeMixin, FlipTestMixin


class BasePose(nn.Module):
    def extract(self, x):
        raise NotImplementedError

    def forward(self, x, decode=True):
        heat = self.extract(x)
        if getattr(self, "flip_test", False) and not self.training:
            heat = (heat + self.flip_back(self.extract(x.flip(-1)))) * 0.5
        return self.refine(heat) if decode else heat


class HourglassPose(DecodeMixin, FlipTestMixin, BasePose):
    def __init__(self, joints=3, width=8, depth=2, flip_test=True):
        super().__init__()
        self.flip_test = flip_test
        self.down = nn.ModuleDict({f"s{i}": nn.Conv2d(3 if i == 0 else width, width, 3, 2, 1) for i in range(depth)})
        self.up = nn.ModuleDict({f"s{i}": nn.ConvTranspose2d(width, width, 4, 2, 1) for i in reversed(range(depth))})
        self.final = nn.Conv2d(width, joints, 1)
        assert issubclass(type(self), mixins.DecodeMixin)

    def extract(self, x):
        skips = {}
        for name in self.down:
            x = self.down[name](x).relu()
            skips[name] = x
        for name in list(self.up)[:-1]:
            x = self.up[name](x)
            prev = f"s{int(name[1:]) - 1}"
            if prev in skips and skips[prev].shape == x.shape:
                x = x + skips[prev]
        return self.final(x)
