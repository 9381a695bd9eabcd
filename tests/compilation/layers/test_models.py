"""Diffusion transformers compiled with their blocks in loops: the results of the same models without."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from diffusers import FluxTransformer2DModel, HunyuanVideo15Transformer3DModel, WanTransformer3DModel

import tpuport
from tpuport.compilation import layers
from tpuport.topology import lower_for

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype", "ignore:float64 becomes float32")


@pytest.fixture(scope="module", autouse=True)
def enabled():
    tpuport.enable()
    yield
    tpuport.disable()


def hunyuan() -> HunyuanVideo15Transformer3DModel:
    torch.manual_seed(0)
    return HunyuanVideo15Transformer3DModel(
        in_channels=9, out_channels=4, num_attention_heads=4, attention_head_dim=16, num_layers=4,
        num_refiner_layers=1, mlp_ratio=2.0, patch_size=1, text_embed_dim=24, text_embed_2_dim=12,
        image_embed_dim=20, rope_axes_dim=(4, 6, 6), target_size=16, task_type="t2v",
    ).eval()  # fmt: skip


def flux() -> FluxTransformer2DModel:
    torch.manual_seed(0)
    return FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=3, num_single_layers=4, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=8, pooled_projection_dim=8, axes_dims_rope=(4, 6, 6),
    ).eval()  # fmt: skip


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def hunyuan_inputs() -> dict[str, Any]:
    return {
        "hidden_states": _randn(2, 9, 2, 4, 4),
        "timestep": torch.tensor([400.0, 400.0]),
        "encoder_hidden_states": _randn(2, 6, 24),
        "encoder_attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]),
        "encoder_hidden_states_2": _randn(2, 4, 12),
        "encoder_attention_mask_2": torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]]),
        "image_embeds": torch.zeros(2, 3, 20),
        "return_dict": False,
    }


def flux_inputs() -> dict[str, Any]:
    grid = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"), dim=-1)
    return {
        "hidden_states": _randn(2, 16, 4),
        "encoder_hidden_states": _randn(2, 4, 8),
        "pooled_projections": _randn(2, 8),
        "timestep": torch.tensor([0.5, 0.5]),
        "img_ids": torch.nn.functional.pad(grid.reshape(-1, 2), (1, 0)).float(),
        "txt_ids": torch.zeros(4, 3),
        "return_dict": False,
    }


MODELS: dict[str, tuple[Callable, Callable, dict[str, int]]] = {
    "hunyuan video": (hunyuan, hunyuan_inputs, {"transformer_blocks": 2}),
    "flux": (flux, flux_inputs, {"transformer_blocks": 2, "single_transformer_blocks": 3}),
}


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        *(
            pytest.param(name, mesh, marks=pytest.mark.slow)
            for name, mesh in [
                ("flux", {}),
                ("hunyuan video", {"sp": 2}),
                ("flux", {"sp": 2}),
                ("flux", {"dp": 2, "tp": 2}),
                ("hunyuan video", {}),
                ("hunyuan video", {"dp": 2, "tp": 2}),
            ]
        ),
    ],
    ids=str,
)
def test_a_diffusion_transformer_in_loops_gives_the_same(name, mesh) -> None:
    build, inputs, least = MODELS[name]
    count = int(np.prod(list(mesh.values()) or [1]))
    model = tpuport.port(build(), mesh=tpuport.create_mesh(**mesh, devices=jax.devices()[:count]))
    plain = tpuport.compile(model)
    wanted = tpuport.to_cpu(plain(**inputs())[0])
    looped = tpuport.compile(model, scan_layers=True)
    found = tpuport.to_cpu(looped(**inputs())[0])
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)
    assert plain.scanned == ()
    counts = {one.name: one.count for one in looped.scanned}
    assert all(counts.get(path, 0) >= blocks for path, blocks in least.items()), (counts, looped.declined)
    layers.unstack_layers(model)


def test_the_first_block_is_in_the_loop_too_where_hidden_states_are_divided() -> None:
    """What divides them stands before the block; the blocks after the first would have it, and the first not."""

    def wan() -> WanTransformer3DModel:
        return WanTransformer3DModel(
            num_attention_heads=2, attention_head_dim=16, num_layers=2, ffn_dim=32, text_dim=16, freq_dim=16
        )

    inputs = {
        "hidden_states": torch.empty(2, 16, 1, 8, 8, device="meta"),
        "timestep": torch.empty(2, device="meta"),
        "encoder_hidden_states": torch.empty(2, 8, 16, device="meta"),
        "return_dict": False,
    }
    lowered = lower_for(wan, inputs, topology="v5e:2x2", dp=2, sp=2, scan_layers=True)
    assert [(loop.name, loop.count) for loop in lowered.scanned] == [("blocks", 2)]
