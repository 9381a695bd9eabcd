"""Masks whose values are known, and masks of which only the shape is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuport.attention.mask import Mask
from tpuport.attention.provenance import graph, structure_of
from tpuport.attention.provenance.structure import MASK_RECOGNITION
from tpuport.errors import PortError
from tpuport.internals import jax_internals

B, H, Q, T = 2, 3, 11, 13
LOW = np.finfo(np.float32).min
PARTS = ("left", "right", "keys_BT", "queries_BQ", "key_segments_BT", "bias_BT", "dense")
KEYS = np.random.RandomState(0).rand(B, T) < 0.6
ROWS = np.random.RandomState(1).rand(B, Q) < 0.6
TRI = np.tri(Q, T, dtype=bool)


def structure(array, sizes=(B, H, Q, T)) -> tuple[Mask, set[str]]:
    batch, heads, queries, keys = sizes
    mask = structure_of(array, batch=batch, heads=heads, queries=queries, keys=keys)
    return mask, {part for part in PARTS if getattr(mask, part) is not None}


def assert_same(array, mask, sizes=(B, H, Q, T)):
    dense = mask.to_dense(*sizes[2:])
    expected = np.broadcast_to(np.asarray(array), sizes)
    visible = expected if expected.dtype == bool else expected > LOW
    added = np.where(visible, 0 if expected.dtype == bool else expected, LOW)
    if dense is None:
        dense = np.ones(sizes, bool)
    got = np.broadcast_to(np.asarray(dense), sizes)
    np.testing.assert_array_equal(np.where(got, 0, LOW) if got.dtype == bool else np.maximum(got, LOW), added)


CASES = {
    "all": (np.ones((B, 1, Q, T), bool), set()),
    "all added 0": (np.zeros((Q, T), np.float32), set()),
    "none": (np.zeros((1, 1, Q, T), bool), {"keys_BT"}),
    "keys": (np.broadcast_to(KEYS[:, None, None], (B, H, Q, T)), {"keys_BT"}),
    "the same keys": (np.broadcast_to(KEYS[:1, None, None], (B, 1, Q, T)), {"keys_BT"}),
    "queries": (np.broadcast_to(ROWS[:, None, :, None], (B, H, Q, T)), {"queries_BQ"}),
    "keys and queries": (KEYS[:, None, None] & ROWS[:, None, :, None], {"keys_BT", "queries_BQ"}),
    "causal": (TRI, {"right"}),
    "causal added": (np.where(TRI, 0, -np.inf).astype(np.float32)[None, None], {"right"}),
    "causal to the end": (np.tri(Q, T, T - Q, dtype=bool), {"right"}),
    "causal and keys": (TRI & KEYS[:, None, None], {"right", "keys_BT"}),
    "causal and keys added": (np.where(TRI & KEYS[:, None, None], 0, LOW).astype(np.float32), {"right", "keys_BT"}),
    "window": (np.tri(Q, T, 2, dtype=bool) & ~np.tri(Q, T, -3, dtype=bool), {"left", "right"}),
    "bias": (np.random.RandomState(2).randn(B, 1, 1, T).astype(np.float32), {"bias_BT", "keys_BT"}),
    "bias for each query": (np.broadcast_to(np.float32([[[-2.0] * T]]), (1, 1, Q, T)), {"bias_BT"}),
    "bias and causal": (np.where(TRI, np.arange(T), -np.inf).astype(np.float32), {"dense"}),
    "of each head": (np.random.RandomState(3).rand(1, H, Q, T) < 0.5, {"dense"}),
    "anything": (np.random.RandomState(4).rand(B, 1, Q, T) < 0.5, {"dense"}),
    "anything added": (np.random.RandomState(5).randn(Q, T).astype(np.float32), {"dense"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_known_values(name):
    array, expected = CASES[name]
    mask, names = structure(jnp.asarray(array))
    assert names == expected
    assert_same(array, mask)


@pytest.mark.parametrize("name", CASES)
def test_known_values_in_a_trace(name):
    array, expected = CASES[name]
    constant = jnp.asarray(array)

    @jax.jit
    def run(keys):
        both = constant & keys if constant.dtype == jnp.bool_ else jnp.where(keys, constant, -jnp.inf)
        mask, names = structure(both)
        assert names == {"dense"} or expected != {"dense"}
        return mask.to_dense(Q, T)

    hidden = False if array.dtype == bool else -np.inf
    assert_same(
        np.where(KEYS[:, None, None], array, hidden).astype(array.dtype), Given(run(KEYS[:, None, None]))
    )


@pytest.mark.parametrize("name", CASES)
def test_the_shape_alone_decides_where_jax_tells_nothing(name, monkeypatch):
    assert MASK_RECOGNITION.works()  # before jax seems to have changed
    monkeypatch.setattr(jax_internals, "find_equation", lambda tracer: None)
    monkeypatch.setattr(jax_internals, "find_constant", lambda value: None)
    array, _ = CASES[name]

    @jax.jit
    def run(x):
        mask, names = structure(jnp.logical_and(x, True) if x.dtype == jnp.bool_ else x + 0)
        shape = (1,) * (4 - x.ndim) + x.shape
        if shape[1] > 1 or shape[2] > 1 < shape[3]:
            assert names == {"dense"}
        elif shape[2] == 1:
            assert names <= {"keys_BT", "bias_BT"}
        return mask.to_dense(Q, T)

    assert_same(array, Given(run(array)))


class Given:
    def __init__(self, dense):
        self.dense = dense

    def to_dense(self, queries, keys):
        return self.dense


def test_history_of_other_things_is_unknown():
    assert graph.producing_equation(jnp.ones(3)) is None
    assert graph.producing_equation(object()) is None
    seen = []
    jax.make_jaxpr(lambda x: seen.append(graph.producing_equation(x)) or x)(1.0)
    jax.vmap(lambda x: seen.append(graph.producing_equation(x + 1)) or x)(jnp.ones(2))
    assert seen == [None, None]


def test_arguments_of_loops_are_known_by_their_shapes():
    def body(carry, x):
        mask, names = structure(x, (B, H, Q, T))
        assert names == {"keys_BT"}
        _, square = structure(jnp.broadcast_to(carry[:, None], (B, 1, Q, T)), (B, H, Q, T))
        assert square == {"dense"}
        return carry, mask.to_dense(Q, T)

    pairs = jnp.asarray(np.random.RandomState(0).rand(B, Q, T) < 0.5)
    _, dense = jax.lax.scan(body, pairs, jnp.asarray(KEYS[None, :, None, None]))
    assert_same(KEYS[:, None, None], Given(dense[0]))


def test_masks_of_outside_are_known_inside_of_a_loop():
    @jax.jit
    def run(keys):
        array = jnp.broadcast_to(keys[:, None, None], (B, 1, Q, T))

        def body(carry, _):
            mask, names = structure(array)
            assert names == {"keys_BT"}
            return carry, mask.to_dense(Q, T)

        return jax.lax.scan(body, 0, None, length=2)[1]

    assert_same(KEYS[:, None, None], Given(run(KEYS)[0]))


def test_under_a_gradient():
    def loss(x, keys):
        mask, names = structure(jnp.broadcast_to(keys[:, None, None], (B, 1, Q, T)))
        assert names == {"keys_BT"}
        return (jnp.where(mask.to_dense(Q, T), x, 0) ** 2).sum()

    found = jax.jit(jax.grad(loss))(jnp.ones((B, 1, Q, T)), jnp.asarray(KEYS))
    np.testing.assert_array_equal(found, 2.0 * np.broadcast_to(KEYS[:, None, None], (B, 1, Q, T)))


def test_the_gradient_of_a_bias_reaches_what_it_was_made_of():
    def loss(x):
        mask, names = structure(2 * x[:, None, None])
        assert "bias_BT" in names
        return mask.to_dense(Q, T).sum()

    found = jax.jit(jax.grad(loss))(jnp.ones((B, T)))
    np.testing.assert_array_equal(found, np.full((B, T), 2.0 * Q))


def test_nothing_as_large_as_the_pairs_is_computed():
    def run(keys):
        first = jnp.tile(keys[:, None, None, :], (1, 1, 1_000, 1))[..., :1_000]
        array = (first & first.swapaxes(2, 3) & jnp.tril(jnp.ones((1_000, 1_000), jnp.bool_))).astype(
            jnp.bool_
        )
        mask, names = structure(array, (2, 2, 1_000, 1_000))
        assert names == {"keys_BT", "queries_BQ", "right"}
        return mask.keys_BT, mask.queries_BQ

    text = jax.jit(run).lower(jnp.ones((2, 1_000), jnp.bool_)).compile().as_text()
    assert "1000]" in text
    assert "1000,1000" not in text


@pytest.mark.parametrize("known", [True, False])
def test_random_masks(known):
    def run(key):
        key = jax.random.key(0) if known else jax.random.wrap_key_data(key)
        pairs = jax.random.bernoulli(key, 0.5, (Q, T))
        keys = jnp.broadcast_to(jax.random.bernoulli(key, 0.5, (B, 1, 1, T)), (B, 1, Q, T))
        assert structure(pairs)[1] == {"dense"}
        mask, names = structure(keys)
        assert names == {"keys_BT"}
        return keys, mask.to_dense(Q, T)

    keys, dense = jax.jit(run)(jax.random.key_data(jax.random.key(1)))
    assert_same(keys, Given(dense))


def test_a_long_history_of_constants_is_given_up():
    @jax.jit
    def run(x):
        places = jnp.zeros((1, T), jnp.int32)
        for _ in range(1_000):
            places = places + 1
        assert structure((places > jnp.arange(Q)[:, None]) ^ jnp.tri(Q, T, dtype=jnp.bool_))[1] == {"dense"}
        return x

    run(1.0)


def test_a_long_history_is_given_up():
    @jax.jit
    def run(keys):
        array = jnp.broadcast_to(keys[:, None, None], (B, 1, Q, T))
        for _ in range(3_000):
            array = ~array
        mask, names = structure(array)
        assert names == {"dense"}
        return mask.to_dense(Q, T)

    jax.make_jaxpr(run)(KEYS)


@pytest.mark.parametrize("shape", [(B, Q, T), (B + 1, 1, Q, T), (1, 1, 1, Q, T), (Q, T + 1)])
def test_refuses_what_does_not_broadcast(shape):
    with pytest.raises(PortError, match="broadcast"):
        structure(jnp.ones(shape, bool))


def test_refuses_whole_numbers():
    with pytest.raises(PortError, match=r"neither boolean nor float"):
        structure(jnp.ones((Q, T), jnp.int32))


def test_without_any_element():
    assert structure(jnp.ones((B, 1, 1, 0), bool), (B, H, Q, 0))[1] == {"dense"}
    assert structure(jnp.ones((B, 1, 0, T), bool), (B, H, 0, T))[1] == {"dense"}
