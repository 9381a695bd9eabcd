"""What the tables of `benchmarks.tiny_strangers` share: how a model is named and built, and small inputs."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch

Inputs = dict[str, Any] | list[dict[str, Any]]
Build = Callable[[], tuple[Any, Inputs]]

VOCABULARY = 50


def get(path: str) -> Any:
    """What "module:name" names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def bare(*packages: str) -> None:
    """Let modules of these packages be imported without what an `__init__` does: it may load data, or all else."""
    for package in packages:
        outermost = package.partition(".")[0]
        if package in sys.modules or importlib.util.find_spec(outermost) is None:
            continue
        spec = importlib.util.find_spec(package)
        if spec is not None:
            sys.modules[package] = importlib.util.module_from_spec(spec)


def images(size: int = 32, channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, size, size)


def video(frames: int = 4, size: int = 32) -> torch.Tensor:
    return torch.randn(1, 3, frames, size, size)


def tokens(length: int = 16) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (2, length))


def padding_mask(length: int = 16) -> torch.Tensor:
    """A padding mask: true for tokens."""
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, length // 2 :] = False
    return mask


def features(length: int = 16, width: int = 32) -> torch.Tensor:
    return torch.randn(2, length, width)


def model(path: str, inputs: Inputs, **options: Any) -> Build:
    """The class or function at `path`, called with these options; each call of the model gets `inputs`."""
    return lambda: (get(path)(**options), inputs)
