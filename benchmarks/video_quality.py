"""What rounding the weights of a video model costs in the clips: differences from those of its float32 weights.

    python -m benchmarks.video_quality [--steps 30]

The trained HunyuanVideo-1.5 of the recipe renders its four prompts with each scheme from the same noise. PSNR is in
decibels for values from 0 to 1, over all clips. SSIM is the mean structural similarity of the frames in grey, as Wang
et al. define it (IEEE Transactions on Image Processing 13, 2004): windows of a Gaussian with sigma 1.5, K1 = 0.01,
K2 = 0.03.
"""

import argparse
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

import tpuport
from recipes import pipeline_running
from recipes.hunyuan_video import __main__ as recipe
from recipes.hunyuan_video import generation
from recipes.hunyuan_video.request import Request

SCHEMES: tuple[str | None, ...] = ("int8", "fp8", "w8a8", "int4", "int4:32")
# ITU-R BT.601: how bright red, green and blue are.
LUMA = (0.299, 0.587, 0.114)
SIGMA = 1.5
K1, K2 = 0.01, 0.03


def psnr(clips: np.ndarray, reference: np.ndarray) -> float:
    """Peak signal to noise ratio in decibels, of values from 0 to 1; infinite for equal ones."""
    error = float(np.mean((clips.astype(np.float64) - reference) ** 2))
    return math.inf if error == 0 else -10 * math.log10(error)


def ssim(frames: np.ndarray, reference: np.ndarray) -> float:
    """Mean structural similarity of frames [..., H, W, 3] from 0 to 1."""
    first, second = (np.asarray(values, np.float64) @ LUMA for values in (frames, reference))
    mean_1, mean_2 = _smooth(first), _smooth(second)
    variance_1, variance_2 = _smooth(first**2) - mean_1**2, _smooth(second**2) - mean_2**2
    covariance = _smooth(first * second) - mean_1 * mean_2
    c1, c2 = K1**2, K2**2
    numerator = (2 * mean_1 * mean_2 + c1) * (2 * covariance + c2)
    denominator = (mean_1**2 + mean_2**2 + c1) * (variance_1 + variance_2 + c2)
    return float(np.mean(numerator / denominator))


def _smooth(values: np.ndarray) -> np.ndarray:
    """[..., H, W] under Gaussian windows over height and width."""
    return gaussian_filter(values, SIGMA, truncate=3.5, axes=(-2, -1))


def render(request: Request, scheme: str | None) -> np.ndarray:
    """The clips [B, F, H, W, 3] of the recipe's model, whose transformer has weights in this scheme."""
    pipeline: Any = generation.load(recipe.DEFAULT_CHECKPOINT, request, torch.float32)
    if scheme is not None:
        pipeline.transformer = tpuport.port(pipeline.transformer, quantize=scheme)
    pipeline = tpuport.port(pipeline)
    pipeline.set_progress_bar_config(disable=True)
    return np.asarray(generation.call(pipeline, request))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=recipe.DEFAULT_SIZE["steps"])
    options = parser.parse_args(arguments)
    pipeline_running.start()
    request = recipe.read_request(recipe.parse_arguments(["--steps", str(options.steps)]))
    reference = render(request, None)
    print(
        f"{request.count} clips of {request.frames} frames, {request.width} x {request.height}, {request.steps} steps"
    )
    print("| weights | PSNR, dB | SSIM | largest difference of a value from 0 to 255 |")
    print("| --- | --- | --- | --- |")
    for scheme in SCHEMES:
        clips = render(request, scheme)
        largest = 255 * float(np.abs(clips - reference).max())
        print(
            f"| {scheme} | {psnr(clips, reference):.1f} | {ssim(clips, reference):.4f} | {largest:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
