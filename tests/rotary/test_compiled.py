"""Compiled models with rotary tables beside their weights, against torch; and the text of their programs."""

import re
from typing import Any

import jax
import pytest
import torch

import tpuport
from tpuport import compat, rotary
from tpuport.compilation import Program

# Of models that ask for int64.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype")


@pytest.fixture(scope="module", params=["wan", "ltx", "qwen"])
def trio(request: pytest.FixtureRequest) -> Any:
    model, ported, inputs = request.getfixturevalue(request.param)
    return model, tpuport.compile(ported), inputs


def _agree(model: torch.nn.Module, compiled: Any, inputs: dict[str, Any]) -> None:
    with torch.no_grad():
        expected = model(**inputs)[0]
    got = compat.to_torch(compat.as_jax(compiled(**inputs)[0]))
    assert (got - expected).norm() < 1e-5 * expected.norm()


def test_each_new_shape_is_one_program_and_leaves_the_others(
    trio: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, compiled, inputs = trio
    for height, expected in ((8, 1), (6, 2), (8, 2), (6, 2)):
        _agree(model, compiled, inputs(height=height))
        assert compiled.program.compilations == expected
    monkeypatch.setattr(rotary.store, "_MOST", 1)
    for height in (
        8,
        6,
        8,
    ):  # each evicts the other's table, which is made again for the program that there is
        _agree(model, compiled, inputs(height=height))
        (module,) = rotary.finding.by_shape(compiled._modules()[0]).values()
        assert len(rotary.store._kept[module]) == 1
    assert compiled.program.compilations == 2


def _waves(text: str) -> set[str]:
    """Shapes of the sines, cosines and powers in a program's text."""
    return set(re.findall(r"stablehlo\.(?:cosine|sine|power) .*tensor<([^>]*)>", text))


def test_no_table_is_made_inside_of_the_program(trio: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, compiled, inputs = trio
    given = inputs()
    (found,) = _waves(compiled.lower(**given).as_text())
    # The embedding of the timestep: a row for each sample, half of its width columns.
    assert re.fullmatch(rf"{given['hidden_states'].shape[0]}x(8|128)xf32", found)
    if type(model).__name__.startswith(
        "LTX"
    ):  # the others take rows of buffers; this one's tables are all waves
        monkeypatch.setattr(rotary.store, "needs", lambda *_: [])
        without = tpuport.compile(compiled._modules()[0]).lower(**given).as_text()
        assert len(_waves(without)) > 1


def test_replicated_on_a_mesh(ltx: Any) -> None:
    model, _, inputs = ltx
    ported = tpuport.port(type(model).from_config(model.config), mesh=tpuport.create_mesh(dp=4, tp=2))
    table = rotary.precompute_rotary(ported, **inputs())
    assert [(entry.name, entry.kind) for entry in table] == [("rope", "table")]
    cos, sin = table[0].shapes
    assert cos == sin == (2, 24, 24)
    assert table[0].nbytes == 2 * 4 * 2 * 24 * 24
    held = rotary.store._kept[ported.rope].popitem()[1].arrays[0]
    assert held.sharding.is_fully_replicated
    assert len(held.sharding.device_set) == 8


def test_tables_beside_the_weights_of_a_program_of_ones_own(wan: Any) -> None:
    """What a loop as one program does: the function that it traces calls the model."""
    from tpuport.compilation import arrays_of, in_place

    model, ported, inputs = wan
    given = inputs()

    def traced(weights: list, latents: jax.Array) -> jax.Array:
        with in_place([ported], weights):
            call = {**given, "hidden_states": compat.wrap(latents)}
            for name in ("timestep", "encoder_hidden_states"):
                call[name] = compat.wrap(compat.to_jax(given[name]))
            return compat.as_jax(ported(**call)[0])

    latents = compat.to_jax(given["hidden_states"])
    weights = rotary.Tables().beside([arrays_of(ported)], "key", [ported], traced, latents)
    got = Program(traced, "loop")(weights, latents)
    with torch.no_grad():
        torch.testing.assert_close(compat.to_torch(got), model(**given)[0], atol=1e-5, rtol=1e-5)
    assert any(name.startswith("rotary table:rope") for name in weights[0])
