"""Attention over blocks of queries against torch in float64, and what it keeps in memory."""

import dataclasses
from functools import partial

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from jax.sharding import PartitionSpec as P

from tpuport.attention import xla_attention
from tpuport.attention.mask import Mask
from tpuport.attention.reference import attention_with_lse

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


@pytest.fixture
def limit(monkeypatch):
    """Sets how many queries of `scores` scores each fit in a block."""
    return lambda queries, scores: monkeypatch.setattr(xla_attention, "SCORES_LIMIT", queries * scores * 4)


def _run(given_problem, **kwargs):
    p = given_problem

    def run(q, k, v):
        return xla_attention.attention_xla(q, k, v, p.mask(), scale=p.scale, softcap=p.softcap, **kwargs)

    return jax.jit(run)(*p.arrays())


def _loops(given_problem) -> int:
    p = given_problem
    run = lambda q, k, v: xla_attention.attention_xla(q, k, v, p.mask(), scale=p.scale, softcap=p.softcap)  # noqa: E731
    return str(jax.make_jaxpr(run)(*p.arrays())).count("scan[")


@settings(
    settings.get_profile("few"),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 999), batch=st.integers(1, 3), kv_heads=st.sampled_from([1, 2]), groups=st.sampled_from([1, 3]),
    queries=st.sampled_from([1, 7, 16]), keys=st.sampled_from([1, 9, 16]), rows=st.sampled_from([1, 3, 5, 100]),
    band=st.sampled_from(BANDS), parts=st.sets(st.sampled_from(PARTS)), dense=st.sampled_from([None, "dense", "added"]),
    softcap=st.sampled_from([None, 2.0]), dtype=st.sampled_from([jnp.float32, jnp.bfloat16]),
)  # fmt: skip
def test_equals_torch(
    problem, limit, seed, batch, kv_heads, groups, queries, keys, rows, band, parts, dense, softcap, dtype
) -> None:
    shape = batch, kv_heads, groups, queries, keys
    parts = parts | ({dense} if dense else set())
    p = problem(seed, shape=shape, band=band, parts=parts, dtype=dtype, softcap=softcap)
    limit(rows, batch * kv_heads * groups * keys)
    assert _loops(p) == (rows < queries)
    out, lse = _run(p)
    expected = p.torch()
    assert (out.dtype, lse.dtype) == (dtype, jnp.float32)
    wanted = expected["out"].detach().numpy()
    # In bfloat16 the weights are rounded and so is the result, by 2 ** -8 at most; the scores are float32 in both.
    roundings = 0 if dtype == jnp.float32 else 2**-8
    error = np.abs(np.asarray(out, np.float32) - wanted)
    assert (error <= 1e-5 + roundings * (np.abs(p.v).max() + np.abs(wanted))).all()
    np.testing.assert_allclose(lse, expected["lse"].detach(), atol=1e-5, rtol=1e-5)
    empty = ~p.visible().any(-1)
    assert (np.asarray(out, np.float32)[empty] == 0).all()
    assert (np.asarray(lse)[empty] == -np.inf).all()


@pytest.mark.parametrize("causal", [False, True])
def test_equals_torchs_sdpa(problem, limit, causal: bool) -> None:
    p = problem(0, band=(None, 0 if causal else None, 0))
    limit(5, 2 * 4 * 11)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(torch.tensor(x).double() for x in (p.q, p.k, p.v)),
        is_causal=causal,
        scale=p.scale,
        enable_gqa=True,
    )
    np.testing.assert_allclose(_run(p)[0], expected, atol=2e-6)


# A row alone, blocks that divide the queries, and blocks that do not.
@pytest.mark.parametrize(
    "rows", [4, 13, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (1, 6, 12))]
)
@pytest.mark.parametrize(
    "parts",
    [{"bias", "keys"}, {"queries", "segments"}, {"added"}, {"dense", "bias"}],
    ids=lambda parts: "-".join(sorted(parts)),
)
def test_gradients_equal_torchs(problem, limit, rows: int, parts: set[str]) -> None:
    # A band of one key that most queries are past: rows with and without keys in one block.
    p = problem(rows, band=(3, 1, -2), parts=parts, softcap=2.0)
    limit(rows, 2 * 4 * 11)
    assert not p.visible().any(-1).all()
    names = ["q", "k", "v", *(n for n in ("bias", "dense") if n in p.torch())]
    rng = np.random.default_rng(1)
    expected = p.torch()
    to_out, to_lse = (rng.normal(size=tuple(expected[n].shape)).astype(np.float32) for n in ("out", "lse"))
    some = p.visible().any(-1)

    def loss(leaves: dict) -> jax.Array:
        fields = {"bias": "bias_BT", "dense": "dense"}
        mask = dataclasses.replace(p.mask(), **{fields[n]: x for n, x in leaves.items() if n in fields})
        out, lse = xla_attention.attention_xla(
            leaves["q"], leaves["k"], leaves["v"], mask, scale=p.scale, softcap=p.softcap
        )
        return (out * to_out).sum() + jnp.where(some, lse * to_lse, 0.0).sum()

    total = (expected["out"] * torch.from_numpy(to_out)).sum()
    total = total + (expected["lse"] * torch.from_numpy(to_lse))[torch.from_numpy(some)].sum()
    total.backward()
    leaves = dict(zip("qkv", p.arrays(), strict=True))
    leaves |= {n: jnp.asarray(expected[n].detach().numpy(), jnp.float32) for n in names[3:]}
    got = jax.jit(jax.grad(loss))(leaves)
    for name in names:
        np.testing.assert_allclose(got[name], expected[name].grad, atol=2e-5, err_msg=name)
    # What no query may see has no gradient at all, and rows without keys give none to their query.
    assert (np.asarray(got["q"])[~some] == 0).all()


@pytest.mark.parametrize("rows", [pytest.param(3, marks=pytest.mark.slow), 100])
def test_gradients_of_nothing_but_empty_rows_are_zero(problem, limit, rows: int) -> None:
    p = problem(0, band=(None, -100, 0), parts={"bias"})
    limit(rows, 2 * 4 * 11)

    def loss(*args: jax.Array) -> jax.Array:
        out, lse = xla_attention.attention_xla(*args, p.mask(), scale=p.scale)
        return out.sum() + jnp.exp(lse).sum()

    for gradient in jax.grad(loss, argnums=(0, 1, 2))(*p.arrays()):
        assert (gradient == 0).all()


@pytest.mark.parametrize("rows", [1, 256])
def test_gradients_of_bfloat16_keys_are_summed_in_float32(problem, limit, rows: int) -> None:
    p = problem(0, shape=(1, 1, 1, 256, 8), dtype=jnp.bfloat16)
    limit(rows, 8)
    expected = p.torch()
    expected["out"].sum().backward()

    def loss(*args):
        return xla_attention.attention_xla(*args, p.mask(), scale=p.scale)[0].astype(jnp.float32).sum()

    got = jax.jit(jax.grad(loss, argnums=(1, 2)))(*p.arrays())
    for gradient, name in zip(got, "kv", strict=True):
        assert gradient.dtype == jnp.bfloat16
        # The terms are rounded to bfloat16, and the sum once; a sum kept in bfloat16 is off by 8 to 27 times 2 ** -9.
        error = np.abs(np.asarray(gradient, np.float32) - expected[name].grad.numpy()).max()
        assert error < 4 * 2**-9 * expected[name].grad.abs().max()


def test_offset_may_be_traced(problem, limit) -> None:
    limit(4, 2 * 4 * 11)
    run = jax.jit(
        lambda offset, *args: xla_attention.attention_xla(
            *args, Mask(left=4, right=0, offset=offset), scale=0.3
        )
    )
    for offset in (-3, 0, 5):
        p = problem(0, band=(4, 0, offset))
        out, lse = run(jnp.int32(offset), *p.arrays())
        np.testing.assert_allclose(out, p.torch()["out"].detach(), atol=1e-5)
        np.testing.assert_allclose(lse, p.torch()["lse"].detach(), atol=1e-5)


def test_runs_inside_shard_map(problem, limit) -> None:
    p = problem(0, shape=(2, 2, 2, 14, 11), band=(6, 0, 0), parts={"keys"})
    p.parts["keys_BT"] = np.broadcast_to(p.parts["keys_BT"], (2, 11)).copy()
    mesh = jax.make_mesh((2, 2, 2), ("dp", "tp", "sp"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    limit(3, 1 * 2 * 11)
    queries, keys = P("dp", "tp", "sp"), P("dp", "tp")

    @partial(jax.shard_map, mesh=mesh, in_specs=(queries, keys, keys, P("dp")), out_specs=(queries, queries))
    def run(q: jax.Array, k: jax.Array, v: jax.Array, keys_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        mask = Mask(left=6, right=0, offset=7 * jax.lax.axis_index("sp"), keys_BT=keys_BT)
        return xla_attention.attention_xla(q, k, v, mask, scale=p.scale)

    keys_BT = jnp.asarray(p.parts["keys_BT"])
    assert "scan[" in str(jax.make_jaxpr(run)(*p.arrays(), keys_BT))
    expected = p.torch()
    expected["out"].square().sum().backward()
    out, lse = jax.jit(run)(*p.arrays(), keys_BT)
    np.testing.assert_allclose(out, expected["out"].detach(), atol=1e-5)
    np.testing.assert_allclose(lse, expected["lse"].detach(), atol=1e-5)
    got = jax.jit(jax.grad(lambda *a: jnp.square(run(*a, keys_BT)[0]).sum(), argnums=(0, 1, 2)))(*p.arrays())
    for gradient, name in zip(got, "qkv", strict=True):
        np.testing.assert_allclose(gradient, expected[name].grad, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("gradients", [False, True])
def test_memory_is_bounded(gradients: bool) -> None:
    length, heads = 8192, 32
    query, key = (jax.ShapeDtypeStruct((1, h, length, 64), jnp.bfloat16) for h in (heads, 2))
    token, flag = (jax.ShapeDtypeStruct((1, length), t) for t in (jnp.int32, jnp.bool_))
    bias = jax.ShapeDtypeStruct((1, length), jnp.float32)

    def run(q, k, v, bias, segments, keys, queries):
        mask = Mask(4096, 0, 0, keys, queries, segments, segments, bias)
        return xla_attention.attention_xla(q, k, v, mask, scale=0.1, softcap=30.0)

    total = lambda *args: sum(x.astype(jnp.float32).sum() for x in run(*args))  # noqa: E731
    traced = jax.jit(jax.grad(total, argnums=(0, 1, 2, 3)) if gradients else run)
    args = (query, key, key, bias, token, flag, flag)
    assert "8192,8192" not in str(jax.make_jaxpr(traced)(*args))
    used = traced.lower(*args).compile().memory_analysis().temp_size_in_bytes
    assert used < heads * length**2 * 4 / 8


@pytest.mark.parametrize("queries", [1, 5, 1000])
@pytest.mark.parametrize("scores", [1, 2**20, 2**40])
def test_blocks_cover_every_query_within_the_limit(queries: int, scores: int) -> None:
    size = xla_attention.block_size(queries, scores)
    first = np.asarray(xla_attention.block_starts(queries, size))
    assert set(range(queries)) == {int(f) + i for f in first for i in range(size)}
    assert size == 1 or (size - 1) * scores * 4 <= xla_attention.SCORES_LIMIT


def test_a_round_of_the_loop_has_its_own_queries_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TPU's compiler moves a change of layout into the loop, of all queries in every round, if they are there."""
    monkeypatch.setattr(xla_attention, "SCORES_LIMIT", 2 * 64 * 50 * 4)
    numbers = np.random.default_rng(0)
    query, key, value = (numbers.normal(size=(1, 2, n, 16)).astype(np.float32) for n in (290, 64, 64))
    attend = partial(attention_with_lse, scale=0.25)

    def run(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        return xla_attention._by_query_blocks(attend, query, key, value, Mask())

    [loop] = [eqn for eqn in jax.make_jaxpr(run)(query, key, value).eqns if eqn.primitive.name == "scan"]
    shapes = [variable.aval.shape for variable in loop.invars]
    assert query.shape not in shapes
    assert (6, 1, 2, 49, 16) in shapes, "the last block overlaps the one before"
    expected = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (query, key, value)))
    np.testing.assert_allclose(jax.jit(run)(query, key, value)[0], expected, atol=1e-5)
