"""All-to-all attention: how heads are dealt out, and what the compiled programs send."""

import collections
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tpuport.attention.attention_settings import Settings
from tpuport.attention.mask import Mask
from tpuport.attention.mesh_attention import attention_on_mesh
from tpuport.attention.reference import attention
from tpuport.attention.sharding_plan import CallSizes, plan_sharding
from tpuport.errors import PortError
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


@pytest.mark.parametrize(
    ("shape", "heads", "kv_heads", "queries", "keys"),
    [
        # As many key/value heads as devices, fewer, one, and numbers that leave blocks of unequal owners.
        ((2, 4, 1), 8, 8, 8, 12),
        pytest.param((1, 4, 2), 8, 2, 9, 13, marks=pytest.mark.slow),
        ((1, 8, 1), 8, 2, 5, 19),
        pytest.param((1, 2, 4), 8, 1, 6, 7, marks=pytest.mark.slow),
        pytest.param((1, 4, 2), 24, 6, 8, 8, marks=pytest.mark.slow),
        pytest.param((2, 4, 1), 12, 6, 7, 3, marks=pytest.mark.slow),
        pytest.param((1, 4, 2), 24, 3, 1, 9, marks=pytest.mark.slow),
    ],
)
def test_equals_one_device(shape: tuple, heads: int, kv_heads: int, queries: int, keys: int) -> None:
    rng = np.random.default_rng(0)
    q, k, v = _draw(0, 2, heads, queries, 8), _draw(1, 2, kv_heads, keys, 8), _draw(2, 2, kv_heads, keys, 4)
    visible = rng.random((2, keys)) < 0.8
    visible[1] = False
    mask = Mask(
        left=7, right=1, offset=2, keys_BT=jnp.asarray(visible), queries_BQ=jnp.asarray(rng.random((1, queries)) < 0.9),
        query_segments_BQ=jnp.asarray(rng.integers(0, 2, (1, queries))),
        key_segments_BT=jnp.asarray(rng.integers(0, 2, (1, keys))), bias_BT=_draw(3, 2, keys),
    )  # fmt: skip
    options = {"scale": SCALE, "softcap": 2.0, "sinks_H": _draw(4, heads)}
    kinds = {"mesh": create_mesh(*shape), "sequence": "ulysses"} | options
    got = jax.jit(lambda *args: sharded(*args, mask, **kinds))(q, k, v)
    # Compiled: a fifth of the time that compiling each of its operations takes.
    expected = jax.jit(lambda *args: attention(*args, mask.to_dense(queries, keys), **options))(q, k, v)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)
    assert np.any(np.asarray(got[0]))


def test_heads_that_do_not_divide_are_refused_with_the_numbers_and_a_way_out() -> None:
    with pytest.raises(PortError, match=r"12 query heads .* over 8 devices \(tp=2, sp=4\)") as caught:
        plan_sharding(CallSizes(1, 12, 12, 64, 64), create_mesh(1, 4, 2), "ulysses")
    assert "ring" in str(caught.value.fix)


def _program(shape: tuple, heads: int, kv_heads: int) -> str:
    mesh = create_mesh(*shape)

    def argument(count: int) -> jax.ShapeDtypeStruct:
        spec = PartitionSpec("dp", "tp" if count % shape[2] == 0 else None, "sp")
        return jax.ShapeDtypeStruct((2, count, 64, 16), jnp.float32, sharding=NamedSharding(mesh, spec))

    run = lambda q, k, v: sharded(q, k, v, Mask(right=0), mesh=mesh, scale=SCALE, sequence="ulysses")  # noqa: E731
    return jax.jit(run).lower(argument(heads), argument(kv_heads), argument(kv_heads)).compile().as_text()


@pytest.mark.parametrize(
    ("shape", "kv_heads"), [((2, 4, 1), 8), ((1, 4, 2), 8), ((1, 4, 2), 2), ((1, 2, 4), 1)]
)
def test_four_exchanges_and_nothing_else(shape: tuple, kv_heads: int) -> None:
    """Query, key, value and output: arrays that come sharded over the sequence are not gathered."""
    kinds = r"(all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
    assert collections.Counter(re.findall(kinds, _program(shape, 8, kv_heads))) == {"all-to-all": 4}


def test_a_device_computes_the_whole_sequence_for_its_heads() -> None:
    text = _program((1, 8, 1), 8, 8)
    assert "f32[2,1,1,64,64]" in text
    assert "f32[2,8,1,64,64]" not in text
