import pytest
import torch


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, torch.inf])
def test_distances(agree, p):
    agree(lambda x, y: torch.cdist(x, y, p), torch.randn(2, 4, 3), torch.randn(5, 3))


@pytest.mark.parametrize("mode", ["use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist"])
def test_modes(agree, mode):
    agree(
        lambda x, y: torch.cdist(x, y, compute_mode=mode), torch.randn(4, 3), torch.randn(30, 3), eager=False
    )


def test_points_without_coordinates(agree):
    agree(lambda x, y: [torch.cdist(x, y, p) for p in (2.0, torch.inf)], torch.ones(4, 0), torch.ones(5, 0))


def test_negative_powers_are_torchs_error():
    x = torch.ones(2, 3, device="jax")
    with pytest.raises(RuntimeError, match="non-negative p"):
        torch.cdist(x, x, p=-1.0)


@pytest.mark.parametrize("width", [1, 2])
def test_points_of_other_widths_are_torchs_error(width):
    """A single coordinate is not taken for all."""
    with pytest.raises(RuntimeError, match="must have the same number of columns"):
        torch.cdist(torch.ones(2, width, device="jax"), torch.ones(2, 3, device="jax"))


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, torch.inf])
def test_distances_of_pairs(agree, p):
    points = torch.randn(6, 3)
    points[1, 0], points[2, 1], points[3, 1], points[4] = torch.nan, torch.inf, torch.inf, points[5]
    agree(lambda x: (torch.pdist(x, p), torch.cdist(x, x, p, "donot_use_mm_for_euclid_dist")), points)


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (4, 0)])
def test_no_pairs_and_no_coordinates(agree, shape):
    agree(torch.pdist, torch.ones(shape))
