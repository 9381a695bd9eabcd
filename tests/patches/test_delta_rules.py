"""Linear attention in a loop over chunks, against transformers' own on the CPU, for prompts of several chunks."""

import functools
import importlib
from typing import Any

import jax
import numpy as np
import pytest
import torch

import tpuport
from tpuport import compat
from tpuport.patches import delta_rules, registry

ROWS, HEADS, WIDTH, CHUNK = 2, 2, 4, 64
RULES = [
    ("qwen3_next", "torch_chunk_gated_delta_rule", False),
    ("kimi_linear", "chunk_kimi_delta_attention", True),
]


@pytest.fixture(scope="module", autouse=True)
def patched() -> Any:
    tpuport.enable()
    yield
    tpuport.disable()


def _inputs(tokens: int, *, by_channel: bool, groups: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    heads = groups * HEADS
    decay_shape = (ROWS, tokens, heads, WIDTH) if by_channel else (ROWS, tokens, heads)
    return {
        "query": draw(ROWS, tokens, HEADS, WIDTH),
        "key": draw(ROWS, tokens, HEADS, WIDTH),
        "value": draw(ROWS, tokens, heads, WIDTH + 1),
        "g": -draw(*decay_shape).abs(),
        "beta": draw(ROWS, tokens, heads).sigmoid(),
    }


def _on_device(inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: compat.wrap(compat.to_jax(value)) if isinstance(value, torch.Tensor) else value
        for name, value in inputs.items()
    }


@pytest.mark.parametrize(("model", "name", "by_channel"), RULES)
@pytest.mark.parametrize(
    ("tokens", "with_state"), [(2 * CHUNK + 5, True), pytest.param(3, False, marks=pytest.mark.slow)]
)
def test_chunks(model: str, name: str, by_channel: bool, tokens: int, with_state: bool) -> None:
    function = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), name)
    assert ("kimi-delta-rule" if by_channel else "gated-delta-rule") in registry.applied()
    # Kimi's has as many heads of keys as of values.
    groups = 1 if by_channel else 2
    tensors = _inputs(tokens, by_channel=by_channel, groups=groups)
    if with_state:
        tensors["initial_state"] = torch.ones(ROWS, groups * HEADS, WIDTH, WIDTH + 1)
    run = functools.partial(function, output_final_state=True, use_qk_l2norm_in_kernel=True)
    expected = run(**tensors)
    # Outside of programs, as below, each operation before and after the loop is compiled by itself.
    actual = tpuport.compile(lambda tensors: run(**tensors))(tensors)
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(np.asarray(compat.as_jax(mine)), theirs.numpy(), rtol=2e-5, atol=2e-6)


def test_without_a_final_state_in_bfloat16() -> None:
    inputs = {name: value.bfloat16() for name, value in _inputs(CHUNK + 1, by_channel=False).items()}
    function = importlib.import_module(
        "transformers.models.qwen3_next.modeling_qwen3_next"
    ).torch_chunk_gated_delta_rule
    expected, _ = function(**inputs)
    with compat.environment():
        actual, state = delta_rules.chunk_delta_rule(**_on_device(inputs))
    assert state is None
    assert actual.dtype == torch.bfloat16
    np.testing.assert_allclose(
        np.asarray(compat.as_jax(actual), np.float32), expected.float().numpy(), rtol=2e-2, atol=2e-2
    )


@pytest.mark.parametrize("by_channel", [False, True])
def test_the_program_does_not_grow_with_the_prompt(by_channel: bool) -> None:
    """A chunk's body is there once, however many chunks a prompt has."""

    def equations(tokens: int) -> int:
        arrays = {
            name: compat.to_jax(value) for name, value in _inputs(tokens, by_channel=by_channel).items()
        }

        def run(arrays: Any) -> Any:
            return compat.as_jax(delta_rules.chunk_delta_rule(**compat.as_torch(arrays))[0])

        with compat.environment():
            return str(jax.make_jaxpr(run)(arrays)).count("\n")

    assert equations(8 * CHUNK) == equations(2 * CHUNK)


def test_no_program_for_simulated_devices_calls_lapack() -> None:
    """Its threads wait for one another for ever where all devices of a CPU solve batches at a time."""
    arrays = {name: compat.to_jax(value) for name, value in _inputs(CHUNK, by_channel=True).items()}

    def run(arrays: Any) -> Any:
        return compat.as_jax(delta_rules.chunk_delta_rule(**compat.as_torch(arrays))[0])

    with compat.environment():
        program = jax.jit(run).trace(arrays)
        assert "lapack" not in program.lower().as_text()
        # A TPU has no LAPACK, and solves blocks with its matrix units.
        assert "triangular_solve" in program.lower(lowering_platforms=("tpu",)).as_text()
