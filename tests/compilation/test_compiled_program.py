"""Options of the compiler: for arrays on a TPU, and only where jax takes them."""

import jax
import jax.numpy as jnp
import pytest

from tpuport.compilation.programs import compiled_program
from tpuport.compilation.programs.compiled_program import Program


@pytest.fixture
def on_a_tpu(monkeypatch):
    """The CPU is taken for a TPU, and has an option of its own, which changes nothing that these programs compute."""
    options = {"xla_cpu_enable_fast_math": False}
    monkeypatch.setattr(compiled_program, "generation_of_kind", lambda kind: "v6e")
    monkeypatch.setattr(compiled_program, "local_generation", lambda: "v6e")
    monkeypatch.setattr(compiled_program, "compiler_options", lambda generation, updates_cache: options)
    return options


@pytest.mark.parametrize("arguments", [(jnp.ones(2), 1.0), ({"weights": [jnp.ones(2)]}, 1.0), (2.0, 1.0)])
def test_a_program_is_compiled_with_the_options_of_its_device(on_a_tpu, monkeypatch, arguments):
    seen = []
    jit = jax.jit

    def record_options(function, **options):
        seen.append(options.pop("compiler_options"))
        return jit(function, compiler_options=seen[-1], **options)

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
    monkeypatch.setattr(compiled_program, "local_generation", lambda: "v6e")
    program = Program(lambda x: x * 2, "double")
    assert program(jax.device_put(3.0, jax.devices("cpu")[0])) == 6
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_tpu"):
        program(3.0)
