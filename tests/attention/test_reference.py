"""The definition against torch's SDPA and against float64 formulas."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tpuport.attention import reference
from tpuport.attention.reference import apply_sinks

# Compiled as a whole: compiling each of their operations takes five times as long.
attention = jax.jit(reference.attention, static_argnames=("scale", "softcap"))
attention_with_lse = jax.jit(reference.attention_with_lse, static_argnames=("scale", "softcap", "dropout_p"))


def _inputs(seed: int, batch: int, heads: int, kv_heads: int, queries: int, keys: int, dim: int) -> tuple:
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return (
        draw(batch, heads, queries, dim),
        draw(batch, kv_heads, keys, dim),
        draw(batch, kv_heads, keys, dim),
    )


def _formula(q, k, v, mask, scale, softcap=None, sinks=None) -> np.ndarray:
    """Float64, heads repeated, term by term."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = q.astype(np.float64), *(np.repeat(x.astype(np.float64), groups, axis=1) for x in (k, v))
    scores = scale * np.einsum("bhqd,bhtd->bhqt", q, k)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    weights = np.exp(scores - scores.max()) * (1.0 if mask is None else np.broadcast_to(mask, scores.shape))
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.astype(np.float64)[None, :, None, None] - scores.max())
    return np.einsum("bhqt,bhtd->bhqd", weights / np.where(total == 0, 1, total), v)


@settings(settings.get_profile("few"), deadline=None)
@given(
    seed=st.integers(0, 999), batch=st.integers(1, 3), kv_heads=st.sampled_from([1, 2]), groups=st.sampled_from([1, 3]),
    queries=st.sampled_from([1, 4]), keys=st.sampled_from([1, 7]),
    mask_shape=st.sampled_from(["none", "full", "keys", "heads"]),
    softcap=st.sampled_from([None, 3.0]), with_sinks=st.booleans(),
)  # fmt: skip
def test_equals_the_formula(
    seed: int, batch: int, kv_heads: int, groups: int, queries: int, keys: int, mask_shape: str,
    softcap: float | None, with_sinks: bool,
) -> None:  # fmt: skip
    heads = kv_heads * groups
    q, k, v = _inputs(seed, batch, heads, kv_heads, queries, keys, 8)
    rng = np.random.default_rng(seed)
    shape = {
        "full": (batch, 1, queries, keys),
        "keys": (batch, 1, 1, keys),
        "heads": (1, heads, queries, keys),
    }
    mask = None if mask_shape == "none" else rng.random(shape[mask_shape]) < 0.6
    sinks = rng.normal(size=heads).astype(np.float32) if with_sinks else None
    got = attention(q, k, v, mask, scale=0.3, softcap=softcap, sinks_H=sinks)
    np.testing.assert_allclose(got, _formula(q, k, v, mask, 0.3, softcap, sinks), atol=2e-5)


@pytest.mark.parametrize("additive", [False, True])
def test_equals_torch(additive: bool) -> None:
    q, k, v = _inputs(0, 2, 4, 2, 5, 9, 16)
    visible = np.random.default_rng(1).random((2, 1, 5, 9)) < 0.7
    visible[..., 0] = True
    mask = (
        np.where(visible, np.random.default_rng(2).normal(size=visible.shape), -np.inf)
        if additive
        else visible
    )
    mask = mask.astype(np.float32) if additive else mask
    expected = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, (q, k, v)), attn_mask=torch.from_numpy(mask), enable_gqa=True
    )
    got = attention(jnp.asarray(q), jnp.asarray(k), jnp.asarray(v), jnp.asarray(mask), scale=16**-0.5)
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("with_sinks", [False, True])
def test_a_query_that_sees_nothing_gets_zeros(with_sinks: bool) -> None:
    q, k, v = map(jnp.asarray, _inputs(0, 1, 2, 1, 3, 4, 8))
    mask = jnp.ones((1, 1, 3, 4), bool).at[0, 0, 1].set(False)
    sinks = jnp.zeros(2) if with_sinks else None
    out = np.asarray(attention(q, k, v, mask, scale=1.0, sinks_H=sinks))
    assert (out[:, :, 1] == 0).all()
    assert np.isfinite(out).all()
    assert (out[:, :, 0] != 0).any()


@pytest.mark.parametrize("with_sinks", [False, True])
def test_gradients_of_a_query_that_sees_nothing_are_zero(with_sinks: bool) -> None:
    q, k, v = map(jnp.asarray, _inputs(0, 1, 2, 1, 3, 4, 8))
    mask = jnp.ones((1, 1, 3, 4), bool).at[0, 0, 1].set(False)
    sinks = jnp.zeros(2) if with_sinks else None

    def loss(mask: jax.Array, *args: jax.Array) -> jax.Array:
        out, lse = attention_with_lse(*args, mask, scale=1.0, sinks_H=sinks)
        return out.sum() + jnp.where(jnp.isfinite(lse), lse, 0.0).sum()

    gradients = jax.jit(jax.grad(loss, argnums=(1, 2, 3)))
    got = gradients(mask, q, k, v)
    assert (np.asarray(got[0])[:, :, 1] == 0).all()
    # The row gives nothing to keys and values either: the gradients are those of the other rows alone.
    others = gradients(jnp.ones((1, 1, 2, 4), bool), q[:, :, ::2], k, v)
    np.testing.assert_allclose(got[0][:, :, ::2], others[0], atol=1e-6)
    for all_rows, some in zip(got[1:], others[1:], strict=True):
        np.testing.assert_allclose(all_rows, some, atol=1e-6)


def test_no_keys_give_zeros_and_no_queries_nothing() -> None:
    q, k, v = map(jnp.asarray, _inputs(0, 1, 2, 1, 3, 4, 8))
    out, lse = attention_with_lse(q, k[:, :, :0], v[:, :, :0], scale=1.0)
    assert (out == 0).all()
    assert (lse == -jnp.inf).all()
    assert attention(q[:, :, :0], k, v, scale=1.0).shape == (1, 2, 0, 8)


def test_scores_and_softmax_are_float32_for_bfloat16_inputs() -> None:
    q, k, v = _inputs(3, 1, 2, 2, 4, 64, 32)
    half = [jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)]
    rounded = [np.asarray(x, np.float32) for x in half]
    out = attention(*half, scale=32**-0.5)
    assert out.dtype == jnp.bfloat16
    # One rounding of the weights and one of the result, 2 ** -9 each.
    np.testing.assert_allclose(np.asarray(out, np.float32), _formula(*rounded, None, 32**-0.5), atol=2**-7)


def test_heads_are_not_repeated_in_memory() -> None:
    q, k, v = (jnp.zeros(s, jnp.float32) for s in ((1, 8, 1, 16), (1, 2, 512, 16), (1, 2, 512, 16)))
    text = jax.jit(lambda *a: attention(*a, scale=1.0)).lower(q, k, v).as_text()
    assert "8x512x16" not in text.replace("tensor<1x", "")


def _sink_inputs() -> tuple:
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape).astype(np.float32))  # noqa: E731
    visible = jnp.asarray(rng.random((2, 1, 5, 7)) < 0.6).at[1, :, 2].set(False)
    return draw(2, 4, 5, 8), draw(2, 2, 7, 8), draw(2, 2, 7, 6), visible, draw(4)


def _after(q, k, v, mask, sinks) -> jax.Array:
    return apply_sinks(*attention_with_lse(q, k, v, mask, scale=0.4), sinks)


def _within(q, k, v, mask, sinks) -> jax.Array:
    return attention(q, k, v, mask, scale=0.4, sinks_H=sinks)


@pytest.mark.parametrize("sink", [None, 0.0, 80.0, -80.0, -jnp.inf, jnp.inf])
def test_sinks_applied_afterwards_equal_sinks_within_the_softmax(sink: float | None) -> None:
    q, k, v, mask, sinks = _sink_inputs()
    sinks = sinks if sink is None else sinks.at[1].set(sink)
    # A sink of inf takes everything; the definition would give inf - inf there.
    expected = _within(q, k, v, mask, jnp.where(sinks == jnp.inf, 1e30, sinks))
    np.testing.assert_allclose(_after(q, k, v, mask, sinks), expected, rtol=2e-6, atol=1e-7)


def test_gradients_of_sinks_are_finite_where_no_key_is_seen() -> None:
    q, k, v, mask, sinks = _sink_inputs()
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


def test_sinks_keep_the_dtype() -> None:
    out = jnp.ones((1, 2, 3, 4), jnp.bfloat16)
    got = apply_sinks(out, jnp.zeros((1, 2, 3)), jnp.zeros(2, jnp.bfloat16))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(got, np.float32), 0.5)
