"""`precompute_rotary`: which tables it makes, and why others are computed inside of the program."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from diffusers.models.transformers.transformer_flux import FluxPosEmbed
from diffusers.models.transformers.transformer_hunyuan_video15 import HunyuanVideo15RotaryPosEmbed
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport import PortError

# FluxPosEmbed asks for float64.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype", "ignore:float64 becomes float32")


class Model(torch.nn.Module):
    """A model with a rotary module whose output depends on shapes, and one whose output depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = HunyuanVideo15RotaryPosEmbed(1, 1, [4, 6, 6])
        self.ids = FluxPosEmbed(10000, [4, 6, 6])
        self.unused = FluxPosEmbed(10000, [4, 6, 6])

    def forward(self, latents: torch.Tensor, ids: torch.Tensor) -> Any:
        return self.grid(latents), self.ids(ids)


@pytest.mark.parametrize("make_input", [torch.zeros, lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)])
def test_tables_are_made_for_modules_that_shapes_decide(make_input: Any) -> None:
    model = tpuport.port(Model())
    entries = tpuport.precompute_rotary(model, latents=make_input(1, 1, 2, 4, 3), ids=make_input(5, 3))
    table, *others = entries
    assert (table.name, table.module, table.kind) == ("grid", "HunyuanVideo15RotaryPosEmbed", "table")
    assert table.shapes == ((24, 16), (24, 16))
    assert table.nbytes == 2 * 4 * 24 * 16
    assert [(entry.name, entry.kind) for entry in others] == [("ids", "program"), ("unused", "program")]
    assert all("only the program knows" in entry.why for entry in others)


@pytest.fixture(scope="module")
def llama() -> Any:
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    return tpuport.port(LlamaForCausalLM(config))


def test_positions_are_values(llama: Any) -> None:
    (entry,) = tpuport.precompute_rotary(llama, input_ids=torch.zeros(1, 3, dtype=torch.long))
    assert (entry.name, entry.kind) == ("model.rotary_emb", "program")
    assert entry.why == "it is given positions as values"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({}, "no example inputs"), ({"input_ids": torch.zeros(1, 1), "max_length": 8}, "leave max_length out")],
)
def test_wrong_arguments(llama: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PortError, match=message):
        tpuport.precompute_rotary(llama, **arguments)


def test_a_model_on_the_host_has_no_devices_for_tables() -> None:
    with pytest.raises(PortError, match="not a ported model"):
        tpuport.precompute_rotary(Model(), torch.zeros(1, 1))
