"""Programs of functions of trees of arrays, and the options that they are compiled with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tpuport.compat import randomness
from tpuport.compilation.programs import program_settings
from tpuport.compilation.programs.compiled_program import Program


@pytest.fixture
def on_a_tpu(monkeypatch):
    """The CPU is taken for a TPU, and has an option of its own, which changes nothing that these programs compute."""
    options = {"xla_cpu_enable_fast_math": False}
    monkeypatch.setattr(program_settings, "generation_of_kind", lambda kind: "v6e")
    monkeypatch.setattr(program_settings, "local_generation", lambda: "v6e")
    monkeypatch.setattr(program_settings, "compiler_options", lambda generation, updates_cache: options)
    return options


@pytest.mark.parametrize("arguments", [(jnp.ones(2), 1.0), ({"weights": [jnp.ones(2)]}, 1.0), (2.0, 1.0)])
def test_a_program_is_compiled_with_the_options_of_its_device(on_a_tpu, monkeypatch, arguments):
    seen = []
    jit = jax.jit

    def record_options(function, **options):
        # The capture has none.
        if "compiler_options" in options:
            seen.append(options.pop("compiler_options"))
        return jit(function, **options)

    monkeypatch.setattr(jax, "jit", record_options)
    program = Program(lambda tree, x: jax.tree.map(lambda leaf: leaf + x, tree), "add")
    for _ in range(2):
        program(*arguments)
    assert seen == [on_a_tpu]
    assert program.compilations == 1


def test_a_program_inside_of_another_has_none(on_a_tpu):
    program = Program(lambda x: x * 2, "double")
    assert jax.jit(lambda x: program(x) + program(jnp.ones(())))(3.0) == 8
    assert jax.grad(lambda x: program(x))(3.0) == 2
    assert program(jnp.asarray(3.0)) == 6


def test_arrays_on_the_cpu_of_a_host_with_tpus_have_none(monkeypatch):
    # Options of libtpu, which the compiler of the CPU refuses.
    monkeypatch.setattr(program_settings, "local_generation", lambda: "v6e")
    program = Program(lambda x: x * 2, "double")
    assert program(jax.device_put(3.0, jax.devices("cpu")[0])) == 6
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_tpu"):
        program(3.0)


def test_a_program_that_draws_is_captured_once_and_draws_others_in_each_call():
    runs = []

    def draw(weights, shape):
        runs.append(shape)
        return jax.random.uniform(randomness.next_key()) + weights["a"]

    program = Program(draw, "draw")
    torch.manual_seed(0)
    rehearsed = program.rehearse({"a": jnp.zeros(())}, shape=1)
    first, second = (float(program({"a": jnp.zeros(())}, shape=1)) for _ in range(2))
    assert first == rehearsed, "a rehearsal moves no generator on"
    assert first != second
    torch.manual_seed(0)
    eager = [float(jax.random.uniform(randomness.next_key())) for _ in range(2)]
    assert [first, second] == eager
    assert runs == [1]
    assert program.compilations == 1


def test_programs_differ_in_structures_shapes_and_static_arguments():
    program = Program(lambda weights, x, times=1: [weights["a"].sum() + x["x"] * times], "sum")
    small, large = {"a": jnp.ones(2)}, {"a": np.ones((2, 2), np.float32)}
    number, numbers = {"x": np.float32(3)}, {"x": jnp.ones(3)}
    for _ in range(2):
        assert program(small, number) == [5]
        assert program(large, number) == [7]
        assert program(small, number, times=2) == [8]
        assert program(small, numbers)[0].tolist() == [3, 3, 3]
        assert program(small, {"x": 3}) == [5]
    assert program.compilations == 5


def test_only_the_arguments_that_are_donated_are_gone():
    program = Program(lambda weights, state, x: [state[0] + x, weights["a"] + x], "step", donated=(1,))
    weights, state, x = {"a": jnp.ones(3)}, [jnp.ones(3)], jnp.ones(3)
    lowered = program.lower(weights, state, x)
    assert lowered.compile().memory_analysis().alias_size_in_bytes == 12
    results = program(weights, state, x)
    assert [result.tolist() for result in results] == [[2, 2, 2]] * 2
    assert [array.is_deleted() for array in (weights["a"], state[0], x)] == [False, True, False]
