"""Writes to slices in compiled code, whose values are computed from what they overwrite."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import tpuport

HEADS, TEXT, IMAGE, WIDTH = 2, 16, 16, 16


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.reshape(*x.shape[:-1], 2, -1).unbind(-2)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class JointAttention(nn.Module):
    """Rotates the image's part of queries and keys where it stands, as CogView 4 does."""

    def __init__(self, write: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.write = write
        self.queries = nn.Linear(HEADS * WIDTH, HEADS * WIDTH)
        self.keys = nn.Linear(HEADS * WIDTH, HEADS * WIDTH)
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        query, key = (
            self.norm(layer(x).unflatten(2, (HEADS, -1)).transpose(1, 2))
            for layer in (self.queries, self.keys)
        )
        query = self.write(query, rotate(query[:, :, TEXT:], cos, sin))
        key = self.write(key, rotate(key[:, :, TEXT:], cos, sin))
        return nn.functional.scaled_dot_product_attention(query, key, key)


def by_index(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    x[:, :, TEXT:] = values
    return x


def through_a_view(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    x.narrow(2, TEXT, IMAGE).copy_(values)
    return x


def by_scatter(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.slice_scatter(x, values, dim=2, start=TEXT)


@pytest.mark.parametrize("write", [by_index, through_a_view, by_scatter])
def test_values_are_computed_before_they_are_written(write: Callable) -> None:
    torch.manual_seed(0)
    model = JointAttention(write).eval()
    inputs = torch.randn(1, TEXT + IMAGE, HEADS * WIDTH), torch.randn(IMAGE, WIDTH), torch.randn(IMAGE, WIDTH)
    with torch.no_grad():
        expected = model(*inputs)
    actual = tpuport.to_cpu(tpuport.compile(tpuport.port(model))(*inputs))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


KEYS = [
    (slice(1, 3),), (0,), (-1,), (slice(None), 2), (slice(-2, None), slice(None, -1), 0), (Ellipsis, slice(1, 2)),
    (1, slice(1, 3), -2), (slice(None), None, slice(0, 2)), (slice(2, 2),), (slice(None, None, 2),), (slice(None),),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_what_is_written_to_any_slices(key: tuple) -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        x[key] = x[key].flip(-1) + 1
        x[key] = 3 * x[key][..., :1]
        return x

    x = torch.arange(48.0).reshape(3, 4, 4)
    torch.testing.assert_close(tpuport.to_cpu(tpuport.compile(write)(x)), write(x))


@pytest.mark.parametrize("dim", [1, -1])
def test_scatter_into_a_dimension(dim: int) -> None:
    def scatter(x: torch.Tensor) -> torch.Tensor:
        x = torch.slice_scatter(x, x.narrow(dim, 0, 2).flip(dim), dim=dim, start=-2)
        return torch.select_scatter(x, x.select(dim, 0) + 1, dim=dim, index=-1)

    x = torch.arange(48.0).reshape(3, 4, 4)
    torch.testing.assert_close(tpuport.to_cpu(tpuport.compile(scatter)(x)), scatter(x))
