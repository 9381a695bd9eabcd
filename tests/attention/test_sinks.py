"""Sinks applied afterwards against the definition, which has them in its softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuport.attention.reference import attention, attention_with_lse
from tpuport.attention.sinks import apply_sinks


def _inputs() -> tuple:
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape).astype(np.float32))  # noqa: E731
    visible = jnp.asarray(rng.random((2, 1, 5, 7)) < 0.6).at[1, :, 2].set(False)
    return draw(2, 4, 5, 8), draw(2, 2, 7, 8), draw(2, 2, 7, 6), visible, draw(4)


def _after(q, k, v, mask, sinks) -> jax.Array:
    return apply_sinks(*attention_with_lse(q, k, v, mask, scale=0.4), sinks)


def _within(q, k, v, mask, sinks) -> jax.Array:
    return attention(q, k, v, mask, scale=0.4, sinks_H=sinks)


@pytest.mark.parametrize("sink", [None, 0.0, 80.0, -80.0, -jnp.inf, jnp.inf])
def test_equals_sinks_within_the_softmax(sink: float | None) -> None:
    q, k, v, mask, sinks = _inputs()
    sinks = sinks if sink is None else sinks.at[1].set(sink)
    # A sink of inf takes everything; the definition would give inf - inf there.
    expected = _within(q, k, v, mask, jnp.where(sinks == jnp.inf, 1e30, sinks))
    np.testing.assert_allclose(_after(q, k, v, mask, sinks), expected, rtol=2e-6, atol=1e-7)


def test_gradients_equal_and_are_finite_where_no_key_is_seen() -> None:
    q, k, v, mask, sinks = _inputs()
    weight = jnp.asarray(np.random.default_rng(1).normal(size=(2, 4, 5, 6)).astype(np.float32))

    def grads(function) -> tuple:
        loss = lambda q, k, v, sinks: jnp.sum(weight * function(q, k, v, mask, sinks))  # noqa: E731
        return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(q, k, v, sinks)

    for got, expected in zip(grads(_after), grads(_within), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)


def test_gradient_of_a_row_without_keys_and_a_sink_of_minus_infinity_is_zero() -> None:
    out, lse, sinks = jnp.zeros((1, 1, 1, 2)), jnp.full((1, 1, 1), -jnp.inf), jnp.asarray([-jnp.inf])
    grads = jax.grad(lambda *args: apply_sinks(*args).sum(), argnums=(0, 1, 2))(out, lse, sinks)
    assert all(np.all(np.asarray(grad) == 0.0) for grad in grads)


def test_keeps_the_dtype() -> None:
    out = jnp.ones((1, 2, 3, 4), jnp.bfloat16)
    got = apply_sinks(out, jnp.zeros((1, 2, 3)), jnp.zeros(2, jnp.bfloat16))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(got, np.float32), 0.5)
