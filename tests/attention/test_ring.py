"""Ring attention: the merge, the steps that a band needs, gradients, and what compiled programs send and hold."""

import collections
import functools
import re
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import NamedSharding, PartitionSpec

from tpuport.attention.attention_settings import Settings
from tpuport.attention.mask import Mask
from tpuport.attention.mesh_attention import attention_on_mesh
from tpuport.attention.reference import attention, attention_with_lse
from tpuport.attention.ring import merge, needed_shifts
from tpuport.hardware.mesh import create_mesh

SCALE = 0.3


def sharded(
    *arrays_and_mask: Any, scale: float = SCALE, softcap=None, sinks_H=None, **options: Any
) -> jax.Array:
    """`attention_on_mesh` with settings by name."""
    return attention_on_mesh(
        *arrays_and_mask, Settings(**options), scale=scale, softcap=softcap, sinks_H=sinks_H
    )


def _draw(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32))


def test_merge_equals_attention_to_all_keys() -> None:
    q, k, v = 3 * _draw(0, 2, 4, 5, 8), 3 * _draw(1, 2, 2, 9, 8), _draw(2, 2, 2, 9, 6)
    visible = np.random.default_rng(0).random((2, 1, 5, 9)) < 0.6
    visible[0, :, 0] = False
    visible[0, :, 1, :4] = False
    visible[0, :, 2, 4:] = False
    visible = jnp.asarray(visible)
    whole = jax.jit(functools.partial(attention_with_lse, scale=SCALE))
    first = whole(q, k[:, :, :4], v[:, :, :4], visible[..., :4])
    second = whole(q, k[:, :, 4:], v[:, :, 4:], visible[..., 4:])
    out, lse = merge(*first, *second)
    expected, _ = whole(q, k, v, visible)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    exact, terms = _exact_lse(q, np.repeat(k, 2, 1), np.asarray(visible))
    # A maximum plus a logarithm may cancel: it is as exact as the two are.
    hidden = np.isinf(exact)
    assert np.array_equal(np.asarray(lse)[hidden], exact[hidden])
    assert np.all(np.abs(lse - exact)[~hidden] <= 8 * np.finfo(np.float32).eps * terms[~hidden])
    assert np.all(np.asarray(out[0, :, 0]) == 0.0)


def _exact_lse(q, k, visible) -> tuple[np.ndarray, np.ndarray]:
    """In float64: the logarithm of the sum of exponentials, and the size of its two terms."""
    scores = np.einsum("bhqd,bhkd->bhqk", np.float64(q), np.float64(k)) * SCALE
    scores = np.where(visible, scores, -np.inf)
    maximum = scores.max(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        logarithm = np.log(np.exp(scores - maximum[..., None]).sum(-1))
    logarithm = np.where(np.isinf(maximum), 0, logarithm)
    return maximum + logarithm, np.abs(maximum) + np.abs(logarithm)


def test_merge_of_far_apart_sums_overflows_nowhere() -> None:
    ones, low, high = jnp.ones((1, 1, 1, 1)), jnp.full((1, 1, 1), -2000.0), jnp.full((1, 1, 1), 3000.0)
    out, lse = merge(ones, low, 2 * ones, high)
    assert (float(out.squeeze()), float(lse.squeeze())) == (2.0, 3000.0)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (Mask(right=0), (0, 7)),
        (Mask(left=3, right=0), (0, 1)),
        (Mask(left=4, right=0), (0, 1)),
        (Mask(left=5, right=0), (0, 2)),
        (Mask(left=4, right=4), (-1, 1)),
        (Mask(left=0, right=0), (0, 0)),
        # A chunk of queries behind twelve keys that are in the cache already.
        (Mask(left=3, right=0, offset=12), (5, 6)),
        (Mask(left=3, right=0, offset=1000), (0, 0)),
        (Mask(left=8), (0, 7)),
    ],
)
def test_needed_steps_of_eight_devices_with_four_queries_and_keys(mask: Mask, expected: tuple) -> None:
    assert needed_shifts(mask, 8, 4, 4) == expected


@settings(deadline=None, max_examples=200)
@given(
    left=st.none() | st.integers(0, 30), right=st.none() | st.integers(0, 30), offset=st.integers(-40, 40),
    devices=st.integers(2, 8), queries=st.integers(1, 5), keys=st.integers(1, 5),
)  # fmt: skip
def test_no_step_that_a_query_needs_is_left_out(
    left: int | None, right: int | None, offset: int, devices: int, queries: int, keys: int
) -> None:
    mask = Mask(left=left, right=right, offset=offset)
    distance = np.arange(devices * keys) - (np.arange(devices * queries)[:, None] + offset)
    dense = (distance <= (np.inf if right is None else right)) & (
        distance >= -(np.inf if left is None else left)
    )
    blocks = dense.reshape(devices, queries, devices, keys).any((1, 3))
    needed = {(int(i) - int(j)) % devices for i, j in zip(*np.nonzero(blocks), strict=True)}
    first, last = needed_shifts(mask, devices, queries, keys)
    steps = [shift % devices for shift in range(first, last + 1)]
    assert needed <= set(steps)
    assert len(steps) == len(set(steps))
    assert not needed or (steps[0] in needed and steps[-1] in needed)


def _ring(q, k, v, mask: Mask, devices: int = 8) -> jax.Array:
    mesh = create_mesh(1, devices, 1, devices=jax.devices()[:devices])
    return sharded(q, k, v, mask, mesh=mesh, scale=SCALE, sequence="ring")


@pytest.mark.parametrize(
    "mask",
    [
        Mask(left=3, right=0),
        pytest.param(Mask(left=3, right=3), marks=pytest.mark.slow),
        pytest.param(Mask(right=0, offset=-100), marks=pytest.mark.slow),
    ],
)
def test_windows_and_their_gradients_equal_those_of_one_device(mask: Mask) -> None:
    q, k, v, weight = (
        _draw(0, 1, 4, 30, 8),
        _draw(1, 1, 2, 31, 8),
        _draw(2, 1, 2, 31, 4),
        _draw(3, 1, 4, 30, 4),
    )
    whole = lambda q, k, v: attention(q, k, v, mask.to_dense(30, 31), scale=SCALE)  # noqa: E731
    ring = functools.partial(_ring, mask=mask)
    results = []
    for function in (ring, whole):
        loss = lambda *args, function=function: jnp.sum(weight * function(*args))  # noqa: E731
        results.append(jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(q, k, v))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=5e-5, atol=5e-6), *results)


def _compiled(function, *shapes: tuple, devices: int = 8):
    sharding = NamedSharding(
        create_mesh(1, devices, 1, devices=jax.devices()[:devices]), PartitionSpec(None, None, "sp")
    )
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding) for shape in shapes]
    return jax.jit(function, out_shardings=None).lower(*arguments).compile()


def _collectives(text: str) -> collections.Counter:
    kinds = r"(all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
    return collections.Counter(re.findall(kinds, text))


@pytest.mark.parametrize("mask", [Mask(), Mask(right=0), Mask(left=8, right=0)])
def test_keys_and_values_are_sent_on_and_nothing_else(mask: Mask) -> None:
    shape = (1, 4, 128, 16)
    text = _compiled(functools.partial(_ring, mask=mask), shape, shape, shape).as_text()
    # One for the keys and one for the values, in a loop over the steps.
    assert _collectives(text) == {"collective-permute": 2}


def test_the_next_part_is_sent_whatever_becomes_of_this_one() -> None:
    """The transfer waits for nothing that is computed, so that the compiler can do both at once."""
    shape = (1, 4, 128, 16)
    text = _compiled(functools.partial(_ring, mask=Mask()), shape, shape, shape).as_text()
    sent = re.findall(r"collective-permute(?:-start)?\(([^)]*)\)", text)
    assert len(sent) == 2
    for operand in sent:
        assert re.search(
            rf"{re.escape(operand.split()[-1])} = \S+ (get-tuple-element|copy|bitcast)\(", text
        ), operand


def _temporary_bytes(function, *shapes: tuple) -> int:
    return _compiled(function, *shapes).memory_analysis().temp_size_in_bytes


def test_memory_is_that_of_a_few_parts_of_the_keys_in_both_directions() -> None:
    query, keys = (1, 1, 8, 128), (1, 1, 2**14, 128)
    part = 2**14 // 8 * 128 * 4
    forward = functools.partial(_ring, mask=Mask())
    backward = jax.grad(lambda *args: jnp.sum(forward(*args)), argnums=(0, 1, 2))
    gathered = lambda q, k, v: sharded(q, k, v, Mask(), mesh=create_mesh(1, 8, 1), scale=SCALE)  # noqa: E731
    assert _temporary_bytes(gathered, query, keys, keys) > 16 * part
    assert _temporary_bytes(forward, query, keys, keys) < 8 * part
    assert _temporary_bytes(backward, query, keys, keys) < 16 * part
