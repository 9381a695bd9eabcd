"""What rotary modules give inside of a program, against their own forward in torch; and which are not served."""

import copy
import logging
import re
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from diffusers import HunyuanVideo15Transformer3DModel
from diffusers.models.transformers.transformer_anyflow import AnyFlowRotaryPosEmbed
from diffusers.models.transformers.transformer_cogview4 import CogView4RotaryPosEmbed
from diffusers.models.transformers.transformer_cosmos import CosmosRotaryPosEmbed
from diffusers.models.transformers.transformer_hunyuan_video15 import HunyuanVideo15RotaryPosEmbed
from diffusers.models.transformers.transformer_ltx import LTXVideoRotaryPosEmbed
from diffusers.models.transformers.transformer_qwenimage import QwenEmbedRope
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed
from hypothesis import given, settings
from hypothesis import strategies as st

import tpuport
from tpuport import compat
from tpuport.compilation.rotary import table_store

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype", "ignore:float64 becomes float32")

Sizes = tuple[int, int, int]


class Model(torch.nn.Module):
    """A model that is nothing but a rotary module, and a block at which a search may end."""

    def __init__(self, rope: torch.nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.rope, self.call = rope, call
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(2, 2)])

    def forward(self, x: torch.Tensor, sizes: Sizes) -> Any:
        return self.call(self.rope, x, sizes)


VIDEO = [
    (HunyuanVideo15RotaryPosEmbed(1, 1, [4, 6, 6]), lambda rope, x, sizes: rope(x)),
    (WanRotaryPosEmbed(12, (1, 1, 1), 16), lambda rope, x, sizes: rope(x)),
    (CosmosRotaryPosEmbed(24, patch_size=(1, 1, 1)), lambda rope, x, sizes: rope(x, fps=sizes[0] + 7)),
    (CogView4RotaryPosEmbed(16, 1, (8, 8)), lambda rope, x, sizes: rope(x[:, :, 0])),
    (LTXVideoRotaryPosEmbed(12), lambda rope, x, sizes: rope(x, *sizes, (0.3, 32.0, 32.0))),
    (
        QwenEmbedRope(10000, [4, 6, 6], scale_rope=True),
        lambda rope, x, sizes: rope([sizes], device=x.device, max_txt_seq_len=3),
    ),
    (
        AnyFlowRotaryPosEmbed(12, (1, 1, 1), 16),
        lambda rope, x, sizes: rope({"total_frames": sizes[0], "full_frame_shape": sizes[1:]}, x.device),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rope", "call"), VIDEO, ids=[type(rope).__name__ for rope, _ in VIDEO])
@given(sizes=st.tuples(st.integers(1, 3), st.integers(1, 8), st.integers(1, 8)))
@settings(max_examples=2, deadline=None)
def test_the_table_is_what_the_module_gives(rope: torch.nn.Module, call: Any, sizes: Sizes) -> None:
    model = Model(rope, call)
    x = torch.zeros(2, 1, *sizes)
    expected = model(x, sizes)
    compiled = tpuport.compile(tpuport.port(Model(copy.deepcopy(rope), call)))
    got = compat.as_jax(compiled(x, sizes))
    for mine, theirs in zip(_leaves(got), _leaves(expected), strict=True):
        assert torch.equal(mine, theirs.to(mine.dtype))
    assert len(next(iter(compiled._rotary_tables._needs.values()))) == 1


def _leaves(tree: Any) -> list[torch.Tensor]:
    return [x if isinstance(x, torch.Tensor) else compat.to_torch(x) for x in jax.tree.leaves(tree)]


class OwnRotary(torch.nn.Module):
    """A rotary module of a model's own, called with a grid that the model makes."""

    def forward(self, grid: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return torch.cos(grid.float()[:, None] * scale / 10000 ** torch.linspace(0, 1, 4, device=grid.device))


def _grid(rope: Any, x: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    first = rope(torch.arange(x.shape[2], device=x.device) * 2)
    return first + rope(torch.arange(x.shape[2], device=x.device) + 1)


def test_grids_that_the_model_makes_are_known() -> None:
    x = torch.zeros(1, 1, 5)
    compiled = tpuport.compile(tpuport.port(Model(OwnRotary(), _grid)))
    got = compat.to_torch(compat.as_jax(compiled(x, (0, 0, 0))))
    assert torch.equal(got, Model(OwnRotary(), _grid)(x, (0, 0, 0)))
    (needs,) = compiled._rotary_tables._needs.values()
    assert [(need.call, need.shapes_decide) for need in needs] == [(0, False), (1, False)]
    assert "cosine" not in compiled.lower(x, (0, 0, 0)).as_text()


def test_values_given_to_the_program_are_not_known(caplog: pytest.LogCaptureFixture) -> None:
    def values(rope: Any, x: torch.Tensor, sizes: Sizes) -> torch.Tensor:
        return rope(x[0, 0]) + rope(torch.arange(5, device=x.device), scale=0.5)

    x = torch.arange(5.0)[None, None]
    compiled = tpuport.compile(tpuport.port(Model(OwnRotary(), values)))
    with caplog.at_level(logging.INFO, "tpuport"):
        got = compat.to_torch(compat.as_jax(compiled(x, (0, 0, 0))))
    torch.testing.assert_close(got, Model(OwnRotary(), values)(x, (0, 0, 0)))
    assert "rope (OwnRotary) depends on values given to the program" in caplog.text
    (needs,) = compiled._rotary_tables._needs.values()
    assert [need.call for need in needs] == [1]


def test_a_model_that_is_ported_again_has_new_tables() -> None:
    rope, call = copy.deepcopy(VIDEO[0])
    model = tpuport.port(Model(rope, call))
    compiled = tpuport.compile(model)
    x = torch.zeros(1, 1, 1, 2, 2)
    compiled(x, (1, 2, 2))
    mesh = tpuport.create_mesh(dp=2, tp=4)
    rope.theta = 10.0
    tpuport.port(model, mesh=mesh, allow="blocks")
    got = compat.to_torch(compat.as_jax(compiled(x, (1, 2, 2))[0]))
    assert torch.equal(got, rope(x)[0])
    (table,) = table_store._tables[rope].values()
    assert table.arrays[0].sharding.mesh == mesh


def test_a_module_that_has_changed_has_new_tables() -> None:
    rope, call = copy.deepcopy(VIDEO[0])
    compiled = tpuport.compile(tpuport.port(Model(rope, call)))
    x = torch.zeros(1, 1, 1, 2, 2)
    for theta in (10.0, 20.0, 10.0):
        rope.theta = theta
        assert torch.equal(compat.to_torch(compat.as_jax(compiled(x, (1, 2, 2))[0])), rope(x)[0])
    assert len(table_store._tables[rope]) == 2


def test_equal_tables_of_two_batches_are_one_array() -> None:
    rope, call = copy.deepcopy(VIDEO[0])
    compiled = tpuport.compile(tpuport.port(Model(rope, call)))
    for batch in (1, 2):
        compiled(torch.zeros(batch, 1, 1, 2, 3), (1, 2, 3))
    one, two = table_store._tables[rope].values()
    assert one is not two
    assert all(a is b for a, b in zip(one.arrays, two.arrays, strict=True))


@pytest.mark.slow  # LTX's tables in test_compiled.py
def test_hunyuan_video_makes_no_table_inside_of_its_program() -> None:
    tpuport.enable()
    model = HunyuanVideo15Transformer3DModel(
        in_channels=9, out_channels=4, num_attention_heads=2, attention_head_dim=16, num_layers=1,
        num_refiner_layers=1, mlp_ratio=2.0, patch_size=1, text_embed_dim=8, text_embed_2_dim=4,
        image_embed_dim=4, rope_axes_dim=(4, 6, 6), target_size=16, task_type="t2v",
    )  # fmt: skip
    text = tpuport.compile(tpuport.port(model)).lower(
        hidden_states=torch.zeros(1, 9, 2, 4, 4),
        timestep=torch.zeros(1),
        encoder_hidden_states=torch.zeros(1, 3, 8),
        encoder_attention_mask=torch.ones(1, 3),
        encoder_hidden_states_2=torch.zeros(1, 2, 4),
        encoder_attention_mask_2=torch.ones(1, 2),
        image_embeds=None,
        return_dict=False,
    )
    tpuport.disable()
    waves = re.findall(r"stablehlo\.(?:cosine|sine|power) .*tensor<([^>]*)>", text.as_text())
    assert set(waves) == {"1x128xf32"}  # of the timestep, for the model and for its refiner of text
