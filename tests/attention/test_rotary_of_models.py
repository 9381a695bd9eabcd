"""Rotary embeddings of diffusers' models as matrix products: found in their own code, and equal to torch."""

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from diffusers.models.transformers.cogvideox_transformer_3d import CogVideoXTransformer3DModel
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

import tpuport
from tpuport.attention import attend, attention_settings
from tpuport.attention.lane_maps import rebuild_with_products

Inputs = dict[str, Any]


def flux() -> tuple[torch.nn.Module, Inputs]:
    model = FluxTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=32, num_attention_heads=4,
        joint_attention_dim=16, pooled_projection_dim=16, axes_dims_rope=(8, 12, 12),
    )  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(1, 144, 4), "encoder_hidden_states": torch.randn(1, 20, 16),
        "pooled_projections": torch.randn(1, 16), "timestep": torch.ones(1), "img_ids": torch.rand(144, 3) * 9,
        "txt_ids": torch.zeros(20, 3),
    }  # fmt: skip
    return model, inputs


def wan() -> tuple[torch.nn.Module, Inputs]:
    model = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=4, attention_head_dim=32, in_channels=4, out_channels=4, text_dim=16,
        freq_dim=32, ffn_dim=32, num_layers=1, rope_max_seq_len=32,
    )  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(1, 4, 3, 16, 16), "timestep": torch.tensor([3]),
        "encoder_hidden_states": torch.randn(1, 20, 16),
    }  # fmt: skip
    return model, inputs


def cogvideox() -> tuple[torch.nn.Module, Inputs]:
    model = CogVideoXTransformer3DModel(
        num_attention_heads=4, attention_head_dim=32, in_channels=4, out_channels=4, time_embed_dim=8,
        text_embed_dim=16, num_layers=1, sample_width=16, sample_height=16, sample_frames=9, patch_size=2,
        temporal_compression_ratio=4,
        max_text_seq_length=20, use_rotary_positional_embeddings=True,
    )  # fmt: skip
    angles = torch.rand(3 * 64, 16).repeat_interleave(2, dim=1)
    inputs = {
        "hidden_states": torch.randn(1, 3, 4, 16, 16), "encoder_hidden_states": torch.randn(1, 20, 16),
        "timestep": torch.tensor([3]), "image_rotary_emb": (angles.cos(), angles.sin()),
    }  # fmt: skip
    return model, inputs


@pytest.mark.filterwarnings("ignore:float64 becomes float32", "ignore:Explicitly requested dtype")
@pytest.mark.parametrize(
    "build",
    [flux, *(pytest.param(build, marks=pytest.mark.slow) for build in (wan, cogvideox))],
    ids=lambda build: build.__name__,
)
def test_a_model_with_products_equals_torch(
    build: Callable[[], tuple[torch.nn.Module, Inputs]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = build()
    model.eval()
    with torch.no_grad():
        [expected] = model(**inputs, return_dict=False)
    rebuilt = []

    # On a CPU, where the product is not used otherwise.
    def with_products(array: jax.Array) -> jax.Array:
        result = rebuild_with_products(array)
        rebuilt.append(result is not array)
        return result

    monkeypatch.setattr(attend, "with_matrix_products", with_products)
    tpuport.enable()
    owner = object()
    attention_settings.add_settings(owner, attention_settings.Settings(implementation="flash"))
    try:
        tpuport.port(model)
        [result] = tpuport.compile(model)(**inputs, return_dict=False)
        assert any(rebuilt), "no query or key was rebuilt"
        torch.testing.assert_close(result.cpu(), expected, atol=2e-5, rtol=2e-5)
    finally:
        attention_settings.remove_settings(owner)
        tpuport.disable()
