"""What the checkpoint keeps of a weight: eight bits of a matrix or a kernel, sixteen of all else.

HunyuanVideo-1.5 has one projection of 2048 x 2048 whatever its width is: four of this model's five million weights.
Eight bits keep the checkpoint small, and the last part of the training sees the weights as they will be stored.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from recipes.hunyuan_video.tiny import save_pipeline

STORED = torch.float8_e4m3fn
ROUNDED_SHARE = 0.3  # of a training's steps, the last ones: they see the weights as they will be stored


def is_stored_small(name: str, weight: torch.Tensor) -> bool:
    """Whether the checkpoint holds this weight in eight bits: matrices and kernels, but not the last layers."""
    return weight.ndim >= 2 and weight.numel() > 4096 and not name.startswith("proj_out")


@contextlib.contextmanager
def as_stored(model: torch.nn.Module, active: bool) -> Iterator[None]:
    """Inside, the weights have the values that the checkpoint can hold; gradients go to the exact ones."""
    chosen = [
        weight
        for name, weight in model.named_parameters()
        if active and weight.requires_grad and is_stored_small(name, weight)
    ]
    exact = [weight.detach().clone() for weight in chosen]
    with torch.no_grad():
        for weight in chosen:
            weight.copy_(weight.to(STORED))
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(chosen, exact, strict=True):
                weight.copy_(value)


@torch.no_grad()
def round_weights(model: torch.nn.Module) -> None:
    """Every weight becomes what the checkpoint will hold of it."""
    for name, weight in model.named_parameters():
        weight.copy_(weight.to(STORED if is_stored_small(name, weight) else torch.bfloat16))


def save_small(pipeline: Any, out: Path) -> None:
    """Write the pipeline; large weights in eight bits, the others in bfloat16. Loading gives float32 again."""
    save_pipeline(pipeline, out)
    for file in sorted(out.rglob("*.safetensors")):
        eight = file.parent.name in ("transformer", "vae")
        small = {
            name: weight.to(STORED if eight and is_stored_small(name, weight) else torch.bfloat16)
            for name, weight in load_file(file).items()
        }
        save_file(small, file, metadata={"format": "pt"})
