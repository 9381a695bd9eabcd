"""Tables over positions: rows for the positions of a call, bit for bit what the module gives."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport import PortError, compat
from tpuport.rotary import store

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype")


@pytest.mark.slow
def test_flux_takes_rows_by_ids(flux: Any) -> None:
    model, ported, inputs = flux
    compiled = tpuport.compile(ported)
    found = tpuport.precompute_rotary(ported, **inputs(), max_length=9)
    assert [(x.name, x.kind, x.shapes, x.nbytes) for x in found] == [
        ("pos_embed", "positions", ((9, 16), (9, 16)), 2 * 4 * 9 * 16)
    ]
    with torch.no_grad():
        expected = model(**inputs())[0]
    got = compat.to_torch(compat.as_jax(compiled(**inputs())[0]))
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)
    assert compiled.program.compilations == 1
    assert compiled.lower(**inputs()).as_text().count("stablehlo.cosine") == 1  # the timestep's


def test_flux_bit_for_bit_and_nan_outside(flux: Any) -> None:
    model, ported, inputs = flux
    tpuport.precompute_rotary(ported, **inputs(), max_length=9)
    (found,) = store._positions[ported.pos_embed].values()
    ids = torch.randint(0, 9, (17, 3), generator=torch.Generator().manual_seed(1)).float()
    for got, expected in zip(_looked_up(ported, found, ids), model.pos_embed(ids), strict=True):
        assert torch.equal(got, expected)
    ids[3, 1], ids[4, 2] = 9, -1
    cos, _ = _looked_up(ported, found, ids)
    assert cos.isnan().any(dim=1).tolist() == [row in (3, 4) for row in range(17)]


def _looked_up(model: torch.nn.Module, found: Any, *args: torch.Tensor) -> list[torch.Tensor]:
    def traced(table: Any, arrays: list[jax.Array]) -> Any:
        with compat.environment(), store.use_tables(model, {"pos_embed": {"positions 0": table}}):
            return compat.as_jax(model.get_submodule("pos_embed")(*compat.as_torch(arrays)))

    out = jax.jit(traced)(found, [compat.to_jax(x) for x in args])
    return [compat.to_torch(x) for x in jax.tree.leaves(out)]


DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(("rope", "dtype"), [(DEFAULT, torch.bfloat16), (YARN, torch.float32)])
def test_llama_positions_are_the_modules_own(rope: dict[str, Any], dtype: torch.dtype) -> None:
    config = LlamaConfig(
        vocab_size=16, hidden_size=32, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, rope_parameters=rope,
    )  # fmt: skip
    own = LlamaForCausalLM(config).model.rotary_emb
    ported = tpuport.port(LlamaForCausalLM(config))
    (entry,) = tpuport.precompute_rotary(ported, input_ids=torch.zeros(1, 3, dtype=torch.long))
    assert (entry.kind, entry.shapes) == ("positions", ((64, 16), (64, 16)))
    (found,) = store._positions[ported.model.rotary_emb].values()
    ids = torch.randint(0, 64, (2, 11), generator=torch.Generator().manual_seed(2))
    x = torch.zeros(2, 11, 32, dtype=dtype)

    def traced(table: Any, x: jax.Array, ids: jax.Array) -> Any:
        with compat.environment(), store.use_tables(ported, {"model.rotary_emb": {"positions 0": table}}):
            tensor, positions = compat.as_torch((x, ids))
            return compat.as_jax(ported.model.rotary_emb(tensor, position_ids=positions))

    got = jax.jit(traced)(found, compat.to_jax(x), compat.to_jax(ids))
    for mine, expected in zip(got, own(x, ids), strict=True):
        assert mine.dtype == jnp.dtype(str(dtype).removeprefix("torch."))
        assert torch.equal(compat.to_torch(mine), expected)


def test_llama_end_to_end(llama: Any) -> None:
    model, ported, inputs = llama
    compiled = tpuport.compile(ported)
    tpuport.precompute_rotary(ported, **inputs())
    got = compat.to_torch(compat.as_jax(compiled(**inputs()).logits))
    with torch.no_grad():
        torch.testing.assert_close(got, model(**inputs()).logits, atol=1e-5, rtol=1e-5)
    assert "cosine" not in compiled.lower(**inputs()).as_text()


@pytest.mark.slow
def test_llama_generates_with_its_table(llama: Any) -> None:
    model, ported, inputs = llama
    tpuport.precompute_rotary(ported, **inputs())
    prompt = inputs()["input_ids"]
    expected = model.generate(prompt, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert torch.equal(tpuport.generate(ported, prompt, max_new_tokens=3, pad_token_id=0), expected)


def test_what_is_not_served_is_said() -> None:
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    )  # fmt: skip
    ported = tpuport.port(LlamaForCausalLM(config))
    (entry,) = tpuport.precompute_rotary(ported, input_ids=torch.zeros(1, 3, dtype=torch.long))
    assert (entry.kind, entry.why) == ("program", "its frequencies depend on the length of each call")


def test_shapes_alone_do_not_say_how_many_ids_there_are(flux: Any) -> None:
    _, ported, inputs = flux
    shapes = {
        name: jax.ShapeDtypeStruct(x.shape, jnp.float32) if isinstance(x, torch.Tensor) else x
        for name, x in inputs().items()
    }
    (entry,) = tpuport.precompute_rotary(ported, **shapes)
    assert entry.kind == "program"
    assert "give max_length" in entry.why


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({}, "no example inputs"), ({"input_ids": torch.zeros(1, 1), "max_length": 0}, "max_length is 0")],
)
def test_bad_input(llama: Any, arguments: dict[str, Any], message: str) -> None:
    model, ported, _ = llama
    with pytest.raises(PortError, match=message):
        tpuport.precompute_rotary(ported, **arguments)
    with pytest.raises(PortError, match="not a ported model"):
        tpuport.precompute_rotary(model, torch.zeros(1, 1))
