"""Attention a head at a time, as a CPU takes it, against torch in float64."""

from functools import partial

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from jax.sharding import PartitionSpec as P

from tpuport.attention import xla_attention
from tpuport.attention.mask import Mask

PARTS = ["keys", "queries", "segments", "bias", "dense", "added"]


@pytest.fixture
def cut(monkeypatch):
    """Makes every problem worthwhile, and sets how many queries of `keys` keys fit in a block."""

    def choose(queries: int, keys: int) -> None:
        monkeypatch.setattr(xla_attention, "CPU_DIVIDES_FROM", 0)
        monkeypatch.setattr(xla_attention, "CPU_BLOCK", queries * keys * 4)

    return choose


@settings(
    settings.get_profile("few"),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 999), batch=st.integers(1, 3), kv_heads=st.sampled_from([1, 2]), groups=st.sampled_from([1, 3]),
    queries=st.sampled_from([1, 7, 16]), keys=st.sampled_from([1, 9]), rows=st.sampled_from([1, 5, 100]),
    band=st.sampled_from([(None, None, 0), (None, 0, -2), (3, 1, 1)]), parts=st.sets(st.sampled_from(PARTS)),
    softcap=st.sampled_from([None, 2.0]),
)  # fmt: skip
def test_equals_torch(
    problem, cut, seed, batch, kv_heads, groups, queries, keys, rows, band, parts, softcap
) -> None:
    p = problem(seed, shape=(batch, kv_heads, groups, queries, keys), band=band, parts=parts, softcap=softcap)
    cut(rows, keys)
    run = lambda q, k, v: xla_attention.attention_xla(q, k, v, p.mask(), scale=p.scale, softcap=p.softcap)  # noqa: E731
    out, lse = jax.jit(run)(*p.arrays())
    expected = p.torch()
    np.testing.assert_allclose(out, expected["out"].detach(), atol=1e-5)
    np.testing.assert_allclose(lse, expected["lse"].detach(), atol=1e-5, rtol=1e-5)


def test_gradients_equal_torch(problem, cut) -> None:
    p = problem(0, parts={"keys", "dense"})
    cut(4, 11)
    run = lambda q, k, v: jnp.square(xla_attention.attention_xla(q, k, v, p.mask(), scale=p.scale)[0]).sum()  # noqa: E731
    expected = p.torch()
    expected["out"].square().sum().backward()
    for got, name in zip(jax.jit(jax.grad(run, argnums=(0, 1, 2)))(*p.arrays()), "qkv", strict=True):
        np.testing.assert_allclose(got, expected[name].grad, atol=2e-5, err_msg=name)


def test_runs_inside_shard_map(problem, cut) -> None:
    p = problem(0, shape=(2, 2, 2, 14, 11), band=(6, 0, 0), parts={"keys"})
    p.parts["keys_BT"] = np.broadcast_to(p.parts["keys_BT"], (2, 11)).copy()
    mesh = jax.make_mesh((2, 2, 2), ("dp", "tp", "sp"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    cut(3, 11)
    queries, keys = P("dp", "tp", "sp"), P("dp", "tp")

    @partial(jax.shard_map, mesh=mesh, in_specs=(queries, keys, keys, P("dp")), out_specs=(queries, queries))
    def run(q: jax.Array, k: jax.Array, v: jax.Array, keys_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        mask = Mask(left=6, right=0, offset=7 * jax.lax.axis_index("sp"), keys_BT=keys_BT)
        return xla_attention.attention_xla(q, k, v, mask, scale=p.scale)

    out, _ = jax.jit(run)(*p.arrays(), jnp.asarray(p.parts["keys_BT"]))
    np.testing.assert_allclose(out, p.torch()["out"].detach(), atol=1e-5)


def _largest(length: int, platform: str) -> int:
    """Elements of the largest array in the program of 4 heads over `length` keys, lowered for a platform."""
    array = jax.ShapeDtypeStruct((1, 4, length, 64), jnp.float32)
    run = jax.jit(lambda q, k, v: xla_attention.attention_xla(q, k, v, Mask(right=0), scale=0.1)[0])
    text = run.trace(array, array, array).lower(lowering_platforms=(platform,)).as_text()
    shapes = {part.split(">")[0] for part in text.split("tensor<")[1:]}
    sizes = [np.prod([int(n) for n in shape.split("x")[:-1]] or [1]) for shape in shapes if "?" not in shape]
    return int(max(sizes))


def test_only_a_cpu_takes_it_and_only_where_it_pays() -> None:
    assert _largest(512, "cpu") == 4 * 512**2  # 4 MiB of scores
    assert _largest(1024, "cpu") == 1024**2
    assert _largest(1024, "tpu") == 4 * 1024**2
