import pytest
import torch
from torch.nn import functional

import tpuport

X = torch.randn(1, 2, 5, 7)


# The weights are computed in float32, whatever the dtype is.
@pytest.mark.parametrize(
    ("dtype", "align_corners"),
    [
        (torch.float32, False), pytest.param(torch.float32, True, marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, False, marks=pytest.mark.slow), (torch.bfloat16, True),
        pytest.param(torch.float16, False, marks=pytest.mark.slow),
        pytest.param(torch.float16, True, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_bicubic(agree, dtype, align_corners):
    def resize(x):
        return [
            functional.interpolate(x, size=(9, 4), mode="bicubic", align_corners=align_corners),
            functional.interpolate(x, scale_factor=1.7, mode="bicubic", align_corners=align_corners),
        ]

    # Eagerly, the sixteen products of each size would be compiled one by one, as the four of bilinear's are.
    agree(resize, X.to(dtype), tolerance=max(1e-5, 2 * torch.finfo(dtype).eps), long=True)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("options", [{"size": (5, 7)}, {"size": (15, 27)}, {"scale_factor": 0.4}], ids=str)
@pytest.mark.parametrize("align_corners", [False, True])
def test_antialiasing(agree, mode, options, align_corners):
    def interpolate(image):
        return torch.nn.functional.interpolate(
            image, mode=mode, antialias=True, align_corners=align_corners, **options
        )

    agree(interpolate, torch.randn(1, 2, 10, 20), jit=False, tolerance=2e-5)


def test_antialiasing_of_halves(agree):
    def interpolate(image):
        # torch's CPU has no kernel for halves.
        if image.device.type == "cpu":
            return interpolate_wide(image.float()).to(image.dtype)
        return interpolate_wide(image)

    def interpolate_wide(image):
        return torch.nn.functional.interpolate(image, size=(4, 9), mode="bilinear", antialias=True)

    agree(interpolate, torch.randn(1, 2, 10, 20).bfloat16(), tolerance=1e-2)


def test_antialiasing_by_factors(agree):
    def interpolate(image):
        return torch.ops.aten._upsample_bilinear2d_aa(image, None, True, [0.8, 1.0])

    agree(interpolate, torch.randn(1, 2, 10, 20), tolerance=2e-5)


def test_bilinear_of_what_has_its_channels_last(agree):
    def resize(image):
        return functional.interpolate(image.permute(0, 3, 1, 2), size=(9, 4), mode="bilinear")

    agree(resize, torch.randn(1, 5, 7, 2))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest(agree, mode):
    """Whole factors and others, to sizes and by factors, in one to three dimensions."""

    def resize(x):
        return [
            functional.interpolate(x, scale_factor=2, mode=mode),
            functional.interpolate(x, scale_factor=(3.0, 1.7), mode=mode),
            functional.interpolate(x, size=(15, 4), mode=mode),
            functional.interpolate(x, scale_factor=0.5, mode=mode),
            functional.interpolate(x, scale_factor=2.5, mode=mode, recompute_scale_factor=True),
            functional.interpolate(x[:, 0], scale_factor=4, mode=mode),
            functional.interpolate(x[:, None], scale_factor=(1, 2, 3), mode=mode),
        ]

    agree(resize, X)
    agree(resize, X.bfloat16())


def test_pixels_are_repeated_without_a_gather():
    program = tpuport.compile(lambda x: functional.interpolate(x, scale_factor=2, mode="nearest"))
    assert "stablehlo.gather" not in program.lower(X).as_text()


@pytest.mark.parametrize("shape", [(2, 1, 4, 5), (1, 1, 2, 3, 4)])
def test_affine_grids(agree, shape):
    theta = torch.randn(shape[0], len(shape) - 2, len(shape) - 1)
    agree(lambda theta: functional.affine_grid(theta, shape, align_corners=False), theta)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_reflection_of_a_grid_far_outside(agree, mode):
    def sample(x, grid):
        return functional.grid_sample(x, grid, mode, "reflection", align_corners=False)

    agree(sample, torch.randn(1, 2, 5, 7), torch.rand(1, 4, 3, 2) * 40 - 20, tolerance=1e-3)
    agree(sample, torch.randn(1, 2, 3, 5, 4), torch.rand(1, 2, 2, 3, 3) * 9 - 4, tolerance=1e-3, eager=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_places_of_a_grid_of_halves_are_float32(dtype):
    # As on a GPU; torch's kernel for CPUs rounds them to the half, and takes other elements.
    x, grid = torch.randn(1, 2, 13, 13, 13, dtype=dtype), (torch.rand(1, 9, 9, 9, 3) * 3 - 1.5).to(dtype)
    expected = functional.grid_sample(x.float(), grid.float(), "nearest", align_corners=True).to(dtype)
    actual = functional.grid_sample(x.to("jax"), grid.to("jax"), "nearest", align_corners=True)
    assert torch.equal(actual.cpu(), expected)
