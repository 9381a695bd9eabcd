"""Pairs of tiny models with the same weights: torch's own, and one on the device."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import (
    LTXVideoTransformer3DModel,
    QwenImageTransformer2DModel,
    WanTransformer3DModel,
)

import tpuport

Pair = tuple[Any, Any, Callable[..., dict[str, Any]]]


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _pair(build: Callable[[], Any]) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = build().eval()
    return model, tpuport.port(copy.deepcopy(model))


@pytest.fixture(scope="module")
def wan() -> Pair:
    pair = _pair(
        lambda: WanTransformer3DModel(
            patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4,
            text_dim=8, freq_dim=16, ffn_dim=16, num_layers=1, rope_max_seq_len=32,
        )
    )  # fmt: skip
    return *pair, lambda height=8, width=6: {
        "hidden_states": _randn(1, 4, 2, height, width),
        "timestep": torch.tensor([7.0]),
        "encoder_hidden_states": _randn(1, 5, 8),
        "return_dict": False,
    }


@pytest.fixture(scope="module")
def ltx() -> Pair:
    pair = _pair(
        lambda: LTXVideoTransformer3DModel(
            in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=12, cross_attention_dim=24,
            num_layers=1, caption_channels=8,
        )
    )  # fmt: skip
    return *pair, lambda height=4, width=3: {
        "hidden_states": _randn(2, 2 * height * width, 4),
        "encoder_hidden_states": _randn(2, 5, 8),
        "timestep": torch.tensor([7.0, 3.0]),
        "encoder_attention_mask": torch.ones(2, 5),
        "num_frames": 2,
        "height": height,
        "width": width,
        "rope_interpolation_scale": (8 / 25, 32, 32),
        "return_dict": False,
    }


@pytest.fixture(scope="module")
def qwen() -> Pair:
    pair = _pair(
        lambda: QwenImageTransformer2DModel(
            patch_size=2, in_channels=8, out_channels=2, num_layers=1, attention_head_dim=16,
            num_attention_heads=2, joint_attention_dim=8, axes_dims_rope=(4, 6, 6),
        )
    )  # fmt: skip
    return *pair, lambda height=4, width=3: {
        "hidden_states": _randn(1, height * width, 8),
        "encoder_hidden_states": _randn(1, 5, 8),
        "encoder_hidden_states_mask": torch.ones(1, 5, dtype=torch.bool),
        "timestep": torch.tensor([0.01]),
        "img_shapes": [[(1, height, width)]],
        "return_dict": False,
    }
