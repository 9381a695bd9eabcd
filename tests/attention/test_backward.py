"""Gradients from saved results, block by block, against torch's autograd in float64, and what they keep in memory."""

from functools import partial

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from jax.sharding import PartitionSpec as P

from tpuport.attention import backward as module
from tpuport.attention.backward import backward
from tpuport.attention.mask import Mask
from tpuport.attention.xla_attention import attention_xla

BANDS = [
    (None, None, 0),
    (None, 0, 0),
    (None, 0, -2),
    (None, 0, 3),
    (2, 0, 0),
    (3, 1, 1),
    (1, None, -1),
    (0, 0, 40),
]
PARTS = ["keys", "queries", "segments", "bias"]
NAMES = ("q", "k", "v", "bias")


@pytest.fixture
def edge(monkeypatch):
    return lambda size: monkeypatch.setattr(module, "_MAX_EDGE", size)


def _cotangents(p, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    draw = lambda *shape: np.asarray(jnp.asarray(rng.normal(size=shape), p.dtype), np.float32)  # noqa: E731
    return draw(*p.q.shape[:3], p.v.shape[-1]).copy(), draw(*p.q.shape[:3]).copy()


def _expected(p, d_out: np.ndarray, d_lse: np.ndarray) -> list[np.ndarray | None]:
    """Torch's gradients in float64; those of rows without keys are none."""
    results = p.torch()
    some = torch.tensor(p.visible().any(-1))
    total = (results["out"] * torch.tensor(d_out)).sum()
    (total + torch.where(some, results["lse"] * torch.tensor(d_lse), 0.0)[some].sum()).backward()
    return [results[n].grad.numpy() if n in results else None for n in NAMES]


def _got(p, d_out: np.ndarray, d_lse: np.ndarray) -> tuple[jax.Array | None, ...]:
    results = p.torch()
    saved = (
        jnp.asarray(results["out"].detach().numpy(), p.dtype),
        jnp.asarray(results["lse"].detach().numpy(), jnp.float32),
    )

    def run(*args: jax.Array) -> tuple[jax.Array | None, ...]:
        return backward(*args[:3], p.mask(), *args[3:], scale=p.scale, softcap=p.softcap)

    return jax.jit(run)(*p.arrays(), *saved, jnp.asarray(d_out, p.dtype), jnp.asarray(d_lse))


def _assert_close(p, got, expected) -> None:
    for name, gradient, wanted in zip(NAMES, got, expected, strict=True):
        assert (gradient is None) == (wanted is None), name
        if gradient is None:
            continue
        assert gradient.shape == wanted.shape
        assert gradient.dtype == (jnp.float32 if name == "bias" else p.dtype)
        # In bfloat16 the output that is saved, the weights and their gradients are rounded, by 2 ** -8 at most.
        tolerance = 2e-5 if p.dtype == jnp.float32 else 3 * 2**-8
        assert np.isfinite(np.asarray(gradient, np.float32)).all(), name
        error = np.abs(np.asarray(gradient, np.float32) - wanted).max()
        assert error <= tolerance * max(1.0, np.abs(wanted).max()), name


@settings(
    settings.get_profile("few"),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 999), batch=st.integers(1, 3), kv_heads=st.sampled_from([1, 2]), groups=st.sampled_from([1, 3]),
    queries=st.sampled_from([1, 7, 16]), keys=st.sampled_from([1, 9, 16]), size=st.sampled_from([1, 4, 7, 1024]),
    band=st.sampled_from(BANDS), parts=st.sets(st.sampled_from(PARTS)),
    softcap=st.sampled_from([None, 2.0]), dtype=st.sampled_from([jnp.float32, jnp.bfloat16]),
)  # fmt: skip
def test_equals_torch(
    problem, edge, seed, batch, kv_heads, groups, queries, keys, size, band, parts, softcap, dtype
) -> None:
    shape = batch, kv_heads, groups, queries, keys
    p = problem(seed, shape=shape, band=band, parts=parts, dtype=dtype, softcap=softcap)
    edge(size)
    cotangents = _cotangents(p)
    _assert_close(p, _got(p, *cotangents), _expected(p, *cotangents))


@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_gradient_of_torchs_sdpa(problem, edge, causal: bool) -> None:
    p = problem(0, band=(None, 0 if causal else None, 0))
    edge(5)
    d_out, d_lse = _cotangents(p)
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (p.q, p.k, p.v)]
    out = torch.nn.functional.scaled_dot_product_attention(
        *leaves, is_causal=causal, scale=p.scale, enable_gqa=True
    )
    out.backward(torch.tensor(d_out, dtype=torch.float64))
    for gradient, leaf in zip(_got(p, d_out, 0 * d_lse)[:3], leaves, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad, atol=1e-5)


@pytest.mark.parametrize("size", [4, 1024])
def test_cotangents_of_rows_without_keys_and_values_of_padding_may_be_anything(
    problem, edge, size: int
) -> None:
    p = problem(0, band=(None, 0, -3), parts={"keys"})
    edge(size)
    d_out, d_lse = _cotangents(p)
    expected = _expected(p, d_out, d_lse)
    empty = ~p.visible().any(-1)
    assert empty.any()
    d_out[empty], d_lse[empty] = np.nan, np.inf
    q, k, v = p.arrays()
    out, lse = attention_xla(q, k, v, p.mask(), scale=p.scale)
    hidden = ~jnp.asarray(p.parts["keys_BT"])[:, None, :, None]
    k, v = (jnp.where(hidden, jnp.nan, x) for x in (k, v))
    got = backward(q, k, v, p.mask(), out, lse, jnp.asarray(d_out), jnp.asarray(d_lse), scale=p.scale)
    _assert_close(p, got, expected)
    assert (np.asarray(got[0])[empty] == 0).all()


def test_offset_may_be_traced(problem, edge) -> None:
    edge(4)

    @jax.jit
    def run(offset: jax.Array, *args: jax.Array) -> tuple[jax.Array | None, ...]:
        mask = Mask(left=4, right=0, offset=offset)
        return backward(*args[:3], mask, *attention_xla(*args[:3], mask, scale=0.3), *args[3:], scale=0.3)

    for offset in (-3, 0, 5):
        p = problem(0, band=(4, 0, offset))
        cotangents = _cotangents(p)
        got = run(jnp.int32(offset), *p.arrays(), *map(jnp.asarray, cotangents))
        _assert_close(p, got, _expected(p, *cotangents))


@pytest.mark.parametrize(
    ("left", "right", "offset"),
    [(None, 0, 0), (5, 0, 0), (5, 3, -7), (0, 0, 9), (None, 0, -90), (3, None, 90), (None, None, 0)],
)
def test_blocks_that_a_band_hides_are_not_computed(left: int | None, right: int | None, offset: int) -> None:
    mask, length, size = Mask(left=left, right=right, offset=offset), 40, 4
    dense = mask.to_dense(length, length)
    blocks = np.ones((10, 10), bool)
    if dense is not None:
        blocks = np.asarray(dense)[0, 0].reshape(10, size, 10, size).any((1, 3))
    for i in range(10):
        first, last = module._visible_blocks(mask, i * size, size, size, 10)
        assert list(range(int(first), int(last))) == list(np.flatnonzero(blocks[i]))


def test_no_queries_or_no_keys_give_zeros(problem) -> None:
    for queries, keys in ((0, 3), (3, 0)):
        p = problem(0, shape=(1, 1, 2, queries, keys), parts={"bias"})
        for gradient in _got(p, *_cotangents(p)):
            assert (gradient == 0).all()


@pytest.mark.parametrize("check", [True, False])
def test_runs_inside_shard_map(problem, edge, check: bool) -> None:
    """Keys are the same on both parts of `sp`: their gradients are summed over it, once."""
    p = problem(0, shape=(2, 2, 2, 14, 11), band=(6, 0, 0), parts={"bias"})
    p.parts["bias_BT"] = p.parts["bias_BT"][:1]
    edge(3)
    mesh = jax.make_mesh((2, 2, 2), ("dp", "tp", "sp"), axis_types=(jax.sharding.AxisType.Auto,) * 3)

    def mask(bias: jax.Array, offset: jax.Array) -> Mask:
        return Mask(left=6, right=0, offset=offset, bias_BT=bias)

    @jax.custom_vjp
    def attend(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array, offset: jax.Array):
        return attention_xla(q, k, v, mask(bias, offset), scale=p.scale)

    def forward(*args: jax.Array):
        results = attend(*args)
        return results, (args, results)

    def back(saved, cotangents):
        (q, k, v, bias, offset), results = saved
        return *backward(q, k, v, mask(bias, offset), *results, *cotangents, scale=p.scale), None

    attend.defvjp(forward, back)
    queries, keys = P("dp", "tp", "sp"), P("dp", "tp")

    @partial(
        jax.shard_map, mesh=mesh, in_specs=(queries, keys, keys, P()), out_specs=(queries, queries),
        check_vma=check,
    )  # fmt: skip
    def run(*args: jax.Array) -> tuple[jax.Array, jax.Array]:
        return attend(*args, 7 * jax.lax.axis_index("sp"))

    d_out, d_lse = _cotangents(p)
    loss = lambda *args: sum((x * y).sum() for x, y in zip(run(*args), (d_out, d_lse), strict=True))  # noqa: E731
    got = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*p.arrays(), jnp.asarray(p.parts["bias_BT"]))
    _assert_close(p, got, _expected(p, d_out, d_lse))


def test_memory_is_bounded() -> None:
    length, heads = 8192, 16
    query, key = (jax.ShapeDtypeStruct((1, h, length, 64), jnp.bfloat16) for h in (heads, 2))
    token, flag = (jax.ShapeDtypeStruct((1, length), t) for t in (jnp.int32, jnp.bool_))
    lse = jax.ShapeDtypeStruct((1, heads, length), jnp.float32)
    bias = jax.ShapeDtypeStruct((1, length), jnp.float32)

    def run(q, k, v, out, lse, d_out, d_lse, bias, segments, keys, queries):
        mask = Mask(4096, 0, 0, keys, queries, segments, segments, bias)
        return backward(q, k, v, mask, out, lse, d_out, d_lse, scale=0.1, softcap=30.0)

    args = (query, key, key, query, lse, query, lse, bias, token, flag, flag)
    assert f"{length},{length}" not in str(jax.make_jaxpr(run)(*args))
    used = jax.jit(run).lower(*args).compile().memory_analysis().temp_size_in_bytes
    assert used < heads * length**2 * 4 / 8
