"""grid_sample beside torch, at places inside and outside, and at those that are no numbers."""

import itertools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

import tpuport

_MODES = [
    (rank, mode, padding)
    for rank, modes in ((2, ("bilinear", "nearest", "bicubic")), (3, ("bilinear", "nearest")))
    for mode, padding in itertools.product(modes, ("zeros", "border", "reflection"))
]
# Each mode and each padding once; the others differ in nothing that these do not have.
_SAMPLE = {
    (2, "bilinear", "zeros"),
    (2, "bicubic", "reflection"),
    (2, "nearest", "border"),
    (3, "bilinear", "border"),
}


@pytest.mark.parametrize(
    ("rank", "mode", "padding"),
    [pytest.param(*one, marks=[] if one in _SAMPLE else [pytest.mark.slow]) for one in _MODES],
)
def test_every_place(rank, mode, padding, agree):
    image = torch.randn(2, 3, *range(4, 4 + rank))
    grid = 1.5 * torch.randn(2, *range(3, 3 + rank), rank)
    # Numbers of all kinds in every coordinate, and in the image.
    for place, value in enumerate((float("nan"), float("inf"), -float("inf"))):
        grid.view(-1)[place::11] = value
        image.view(-1)[5 * place :: 17] = value
    for align in (False, True):
        agree(lambda image, grid, align=align: F.grid_sample(image, grid, mode, padding, align), image, grid)


@pytest.mark.parametrize("align", [False, True])
def test_an_image_of_one_pixel(align, agree):
    image, grid = torch.randn(1, 2, 1, 4), torch.randn(1, 5, 5, 2)
    agree(lambda image, grid: F.grid_sample(image, grid, "bicubic", "reflection", align), image, grid)


def test_halves_are_computed_in_float32():
    image, grid = torch.randn(1, 2, 6, 5).bfloat16(), torch.rand(1, 3, 4, 2).bfloat16()
    expected = F.grid_sample(image.float(), grid.float(), align_corners=False).bfloat16()
    actual = F.grid_sample(image.to("jax"), grid.to("jax"), align_corners=False)
    assert torch.equal(tpuport.to_cpu(actual), expected)
