"""A captured function is traced once: the program that is compiled is the trace that was captured."""

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import tpuport
from tpuport import compat
from tpuport.compilation.programs.capture import capture
from tpuport.compilation.programs.traced_once import Retraced
from tpuport.internals.jax_internals import KEPT_TRACES

X = jnp.arange(3.0)
NO_KEYS = np.zeros((64, 2), np.uint32)


def draw(x: jax.Array) -> Any:
    with compat.environment():
        return compat.as_jax(torch.rand_like(compat.wrap(x))) + x


def test_what_is_jitted_with_other_options_is_the_trace_that_was_captured() -> None:
    captured = capture(lambda x, y: {"sum": x + y}, (X, X), "my sum", checks_indices=False)
    jitted = jax.jit(
        captured.function, donate_argnums=0, compiler_options={"xla_cpu_enable_fast_math": False}
    )
    traced = jitted.trace(X, X, NO_KEYS)
    assert traced.jaxpr is captured.program
    assert "module @jit_my_sum" in traced.lower().as_text()
    [total] = jitted(X + 0, X, NO_KEYS)
    np.testing.assert_array_equal(total, X + X)
    with pytest.raises(Retraced):
        jitted(X[:2], X, NO_KEYS)


def test_unused_keys_and_dead_code_are_not_compiled() -> None:
    def function(x: jax.Array, _: jax.Array) -> jax.Array:
        draw(x)
        return jnp.sin(x) * 2

    captured = capture(function, (X, X), "f", checks_indices=False)
    # The generator moves on as in torch, though the number is for nothing.
    assert captured.draws == ((None, 1),)
    assert "ui32" not in jax.jit(captured.function).lower(X, X, NO_KEYS).as_text()


def test_without_keys_from_the_start_code_has_none_unless_it_draws() -> None:
    plain, drawing = (
        capture(function, (X,), "f", checks_indices=False, has_keys=False) for function in (jnp.sin, draw)
    )
    assert (len(plain.program.in_avals), plain.draws) == (1, ())
    assert [aval.shape for aval in drawing.key_avals] == [(1, 2)]
    assert drawing.draws == ((None, 1),)


def test_operation_by_operation_the_program_is_evaluated() -> None:
    captured = capture(lambda x: x * 2, (X,), "f", checks_indices=False)
    with jax.disable_jit():
        [doubled] = jax.jit(captured.function)(X, NO_KEYS)
    np.testing.assert_array_equal(doubled, X * 2)


def test_a_changed_program_is_traced_once_too() -> None:
    captured = capture(lambda x, y: x - y, (X, X + 1), "f", checks_indices=False)
    turned = captured.reordered((1, 0))
    jitted = jax.jit(turned.function)
    for _ in range(2):
        [difference] = jitted(X + 1, X, NO_KEYS)
        np.testing.assert_array_equal(difference, -np.ones(3))
    with pytest.raises(Retraced):
        jitted(X[:2], X[:2], NO_KEYS)


class Held:
    """Anything that the code refers to."""


def test_a_program_keeps_nothing_of_its_code_alive() -> None:
    seen: list[weakref.ref] = []

    def make() -> Any:
        held = Held()
        seen.append(weakref.ref(held))

        def function(x: jax.Array) -> jax.Array:
            seen.append(weakref.ref(x))
            return x + len(repr(held)[:1])

        return function

    captured = capture(make(), (X,), "f", checks_indices=False)
    [total] = jax.jit(captured.function)(X, NO_KEYS)
    gc.collect()
    assert float(total[0]) == 1
    assert [reference() for reference in seen] == [None, None]


class Tagged:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


def test_a_compiled_function_keeps_neither_arguments_nor_models_alive() -> None:
    def call(model: torch.nn.Module, tagged: Tagged) -> torch.Tensor:
        return model(tagged.x)

    def call_anew() -> list[weakref.ref]:
        model, tagged = tpuport.port(torch.nn.Linear(3, 3)), Tagged(torch.ones(2, 3).to("jax"))
        compiled(model, tagged)
        return [weakref.ref(value) for value in (model, tagged, compat.as_jax(tagged.x))]

    compiled = tpuport.compile(call)
    references = call_anew()
    # The walk of the state knows the models of the latest call.
    call_anew()
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def test_where_jax_keeps_no_traces_the_program_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KEPT_TRACES, "reason", "jax has changed")
    runs = []

    def function(x: jax.Array) -> jax.Array:
        runs.append(x.shape)
        return x * 2

    captured = capture(function, (X,), "f", checks_indices=False)
    jax.clear_caches()
    [doubled] = jax.jit(captured.function)(X, NO_KEYS)
    np.testing.assert_array_equal(doubled, X * 2)
    assert len(runs) == 1
