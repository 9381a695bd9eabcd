"""Straight-through estimators as autograd functions; low-bit linear layers that track their ranges."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function


class RoundSTE(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):
        return g


class SignWithClip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, threshold):
        ctx.save_for_backward(x)
        ctx.threshold = threshold
        scale = x.abs().mean()
        if scale < 1e-8:
            scale = torch.ones_like(scale)
        outliers = x.abs() > threshold
        if outliers.any():
            x = torch.where(outliers, x.sign() * threshold, x)
        return x.sign() * scale

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * (x.abs() <= ctx.threshold), None


def round_ste(x):
    return RoundSTE.apply(x)


def grad_scale(x, scale):
    y = x
    y_grad = x * scale
    return (y - y_grad).detach() + y_grad


class Quantizer(nn.Module):
    def __init__(self, bits, per_channel=False, symmetric=True):
        super().__init__()
        if symmetric:
            self.thd_neg, self.thd_pos = -(2 ** (bits - 1)) + 1, 2 ** (bits - 1) - 1
        else:
            self.thd_neg, self.thd_pos = 0, 2 ** bits - 1
        self.per_channel, self.bits = per_channel, bits
        self.s = nn.Parameter(torch.ones(1))
        self.register_buffer("init_state", torch.zeros(1))
        self.register_buffer("running_max", torch.tensor(0.0))

    def calibrate(self, x):
        if self.per_channel:
            value = x.detach().abs().mean(dim=list(range(1, x.dim())), keepdim=True) * 2 / self.thd_pos ** 0.5
        else:
            value = x.detach().abs().mean() * 2 / (self.thd_pos ** 0.5)
        self.s.data.copy_(value.mean().view(1))
        self.init_state.fill_(1)

    def forward(self, x):
        if self.bits >= 32:
            return x
        if self.init_state == 0:
            self.calibrate(x)
        self.running_max = torch.maximum(self.running_max, x.detach().abs().max())
        s_grad_scale = 1.0 / ((self.thd_pos * x.numel()) ** 0.5)
        s_scale = grad_scale(self.s, s_grad_scale)
        x = torch.clamp(x / s_scale, self.thd_neg, self.thd_pos)
        return round_ste(x) * s_scale


class QuantLinear(nn.Linear):
    def __init__(self, in_features, out_features, w_bits=4, a_bits=8):
        super().__init__(in_features, out_features)
        self.quan_w, self.quan_a = Quantizer(w_bits, per_channel=True), Quantizer(a_bits)

    def forward(self, x):
        return F.linear(self.quan_a(x), self.quan_w(self.weight), self.bias)


class BinaryLinear(nn.Linear):
    def forward(self, input):
        if not hasattr(self.weight, "org"):
            pass
        weight = SignWithClip.apply(self.weight, 1.0)
        return F.linear(input, weight, self.bias)


LAYERS = {"quant": QuantLinear, "binary": BinaryLinear, None: nn.Linear}


class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.features = nn.Sequential()
        last = cfg["in"]
        for i, (kind, width) in enumerate(cfg["layers"]):
            self.features.add_module(f"fc{i}", LAYERS[kind](last, width))
            self.features.add_module(f"act{i}", nn.Hardtanh(inplace=True))
            last = width
        self.outlier_threshold = cfg.get("outlier_threshold")

    def split_outliers(self, x):
        outlier_dims = (x.abs() > self.outlier_threshold).any(dim=0)
        idx = outlier_dims.nonzero().view(-1)
        if idx.numel() > 0:
            sub = x[:, idx]
            x = x.clone()
            x[:, idx] = 0
            return x, sub.sum(-1, keepdim=True)
        return x, None

    def forward(self, x):
        x = x.view(x.size(0), -1)
        extra = None
        if self.outlier_threshold is not None:
            x, extra = self.split_outliers(x)
        x = self.features(x)
        if extra is not None:
            x = x + extra
        return x


def tiny():
    cfg = {"in": 12, "layers": [("quant", 8), ("binary", 8), (None, 4)], "outlier_threshold": 1.5}
    return Net(cfg).eval(), [{"x": torch.randn(3, 3, 4)}]
