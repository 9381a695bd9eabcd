"""Two models in the manner of research code, without a plan: a GPT, and an image diffusion transformer."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Attention with query, key and value in one linear layer.

    Args:
        width: of the model.
        heads: how many.
        is_stacked: whether the layer's outputs are `[3, heads, head_dim]` in one view, or three splits of the width.
        is_causal: whether a token sees only those before it.
    """

    def __init__(self, width: int, heads: int, *, is_stacked: bool, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_stacked, self.is_causal = heads, is_stacked, is_causal
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        if self.is_stacked:
            parts = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads)
            query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        else:
            query, key, value = (
                part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                for part in self.qkv(x).split(width, dim=2)
            )
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        return self.proj(out.transpose(1, 2).reshape(batch, length, width))


class GPTBlock(nn.Module):
    """Attention and a feed-forward, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, is_stacked=False, is_causal=True)
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(functional.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    """A language model with learned positions and tied embeddings."""

    def __init__(self, layers: int = 2, width: int = 64, heads: int = 8, vocabulary: int = 256) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(GPTBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def modulate(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`x` [B, N, E] with a shift and a scale [B, E] for each sample."""
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DiTBlock(nn.Module):
    """A block whose norms are modulated by the timestep and the class (adaLN-zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.attn = Attention(width, heads, is_stacked=True, is_causal=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(condition).chunk(6, dim=1)
        x = x + gate1.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift1, scale1))
        return x + gate2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift2, scale2))


class DiT(nn.Module):
    """A diffusion transformer over 2 x 2 patches of 16 x 16 latents with 4 channels, for 10 classes."""

    def __init__(self, layers: int = 2, width: int = 64, heads: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, width, kernel_size=2, stride=2)
        self.positions = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(11, width)
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.out = nn.Linear(width, 16)
        self.width = width

    def forward(self, x: torch.Tensor, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        half = self.width // 2
        angles = t[:, None].float() * torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
        condition = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1)) + self.classes(y)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.adaLN_modulation(condition).chunk(2, dim=1)
        x = self.out(modulate(self.norm(x), shift, scale)).reshape(batch, 8, 8, 2, 2, 4)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(batch, 4, 16, 16)


def gpt(layers: int) -> tuple[nn.Module, dict[str, Any]]:
    """A tiny GPT, and inputs for it."""
    torch.manual_seed(0)
    return GPT(layers).eval().requires_grad_(False), {"tokens": torch.randint(0, 256, (2, 16))}


def dit(layers: int) -> tuple[nn.Module, dict[str, Any]]:
    """A tiny diffusion transformer, and inputs for it."""
    torch.manual_seed(0)
    inputs = {"x": torch.randn(2, 4, 16, 16), "t": torch.tensor([10, 500]), "y": torch.tensor([3, 7])}
    return DiT(layers).eval().requires_grad_(False), inputs


BUILDERS: dict[str, Callable[[int], tuple[nn.Module, dict[str, Any]]]] = {"own GPT": gpt, "own DiT": dit}
