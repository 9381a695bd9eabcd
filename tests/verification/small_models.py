"""A language model in the manner of research code, and variants of it with one habit each that tracing refuses."""

import functools
import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class RotaryEmbedding(nn.Module):
    """Cosines and sines [length, size] of the positions."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer(
            "frequencies", 1.0 / 100.0 ** (torch.arange(0, size, 2) / size), persistent=False
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.outer(torch.arange(x.shape[1], device=x.device), self.frequencies)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return x * cosines + turned * sines  # rotation


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor | None
    ) -> torch.Tensor:
        batch, length, width = x.shape
        queries, keys, values = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys = rotate(queries, *rotary), rotate(keys, *rotary)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)  # attention
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(
        self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor | None
    ) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, mask)
        return x + self.down(functional.silu(self.up(self.norm(x))))  # feed forward


class Small(nn.Module):
    """Nothing about it is wrong."""

    layers = 1

    def __init__(self, width: int = 16, heads: int = 2, tokens: int = 23) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.rotary = RotaryEmbedding(width // heads)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(self.layers))
        self.head = nn.Linear(width, tokens)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embedding(ids)
        rotary = self.rotary(x)
        for block in self.blocks:
            x = block(x, rotary, mask)
        return self.head(self.change(x, ids))

    def change(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return x


class TwoBlocks(Small):
    """What is wrong in one block is wrong in the other."""

    layers = 2


class ReadsValues(Small):
    """Four lines need values, or give a shape that depends on them."""

    def change(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if x.mean() > 100:  # TPU205
            return x
        longest = int(ids.max().item())  # TPU201
        chosen = x[ids > 3]  # TPU101
        shown = f"{x.mean():.2f}"  # TPU211
        return x * longest + chosen.mean() + len(shown)


class ReadsValuesAndEnds(Small):
    """Two lines need values, and no answer helps with the second, which asks jax."""

    def change(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if x.mean() < -100:  # the first
            return x
        total = x.sum()
        return x + float(getattr(total, "_elem", total))  # the second


class Draws(Small):
    """Draws noise in each call."""

    def change(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)  # noise


class DrawsOnHost(Small):
    """Draws numbers that are constants of a program."""

    def change(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        # The number itself must not matter: type checks of the tests draw, too.
        if random.random() < 1:  # python
            x = 2 * x
        return x + float(np.random.rand())  # numpy


class RoundsOnDevice(Small):
    """Computes less exactly where it is not on the host, in a line that torch never runs."""

    def change(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if x.device.type != "cpu":
            x = x.bfloat16().float()  # rounded
        return 2 * x


class DrawsRowsOnHost(Small):
    """Draws the noise of one row for all, unless it is on the host."""

    def change(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        like = x if x.device.type == "cpu" else x[:1]
        return x + torch.randn_like(like)  # one row


class Adapted(Small):
    """Has an adapter that can be switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter = nn.Linear(16, 16)
        self.adapter_enabled = True

    def change(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if self.adapter_enabled:  # adapter
            return x + self.adapter(x)
        return x


class NeedsCuda(Small):
    """Asks for a GPU."""

    def change(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        torch.cuda.set_device(0)  # first
        torch.cuda.synchronize()  # second
        return x


class EmbedsTime(Small):
    """Computes an embedding of time steps in float64, as many diffusion models do."""

    def change(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        angles = ids[..., None].double() * 1000.1  # TPU401
        return x + angles.sin().float()


class Counts(Small):
    """Writes the number of its calls into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def change(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class Routes(Small):
    """Chooses two of values that are all equal, and computes with those."""

    def change(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        scores = torch.ones_like(x)
        chosen = scores.topk(2).indices  # tie
        return x + functional.silu(chosen.sum(-1, keepdim=True) / 10)  # after the tie


class Stops(Small):
    """Stops where a mask of the host is used."""

    def change(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        before = torch.arange(x.shape[1], device=x.device)  # before
        x = x.masked_fill(torch.ones(7, 1) == 0, 0.0)  # stop
        after = torch.arange(x.shape[1], device=x.device)  # after
        return x + (before + after)[:, None]


class CastsDown(Small):
    """Computes its last product in the dtype of a region."""

    device: str = "cuda"

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        logits = super().forward(ids, mask)
        with torch.autocast(self.device or logits.device.type, dtype=torch.bfloat16):
            product = logits @ logits.mT  # region
        return product.float()


class CastsDownWhereItIs(CastsDown):
    """The region is for the device of the tensors."""

    device = ""


class CastsDownOnTheHost(CastsDown):
    """The region is for tensors on the host."""

    device = "cpu"


@functools.lru_cache
def _remembered(length: int, device: torch.device) -> torch.Tensor:
    return torch.ones(length, length, device=device).tril()


class Remembers(Small):
    """Takes a table from a function that remembers it, in the dtype of the first call."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        logits = super().forward(ids, mask)
        return _remembered(ids.shape[1], ids.device) @ logits


class Output:
    """A result of a class that nothing knows."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class ReturnsObject(Small):
    """Returns an object."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        return Output(super().forward(ids, mask))


def small_inputs() -> dict[str, torch.Tensor]:
    """Two rows of seven tokens, the last two of the second row padding."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(2, 1, 1, 7, dtype=torch.bool)
    mask[1, ..., 5:] = False
    return {"ids": torch.randint(0, 23, (2, 7), generator=generator), "mask": mask}


def seeded(model_class: type[nn.Module], dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model with the same weights in each test."""
    torch.manual_seed(0)
    return model_class().to(dtype)


def target() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return seeded(Small), small_inputs()


def reading_target() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    return seeded(ReadsValues), small_inputs()
