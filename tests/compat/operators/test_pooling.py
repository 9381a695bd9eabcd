import itertools

import pytest
import torch
from torch.nn import functional

X = torch.randn(2, 3, 9, 8)
OPTIONS = list(itertools.product([2, 3], [1, 2, 3], [0, 1], [1, 2, 3], [False, True]))


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("kernel", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_2d(agree, kernel, ceil_mode):
    """Every stride, padding and dilation, values and places."""

    def pool(x):
        options = [option for option in OPTIONS if option[0] == kernel and option[4] == ceil_mode]
        return [out for option in options for out in functional.max_pool2d(x, *option, return_indices=True)]

    agree(pool, X, eager=False)


def test_forms(agree):
    agree(
        lambda x, y: [
            functional.max_pool2d(x, (3, 2)),
            functional.max_pool2d(x[0], [3, 2], (1, 2), (1, 0)),
            functional.max_pool1d(x[0], 3, 2, dilation=2, ceil_mode=True),
            functional.max_pool3d(x, 2, 2, dilation=2, ceil_mode=True),
            functional.max_pool2d(y, 2),
            torch.nn.MaxPool2d(3, 2, 1)(x),
        ],
        X,
        torch.tensor([[[1, 1, -5], [1, 1, 0], [2, 3, 4]]]),
    )


def test_nan_and_infinity(agree):
    x = torch.tensor([[[1.0, torch.nan, -torch.inf, -torch.inf]]])
    agree(lambda x: functional.max_pool1d(x, 2, return_indices=True), x)


@pytest.mark.parametrize("size", [pytest.param((1, 1), marks=pytest.mark.slow), (5, 3)])
def test_adaptive(agree, size):
    agree(lambda x: functional.adaptive_max_pool2d(x, size, return_indices=True), X)
    agree(lambda x: [functional.adaptive_max_pool1d(x[0], size[0]), functional.adaptive_max_pool3d(x, 2)], X)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(agree, dtype):
    agree(lambda x: functional.max_pool2d(x, 3, 2, 1, 2, True), X.to(dtype))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_max_unpool(agree, rank):
    pool, unpool = (getattr(functional, f"max_{kind}{rank}d") for kind in ("pool", "unpool"))
    x = torch.randn(2, 3, *[6] * rank)
    agree(lambda x, places: unpool(x, places, 2), *pool(x, 2, return_indices=True))


def test_places_outside_are_torchs_error():
    x, places = torch.ones(1, 1, 2, 2), torch.tensor([[[[0, 1], [2, 16]]]])
    for device in ("cpu", "jax"):
        with pytest.raises(
            RuntimeError, match=r"Found an invalid max index: 16 \(output volumes are of size 4x4\)"
        ):
            functional.max_unpool2d(x.to(device), places.to(device), 2)


def test_a_stride_of_zero_is_torchs_error():
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError, match="stride should not be zero"):
            functional.max_pool2d(torch.ones(1, 4, 4, device=device), 2, stride=0)


def test_empty_batches(agree):
    x = torch.randn(0, 2, 6, 6)
    agree(lambda x: functional.adaptive_max_pool2d(x, 4, return_indices=True), x, eager=False)
    agree(lambda x, places: functional.max_unpool2d(x, places, 2), x, x.long(), eager=False)
    agree(
        lambda x, samples: functional.fractional_max_pool2d(x, 2, output_size=3, _random_samples=samples),
        x,
        torch.rand(0, 2, 2),
        eager=False,
    )


def test_max_pool_backward(agree):
    def backward(gradient, x, places):
        return torch.ops.aten.max_pool2d_with_indices_backward(gradient, x, [3], [2], [1], [1], False, places)

    x = torch.randn(2, 3, 8, 8)
    values, places = functional.max_pool2d(x, 3, 2, 1, return_indices=True)
    agree(backward, torch.randn_like(values), x, places)


@pytest.mark.parametrize("rank", [2, 3])
def test_averages_of_integers(agree, rank):
    """To the last digit, of windows in the padding and over the end too."""
    pool = getattr(functional, f"avg_pool{rank}d")
    options = itertools.product([2, 3], [1, 2], [0, 1], [False, True], [False, True])
    x = torch.arange(2 * 5**rank).reshape(1, 2, *[5] * rank) * 1_000_003 - 10**7

    def averages(x):
        return [pool(x, *some) for some in options_of_rank] + [pool(x, 2, divisor_override=3)]

    options_of_rank = list(options)
    agree(averages, x // 2**rank, tolerance=0, eager=False)


def test_averages_of_floats(agree):
    agree(
        lambda x: [
            functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            functional.avg_pool2d(x, (3, 2), ceil_mode=True),
            functional.avg_pool1d(x[0], 2),
            functional.avg_pool3d(x, 2, 2, divisor_override=3),
        ],
        X,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_averages_of_many_halves_are_rounded_once(agree, dtype):
    image = (torch.arange(1.0, 401.0).reshape(1, 1, 20, 20) / 7).to(dtype)
    agree(lambda x: torch.nn.functional.avg_pool2d(x, 20), image, tolerance=1e-3)
