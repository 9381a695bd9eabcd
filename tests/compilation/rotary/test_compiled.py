"""Compiled models with rotary tables beside their weights, against torch; and the text of their programs."""

import re
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import tpuport
from tpuport import compat
from tpuport.compilation import Program
from tpuport.compilation.rotary import table_store
from tpuport.compilation.rotary.rotary_modules import find_table_modules
from tpuport.diffusion.denoising import denoise

# Of models that ask for int64.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype", "ignore:float64 becomes float32")


# tests/compilation/rotary/test_modules.py has the tables of each.
SLOW_MODELS = [pytest.param(name, marks=pytest.mark.slow) for name in ("wan", "qwen")]


@pytest.fixture(scope="module", params=[*SLOW_MODELS, "ltx"])
def trio(request: pytest.FixtureRequest) -> Any:
    model, ported, inputs = request.getfixturevalue(request.param)
    tpuport.enable()
    yield model, tpuport.compile(ported), inputs
    tpuport.disable()


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
    monkeypatch.setattr(table_store, "_MAX_TABLES", 1)
    for height in (
        8,
        6,
        8,
    ):  # each evicts the other's table, which is made again for the program that there is
        _agree(model, compiled, inputs(height=height))
        (module,) = find_table_modules(compiled.modules[0]).values()
        assert len(table_store._tables[module]) == 1
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
        monkeypatch.setattr(table_store, "find_table_needs", lambda *_: [])
        without = tpuport.compile(compiled.modules[0]).lower(**given).as_text()
        assert len(_waves(without)) > 1


@pytest.mark.slow  # no table is made inside of the program, above
def test_no_complex_number_is_multiplied(qwen: Any) -> None:
    _, ported, inputs = qwen
    tpuport.enable()
    text = tpuport.compile(ported).lower(**inputs()).as_text()
    tpuport.disable()
    operations = set(re.findall(r"stablehlo\.(\w+).*complex<", text))
    assert operations <= {"complex"}  # which the compiler drops: nothing takes it


@pytest.mark.slow  # the denoising loop below
def test_replicated_on_a_mesh(ltx: Any) -> None:
    model, _, inputs = ltx
    ported = tpuport.port(type(model).from_config(model.config), mesh=tpuport.create_mesh(dp=4, tp=2))
    table = tpuport.precompute_rotary(ported, **inputs())
    assert [(entry.name, entry.kind) for entry in table] == [("rope", "table")]
    cos, sin = table[0].shapes
    assert cos == sin == (2, 24, 24)
    assert table[0].nbytes == 2 * 4 * 2 * 24 * 24
    held = table_store._tables[ported.rope].popitem()[1].arrays[0]
    assert held.sharding.is_fully_replicated
    assert len(held.sharding.device_set) == 8


def test_the_denoising_loop_makes_no_table_in_its_steps(ltx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ported, inputs = ltx
    given = inputs()
    latents = given.pop("hidden_states")
    conditions = {name: given[name] for name in given.keys() - {"timestep", "return_dict"}}
    scheduler = FlowMatchEulerDiscreteScheduler()
    calls: list[tuple] = []
    run = Program.__call__

    def watched(self: Program, *args: Any, **static: Any) -> Any:
        calls.append((self, args, static))
        return run(self, *args, **static)

    monkeypatch.setattr(Program, "__call__", watched)
    got = denoise(ported, scheduler, latents, num_inference_steps=2, conditions=conditions, progress=False)
    scheduler.set_timesteps(2)
    for timestep in scheduler.timesteps:
        with torch.no_grad():
            noise = model(latents, timestep=timestep.expand(2), return_dict=False, **conditions)[0]
        latents = scheduler.step(noise, timestep, latents, return_dict=False)[0]
    torch.testing.assert_close(tpuport.to_cpu(got), latents, atol=1e-5, rtol=1e-5)
    [(program, args, static)] = [call for call in calls if "denoising" in call[0].name]
    assert _waves(program.lower(*args, **static).as_text()) == {"2x128xf32"}
