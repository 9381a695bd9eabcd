"""A layer of attention with a cache in the manner of research code, and variants of it with one habit each."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

LENGTH, WIDTH, TOKENS = 12, 8, 17


class SlicedCache:
    """Its position is a Python number."""

    def __init__(self) -> None:
        self.k = torch.zeros(2, LENGTH, WIDTH)
        self.position = 0

    def update(self, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        end = self.position + k.shape[1]
        self.k[:, self.position : end] = k  # first slice
        self.position = end  # position
        return self.k[:, :end], None


class TensorCache:
    """Its position is a tensor."""

    def __init__(self) -> None:
        self.k = torch.zeros(2, LENGTH, WIDTH)
        self.position = torch.zeros((), dtype=torch.int32)

    def update(self, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        columns = self.position + torch.arange(k.shape[1], device=k.device)
        self.k.index_copy_(1, columns, k)
        self.position = self.position + k.shape[1]
        return self.k, torch.arange(LENGTH, device=k.device) <= columns[:, None]


class GrowingCache:
    """Gets longer in each call."""

    def __init__(self) -> None:
        self.layers: dict[str, torch.Tensor] = {}

    def update(self, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        if "k" in self.layers:
            k = torch.cat([self.layers["k"], k], dim=1)
        self.layers["k"] = k  # growth
        return k, None


class CountingCache(TensorCache):
    """Counts its calls, and only computes with the number."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def update(self, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        self.calls += 1  # calls
        return super().update(k * self.calls)


class Attends(nn.Module):
    """Embeds tokens, and attends to those in a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        x = self.embedding(tokens)
        k, mask = cache.update(x)
        return self.head(functional.scaled_dot_product_attention(x, k, k, attn_mask=mask))


class Scales(nn.Module):
    """Takes two Python numbers; only one of them may be a tensor."""

    def forward(self, x: torch.Tensor, start: int, scale: float, is_exact: bool = False) -> torch.Tensor:
        return x[:, start:] * scale  # start
