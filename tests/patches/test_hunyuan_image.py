"""HunyuanImage's transformer with both prompts padded, traced, against diffusers on the CPU."""

import copy
from typing import Any

import pytest
import torch
from diffusers import HunyuanImageTransformer2DModel

import tpuport
from tpuport import compat

TEXT, GLYPHS = 7, 6


def build(**options: Any) -> HunyuanImageTransformer2DModel:
    torch.manual_seed(0)
    sizes = {
        "in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1,
        "num_single_layers": 1, "num_refiner_layers": 1, "patch_size": (2, 2), "text_embed_dim": 24,
        "text_embed_2_dim": 12, "rope_axes_dim": (8, 8),
    }  # fmt: skip
    return HunyuanImageTransformer2DModel(**{**sizes, **options}).eval()


def mask(lengths: tuple[int, int], tokens: int) -> torch.Tensor:
    return (torch.arange(tokens) < torch.tensor(lengths)[:, None]).long()


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, (8, 12)),
        # The patch orders tokens, whatever they stand for.
        pytest.param(
            {"patch_size": (1, 1, 1), "rope_axes_dim": (4, 6, 6), "guidance_embeds": True},
            (2, 4, 3),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["pictures", "frames"],
)
def test_valid_tokens_of_both_prompts_come_first(options: dict[str, Any], sizes: tuple[int, ...]) -> None:
    model = build(**options)
    inputs = {
        "hidden_states": torch.randn(2, 4, *sizes), "timestep": torch.tensor([500.0, 400.0]),
        "encoder_hidden_states": torch.randn(2, TEXT, 24), "encoder_hidden_states_2": torch.randn(2, GLYPHS, 12),
        "guidance": torch.tensor([3000.0, 2000.0]) if "guidance_embeds" in options else None, "return_dict": False,
    }  # fmt: skip
    compiled = tpuport.compile(tpuport.port(copy.deepcopy(model)))
    for text, glyphs in (((5, 3), (2, 0)), ((7, 1), (0, 6))):
        masks = {
            "encoder_attention_mask": mask(text, TEXT),
            "encoder_attention_mask_2": mask(glyphs, GLYPHS),
        }
        (expected,) = model(**inputs, **masks)
        (actual,) = compiled(**inputs, **masks)
        torch.testing.assert_close(compat.to_torch(compat.as_jax(actual)), expected, atol=1e-5, rtol=1e-4)
    assert compiled.program.compilations == 1
