"""The measures of pictures, against their definitions written out for a pixel."""

import math

import numpy as np

from benchmarks.video_quality import K1, K2, LUMA, SIGMA, psnr, ssim


def test_psnr_is_the_formula():
    reference = np.zeros((1, 2, 4, 4, 3))
    assert psnr(reference, reference) == math.inf
    # An error of a tenth everywhere is a hundredth squared.
    np.testing.assert_allclose(psnr(reference + 0.1, reference), 20)


def similarity_at(first, second, row, column, radius=5):
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-(offsets[:, None] ** 2 + offsets**2) / (2 * SIGMA**2))
    weights /= weights.sum()
    window = np.s_[row - radius : row + radius + 1, column - radius : column + radius + 1]
    a, b = (grey[window] for grey in (first, second))
    mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
    variance_a, variance_b = (weights * (a - mean_a) ** 2).sum(), (weights * (b - mean_b) ** 2).sum()
    covariance = (weights * (a - mean_a) * (b - mean_b)).sum()
    luminance = (2 * mean_a * mean_b + K1**2) / (mean_a**2 + mean_b**2 + K1**2)
    structure = (2 * covariance + K2**2) / (variance_a + variance_b + K2**2)
    return luminance * structure


def test_ssim_is_the_definition():
    rng = np.random.default_rng(0)
    # A single pixel in the middle, so that no window is cut by the border: what repeats is reflected.
    first, second = (
        np.pad(rng.uniform(0, 1, (11, 11, 3)), ((5, 5), (5, 5), (0, 0)), "symmetric") for _ in range(2)
    )
    expected = [
        similarity_at(first @ LUMA, second @ LUMA, row, column)
        for row in range(5, 16)
        for column in range(5, 16)
    ]
    inner = np.s_[5:16, 5:16]
    np.testing.assert_allclose(ssim(first[inner], second[inner]), np.mean(expected), rtol=1e-9)
    assert ssim(first, first) == 1
    assert ssim(first, second) < 0.5
