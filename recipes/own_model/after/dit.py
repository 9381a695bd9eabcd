# A class-conditional diffusion transformer for small pictures, and its sampler. Any device.
import functools
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def timestep_embedding(t, dim):
    # float64 on the host, for numbers that are known there: steps of the sampler, or of a batch in training
    half = dim // 2
    freqs = np.exp(-math.log(10000) * np.arange(half, dtype=np.float64) / half)
    args = np.asarray(t, dtype=np.float64)[:, None] * 1000 * freqs[None]
    return torch.from_numpy(np.concatenate([np.cos(args), np.sin(args)], axis=-1)).float()


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)
        self.ada = nn.Linear(dim, 6 * dim)

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.ada(F.silu(c)).chunk(6, dim=1)
        b, n, d = x.shape
        # b n (three heads e) -> three b n heads e
        qkv = self.qkv(modulate(self.norm1(x), shift1, scale1))
        q, k, v = qkv.reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 1, 3, 4)
        y = F.scaled_dot_product_attention(*(z.transpose(1, 2) for z in (q, k, v))).transpose(1, 2)
        x = x + gate1.unsqueeze(1) * self.proj(y.reshape(b, n, d))
        h = self.fc2(F.gelu(self.fc1(modulate(self.norm2(x), shift2, scale2))))
        return x + gate2.unsqueeze(1) * h


class DiT(nn.Module):
    def __init__(self, size=16, patch=2, dim=64, depth=3, heads=4, classes=5):
        super().__init__()
        self.size, self.patch, self.dim, self.classes = size, patch, dim, classes
        self.x_embed = nn.Linear(patch * patch, dim)
        self.pos = nn.Parameter(torch.zeros(1, (size // patch) ** 2, dim))
        self.t_mlp = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.y_embed = nn.Embedding(classes + 1, dim)  # the last is "no class"
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.ada = nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, patch * patch)

    def forward(self, x, t_embedding, y):
        b, _, hh, ww = x.shape
        p = self.patch
        # b 1 (h p) (w q) -> b (h w) (p q)
        x = x.view(b, hh // p, p, ww // p, p).permute(0, 1, 3, 2, 4).reshape(b, -1, p * p)
        x = self.x_embed(x) + self.pos
        c = self.t_mlp(t_embedding) + self.y_embed(y)
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.ada(F.silu(c)).chunk(2, dim=1)
        x = self.out(modulate(self.norm(x), shift, scale))
        # b (h w) (p q) -> b 1 (h p) (w q)
        return x.reshape(b, hh // p, ww // p, p, p).permute(0, 1, 3, 2, 4).reshape(b, 1, hh, ww)


def guided_step(model, x, t_embedding, y, null, guidance, dt):
    v, v_null = model(torch.cat([x, x]), t_embedding, torch.cat([y, null])).chunk(2)
    return x + (v_null + guidance * (v - v_null)) * dt


@torch.no_grad()
def sample(model, y, steps=25, guidance=3.0, generator=None, compiled=lambda step: step):
    step = compiled(functools.partial(guided_step, model))
    x = torch.randn(len(y), 1, model.size, model.size, generator=generator)
    null = torch.full_like(y, model.classes)
    for i in range(steps):
        t_embedding = timestep_embedding([i / steps] * (2 * len(y)), model.dim)
        x = step(x, t_embedding, y, null, guidance, 1 / steps)
    x = x.cpu()
    if torch.isnan(x).any():
        raise RuntimeError("NaN")
    return x.clamp(-1, 1)
