"""A multiresolution hash field with tri-planes; clean."""
import itertools
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

PRIMES = (1, 2654435761, 805459861)
BOX_OFFSETS = torch.tensor([[[i, j, k] for i in [0, 1] for j in [0, 1] for k in [0, 1]]])


def hash_coords(coords, log2_size):
    result = torch.zeros_like(coords)[..., 0]
    for i in range(coords.shape[-1]):
        result ^= coords[..., i] * PRIMES[i]
    return torch.tensor((1 << log2_size) - 1).to(result.device) & result


def grid_sample_planes(planes, pts):
    n_planes, c, h, w = planes.shape
    pairs = list(itertools.combinations(range(pts.shape[-1]), 2))
    assert len(pairs) == n_planes
    grid = torch.stack([pts[..., list(p)] for p in pairs], 0)
    out = F.grid_sample(planes, grid.view(n_planes, 1, -1, 2), align_corners=True, padding_mode="border")
    return out.view(n_planes, c, -1).permute(2, 0, 1).reshape(*pts.shape[:-1], n_planes * c)


class HashEmbedder(nn.Module):
    def __init__(self, bounding_box, n_levels=3, n_features=2, log2_size=6, base=4, finest=16):
        super().__init__()
        self.bounding_box, self.n_levels, self.log2_size = bounding_box, n_levels, log2_size
        self.base = torch.tensor(base)
        self.b = math.exp((math.log(finest) - math.log(base)) / (n_levels - 1))
        self.resolutions = [math.floor(base * self.b ** i) for i in range(n_levels)]
        self.out_dim = n_levels * n_features
        self.embeddings = nn.ModuleList([nn.Embedding(2 ** log2_size, n_features) for _ in range(n_levels)])
        for e in self.embeddings:
            nn.init.uniform_(e.weight, a=-0.0001, b=0.0001)

    def trilinear(self, x, lo, hi, emb):
        w = (x - lo) / (hi - lo)
        c00 = emb[:, 0] * (1 - w[:, 0][:, None]) + emb[:, 4] * w[:, 0][:, None]
        c01 = emb[:, 1] * (1 - w[:, 0][:, None]) + emb[:, 5] * w[:, 0][:, None]
        c10 = emb[:, 2] * (1 - w[:, 0][:, None]) + emb[:, 6] * w[:, 0][:, None]
        c11 = emb[:, 3] * (1 - w[:, 0][:, None]) + emb[:, 7] * w[:, 0][:, None]
        c0, c1 = c00 * (1 - w[:, 1][:, None]) + c10 * w[:, 1][:, None], c01 * (1 - w[:, 1][:, None]) + c11 * w[:, 1][:, None]
        return c0 * (1 - w[:, 2][:, None]) + c1 * w[:, 2][:, None]

    def vertices(self, xyz, resolution):
        box_min, box_max = self.bounding_box
        keep_mask = xyz == torch.max(torch.min(xyz, box_max), box_min)
        xyz = torch.clamp(xyz, min=-1.0, max=1.0)
        grid_size = (box_max - box_min) / resolution
        bottom_left = torch.floor((xyz - box_min) / grid_size).int()
        lo = bottom_left * grid_size + box_min
        idx = bottom_left.unsqueeze(1) + BOX_OFFSETS.to(bottom_left.device)
        return lo, lo + grid_size, hash_coords(idx.long(), self.log2_size), keep_mask

    def forward(self, x):
        outs = []
        keep_mask = None
        for i, res in enumerate(self.resolutions):
            lo, hi, idx, keep_mask = self.vertices(x, res)
            outs.append(self.trilinear(x, lo, hi, self.embeddings[i](idx)))
        keep_mask = keep_mask.sum(dim=-1) == keep_mask.shape[-1]
        return torch.cat(outs, dim=-1), keep_mask


class TruncExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.exp(x)

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0]
        return g * torch.exp(x.clamp(-15, 15))


trunc_exp = TruncExp.apply


class Field(nn.Module):
    def __init__(self, kind="hash", width=16):
        super().__init__()
        box = (torch.tensor([-1.0] * 3), torch.tensor([1.0] * 3))
        self.kind = kind
        self.embed = HashEmbedder(box)
        self.planes = nn.Parameter(torch.randn(3, 2, 8, 8) * 0.1)
        dim = {"hash": self.embed.out_dim, "planes": 6, "both": self.embed.out_dim + 6}[kind]
        self.mlp = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, 4))
        self.levels = (0, 1)

    def forward(self, pts, dirs=None):
        shape = pts.shape[:-1]
        flat = pts.reshape(-1, 3)
        feats, mask = [], None
        if self.kind in ("hash", "both"):
            f, mask = self.embed(flat)
            feats += [f]
        if self.kind in ["planes", "both"]:
            feats.append(grid_sample_planes(self.planes, flat))
        raw = self.mlp(torch.cat(feats, dim=-1) if len(feats) > 1 else feats[0])
        sigma = trunc_exp(raw[..., 0])
        if mask is not None:
            sigma = torch.where(mask, sigma, torch.zeros_like(sigma))
        rgb = raw[..., 1:].sigmoid()
        if dirs is not None:
            assert dirs.shape == pts.shape
            rgb = rgb * (1 + dirs.reshape(-1, 3)) / 2
        n = math.prod(shape)
        assert sigma.shape[0] == n, (sigma.shape, n)
        return {"sigma": sigma.view(*shape), "rgb": rgb.view(*shape, 3)}


def tiny():
    pts = torch.rand(2, 5, 3) * 2 - 1
    return Field("both").eval(), [{"pts": pts}, {"pts": pts, "dirs": torch.rand(2, 5, 3)}]
