"""Attention on eight devices against its definition on one, and the communication in the compiled programs."""

import collections
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tpuport.attention import sharding_plan
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


MESHES = [(2, 2, 2), (1, 8, 1), (1, 1, 8), (8, 1, 1), (1, 2, 4), (2, 4, 1)]
HEADS = [(8, 8), (8, 2), (6, 2), (12, 6), (5, 5), (5, 1), (8, 1), (24, 6), (1, 1)]
PARTS = ["band", "padding", "queries", "segments", "bias", "softcap", "sinks", "one row for all"]
# Eight devices take longer to compile for than these sizes take to compute.
FEW = settings(settings.get_profile("few"), deadline=None, derandomize=True)


def _draw(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32))


def _inputs(batch: int, heads: int, kv_heads: int, queries: int, keys: int) -> tuple[jax.Array, ...]:
    shapes = (batch, heads, queries, 8), (batch, kv_heads, keys, 8), (batch, kv_heads, keys, 4)
    return tuple(_draw(seed, *shape) for seed, shape in enumerate(shapes))


def _mask(parts: set[str], band: tuple, batch: int, queries: int, keys: int) -> Mask:
    """A mask with the named parts; the last row's keys are all padding."""
    rng = np.random.default_rng(7)
    rows = 1 if "one row for all" in parts else batch
    left, right, offset = band if "band" in parts else (None, None, 0)
    numbers = lambda length: jnp.asarray(rng.integers(0, 2, (rows, length)), jnp.int32)  # noqa: E731
    segments = (numbers(queries), numbers(keys)) if "segments" in parts else (None, None)
    visible = rng.random((rows, keys)) < 0.7
    visible[-1] &= rows == 1
    return Mask(
        left=left,
        right=right,
        offset=offset,
        keys_BT=jnp.asarray(visible) if "padding" in parts else None,
        queries_BQ=jnp.asarray(rng.random((rows, queries)) < 0.8) if "queries" in parts else None,
        query_segments_BQ=segments[0],
        key_segments_BT=segments[1],
        bias_BT=_draw(3, rows, keys) if "bias" in parts else None,
    )


@pytest.fixture(autouse=True, scope="module")
def _dear_work() -> Iterator[None]:
    """Small sizes are shared out as large ones are, where sharing needs padding."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding_plan, "_OPERATIONS", 1e-6)
        yield


def _one_device(inputs: tuple, mask: Mask, **options: Any) -> jax.Array:
    """The definition. Compiled: a fifth of the time that compiling each of its operations takes."""
    queries, keys = inputs[0].shape[2], inputs[1].shape[2]
    return jax.jit(lambda *args: attention(*args, mask.to_dense(queries, keys), scale=SCALE, **options))(
        *inputs
    )


def _check(inputs: tuple, mask: Mask, **options: Any) -> None:
    known = {name: value for name, value in options.items() if name not in ("mesh", "sequence")}
    expected = _one_device(inputs, mask, **known)
    # Compiled too; tests below have calls outside of programs.
    got = jax.jit(lambda *inputs: sharded(*inputs, mask, scale=SCALE, **options))(*inputs)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


@FEW
@given(
    shape=st.sampled_from(MESHES), heads=st.sampled_from(HEADS), batch=st.sampled_from([1, 2, 3, 8]),
    queries=st.sampled_from([1, 16, 13]), keys=st.sampled_from([24, 19, 3]),
    parts=st.sets(st.sampled_from(PARTS)), sequence=st.sampled_from(["gather", "ring"]),
    band=st.sampled_from([(None, 0, 0), (None, 0, 6), (4, 0, 5), (3, 2, -3), (None, 3, -20), (2, None, 7)]),
)  # fmt: skip
def test_equals_one_device(
    shape: tuple,
    heads: tuple,
    batch: int,
    queries: int,
    keys: int,
    parts: set[str],
    sequence: str,
    band: tuple,
) -> None:
    mask = _mask(parts, band, batch, queries, keys)
    _check(
        _inputs(batch, *heads, queries, keys), mask, mesh=create_mesh(*shape), sequence=sequence,
        softcap=2.0 if "softcap" in parts else None, sinks_H=_draw(4, heads[0]) if "sinks" in parts else None,
    )  # fmt: skip


# One case for each way of sharing out, whatever hypothesis draws.
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((2, 2, 2), (2, 4, 2, 8, 10)),
        pytest.param((1, 2, 4), (1, 6, 2, 7, 9), marks=pytest.mark.slow),
        pytest.param((1, 2, 4), (2, 12, 6, 8, 8), marks=pytest.mark.slow),
        pytest.param((1, 1, 8), (1, 5, 5, 4, 6), marks=pytest.mark.slow),
        pytest.param((1, 1, 8), (1, 24, 6, 4, 6), marks=pytest.mark.slow),
        ((2, 1, 4), (3, 5, 1, 4, 6)),
        pytest.param((8, 1, 1), (9, 2, 1, 4, 6), marks=pytest.mark.slow),
    ],
)
def test_every_part_of_the_mask_at_once(shape: tuple, sizes: tuple) -> None:
    batch, heads, kv_heads, queries, keys = sizes
    parts = set(PARTS) - {"one row for all"}
    mask = _mask(parts, (3, 2, 1), batch, queries, keys)
    inputs = _inputs(batch, heads, kv_heads, queries, keys)
    _check(inputs, mask, mesh=create_mesh(*shape), softcap=2.0, sinks_H=_draw(4, heads))


@pytest.mark.slow  # test_ring.py, and the gradients of every input in test_xla_attention.py
@pytest.mark.parametrize(
    ("sequence", "shape", "sizes"),
    [
        pytest.param("gather", (2, 2, 2), (3, 8, 2, 9, 11), marks=pytest.mark.slow),
        pytest.param("gather", (1, 1, 8), (1, 6, 3, 4, 5), marks=pytest.mark.slow),
        ("ring", (1, 2, 4), (3, 6, 2, 9, 11)),
        pytest.param("ulysses", (2, 2, 2), (3, 8, 2, 9, 11), marks=pytest.mark.slow),
        pytest.param("ulysses", (1, 2, 4), (2, 8, 2, 6, 8), marks=pytest.mark.slow),
    ],
)
def test_gradients_equal_those_of_one_device(sequence: str, shape: tuple, sizes: tuple) -> None:
    batch, heads, _, queries, keys = sizes
    mask = _mask({"band", "padding", "segments", "bias"}, (6, 1, 2), batch, queries, keys)
    weight = _draw(9, batch, heads, queries, 4)

    def one_device(q, k, v, bias, sinks):
        dense = dataclasses.replace(mask, bias_BT=bias).to_dense(queries, keys)
        return attention(q, k, v, dense, scale=SCALE, softcap=2.0, sinks_H=sinks)

    def eight(q, k, v, bias, sinks):
        biased, options = dataclasses.replace(mask, bias_BT=bias), {"softcap": 2.0, "sinks_H": sinks}
        return sharded(q, k, v, biased, mesh=create_mesh(*shape), scale=SCALE, sequence=sequence, **options)

    primals = *_inputs(*sizes), mask.bias_BT, _draw(4, heads)

    def gradients(function):
        loss = lambda *args: jnp.sum(weight * function(*args))  # noqa: E731
        return jax.jit(jax.grad(loss, argnums=range(5)))(*primals)

    for name, got, expected in zip("qkvbs", gradients(eight), gradients(one_device), strict=True):
        np.testing.assert_allclose(got, expected, rtol=5e-5, atol=5e-6, err_msg=name)


# The offset of a device is that of the mask, but where its keys move on.
@pytest.mark.parametrize(
    "sequence", ["ring", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gather", "ulysses"))]
)
def test_offset_may_be_traced(sequence: str) -> None:
    inputs, mesh = _inputs(2, 8, 4, 9, 17), create_mesh(2, 4, 1)

    @jax.jit
    def run(offset):
        return sharded(
            *inputs, Mask(left=5, right=0, offset=offset), mesh=mesh, scale=SCALE, sequence=sequence
        )

    for offset in (0, 8):
        expected = _one_device(inputs, Mask(left=5, right=0, offset=offset))
        np.testing.assert_allclose(run(jnp.int32(offset)), expected, rtol=2e-5, atol=2e-6)


# Only a ring adds up what it computed of parts of the keys.
@pytest.mark.parametrize(
    "sequence", ["ring", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gather", "ulysses"))]
)
def test_bfloat16_stays_bfloat16_and_near(sequence: str) -> None:
    inputs = tuple(array.astype(jnp.bfloat16) for array in _inputs(2, 4, 2, 16, 24))
    expected = _one_device(tuple(array.astype(jnp.float32) for array in inputs), Mask())
    got = sharded(*inputs, Mask(), mesh=create_mesh(2, 4, 1), scale=SCALE, sequence=sequence)
    assert got.dtype == jnp.bfloat16
    # Half a unit in the last place of bfloat16 for the weights, for each part of the keys and for the result.
    np.testing.assert_allclose(got.astype(jnp.float32), expected, atol=3 * 2**-9)


def test_no_mesh_and_a_mesh_of_one_are_one_device() -> None:
    inputs, sinks = _inputs(1, 4, 2, 5, 7), _draw(4, 4)
    mask = _mask({"padding"}, (), 2, 5, 7)
    mask = dataclasses.replace(mask, keys_BT=mask.keys_BT[:1])
    for mesh in (None, create_mesh(devices=jax.devices()[:1])):
        text = jax.jit(lambda *a, mesh=mesh: sharded(*a, mask, mesh=mesh, scale=SCALE, sinks_H=sinks)).lower(
            *inputs
        )
        assert "manual" not in text.as_text()
        _check(inputs, mask, mesh=mesh, sinks_H=sinks)


def test_a_mesh_of_other_names_repeats_the_work_and_says_so() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "tp"), axis_types=(AxisType.Auto,) * 2)
    _check(_inputs(2, 4, 2, 5, 7), Mask(right=0), mesh=mesh)
    plan = plan_sharding(CallSizes(2, 4, 2, 5, 7), mesh)
    assert "along data repeat" in plan.reasons[-1]
    assert (plan.heads.local, plan.batch.local) == (2, 2)


def test_arrays_that_lie_on_one_device_are_put_on_the_mesh() -> None:
    inputs = tuple(jax.device_put(array, jax.devices()[3]) for array in _inputs(2, 4, 2, 8, 8))
    mask = Mask(right=0)
    got = sharded(*inputs, mask, mesh=create_mesh(2, 2, 2))
    np.testing.assert_allclose(got, _one_device(inputs, mask), rtol=2e-5, atol=2e-6)


def test_in_manual_code_each_device_makes_a_call_of_its_own() -> None:
    inputs, mesh, spec = _inputs(2, 4, 4, 8, 8), create_mesh(2, 1, 4), PartitionSpec("dp", "tp")

    def run(axes: set[str]) -> jax.Array:
        body = lambda *a: sharded(*a, Mask(right=0), mesh=mesh, scale=SCALE)  # noqa: E731
        cut = PartitionSpec(*(axis if axis in axes else None for axis in spec))
        options = {
            "mesh": mesh,
            "in_specs": (cut,) * 3,
            "out_specs": cut,
            "axis_names": axes,
            "check_vma": False,
        }
        return jax.jit(jax.shard_map(body, **options))(*inputs)

    expected = _one_device(inputs, Mask(right=0))
    for axes in ({"dp", "sp", "tp"}, {"dp"}, {"tp"}):
        np.testing.assert_allclose(run(axes), expected, rtol=2e-5, atol=2e-6, err_msg=str(axes))


def test_in_code_manual_over_another_mesh_it_runs_as_on_one_device() -> None:
    inputs = _inputs(8, 2, 2, 4, 4)
    other = Mesh(np.array(jax.devices()), ("x",), axis_types=(AxisType.Auto,))
    body = lambda *a: sharded(*a, Mask(right=0), mesh=create_mesh(2, 2, 2), scale=SCALE)  # noqa: E731
    cut = PartitionSpec("x")
    got = jax.jit(jax.shard_map(body, mesh=other, in_specs=(cut,) * 3, out_specs=cut, check_vma=False))(
        *inputs
    )
    expected = _one_device(inputs, Mask(right=0))
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


def test_refuses_before_work_starts() -> None:
    inputs, mesh = _inputs(1, 4, 2, 8, 8), create_mesh(1, 8, 1)
    with pytest.raises(PortError, match="dense mask"):
        sharded(*inputs, Mask(dense=jnp.ones((1, 1, 8, 8), jnp.bool_)), mesh=mesh, scale=SCALE)
    with pytest.raises(PortError, match="padding cannot be"):
        sharded(*inputs, Mask(), mesh=mesh, scale=SCALE, padding="none")
    with pytest.raises(PortError, match="'spiral'"):
        sharded(*inputs, Mask(), mesh=None, scale=SCALE, sequence="spiral")
    with pytest.raises(PortError, match=r"4 query heads .* over 8 devices"):
        sharded(*inputs, Mask(), mesh=mesh, scale=SCALE, sequence="ulysses")
    explicit = Mesh(np.array(jax.devices()), ("tp",), axis_types=(AxisType.Explicit,))
    with pytest.raises(PortError, match="Auto"):
        sharded(*inputs, Mask(), mesh=explicit, scale=SCALE)


def _collectives(function, mesh: Mesh, *inputs: tuple) -> collections.Counter:
    """The kinds of communication in the compiled program, which gets its inputs sharded as given."""
    shapes = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*spec)))
        for shape, spec in inputs
    ]
    text = jax.jit(function).lower(*shapes).compile().as_text()
    kinds = r"(all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
    return collections.Counter(re.findall(kinds, text))


@pytest.mark.parametrize(
    ("shape", "kv_heads", "key_spec", "expected"),
    [
        ((8, 1, 1), 8, ("dp", "tp", "sp"), {}),
        ((1, 1, 8), 8, ("dp", "tp", "sp"), {}),
        ((2, 1, 4), 4, ("dp", "tp", "sp"), {}),
        # The one key head of multi-query attention, and keys of a text that every device has already.
        ((2, 1, 4), 1, ("dp",), {}),
        ((2, 2, 2), 8, ("dp", "tp"), {}),
        # Keys and values, gathered once each.
        ((2, 2, 2), 8, ("dp", "tp", "sp"), {"all-gather": 2}),
        ((1, 8, 1), 8, ("dp", "tp", "sp"), {"all-gather": 2}),
    ],
)
def test_only_the_keys_are_gathered(shape: tuple, kv_heads: int, key_spec: tuple, expected: dict) -> None:
    mesh = create_mesh(*shape)
    options = {"mesh": mesh, "scale": SCALE, "sequence": "gather"}
    run = lambda q, k, v: sharded(q, k, v, Mask(right=0), **options)  # noqa: E731
    query, key = ((8, 8, 64, 16), ("dp", "tp", "sp")), ((8, kv_heads, 32, 16), key_spec)
    assert _collectives(run, mesh, query, key, key) == expected


def test_the_result_is_sharded_as_the_queries() -> None:
    mesh = create_mesh(2, 2, 2)
    sharding = NamedSharding(mesh, PartitionSpec("dp", "tp", "sp"))
    query, key, value = (jax.device_put(array, sharding) for array in _inputs(2, 4, 4, 8, 8))
    out = jax.jit(lambda *a: sharded(*a, Mask(), mesh=mesh, scale=SCALE))(query, key, value)
    assert out.sharding.is_equivalent_to(sharding, 4)
