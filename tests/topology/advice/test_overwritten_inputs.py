"""Arguments that come back changed, read off traced programs of every form that a cache is written in."""

import jax
import jax.numpy as jnp
import pytest

from tpuport.topology.advice.overwritten_inputs import find_overwritten

CACHE = jax.ShapeDtypeStruct((2, 4, 16, 8), jnp.bfloat16)
NEW = jax.ShapeDtypeStruct((2, 4, 1, 8), jnp.bfloat16)
AT = jax.ShapeDtypeStruct((), jnp.int32)


def put(cache, new, at):
    return jax.lax.dynamic_update_slice_in_dim(cache, new, at, axis=cache.ndim - 2)


def row_by_row(cache, new, at):
    return jax.lax.scan(lambda _, both: (None, put(*both, at)), None, (cache, new))[1]


def carried(cache, new, at):
    return jax.lax.fori_loop(0, 3, lambda place, cache: put(cache, new, at + place), cache)


def carried_in_a_scan(cache, new, at):
    return jax.lax.scan(lambda cache, place: (put(cache, new, place), None), cache, at + jnp.arange(3))[0]


WRITTEN = {
    "a slice": put,
    "a scatter": lambda cache, new, at: cache.at[:, :, at].set(new[:, :, 0]),
    "what is added": lambda cache, new, at: cache.at[:, :, at].add(new[:, :, 0]),
    "flattened": lambda cache, new, at: put(cache.reshape(8, 16, 8), new.reshape(8, 1, 8), at).reshape(2, 4, 16, 8),
    "transposed": lambda cache, new, at: jnp.swapaxes(
        jax.lax.dynamic_update_slice_in_dim(jnp.swapaxes(cache, 1, 2), jnp.swapaxes(new, 1, 2), at, 1), 1, 2
    ),
    "in float32": lambda cache, new, at: put(cache.astype("float32"), new.astype("float32"), at).astype("bfloat16"),
    "in a jit": jax.jit(put),
    "rematerialised": jax.checkpoint(put),
    "in a branch": lambda cache, new, at: jax.lax.cond(at > 3, put, lambda cache, new, at: cache, cache, new, at),
    "row by row": row_by_row,
    "carried": carried,
    "carried in a scan": carried_in_a_scan,
}  # fmt: skip
OTHERS = {
    "as it was": lambda cache, new, at: cache,
    "computed": lambda cache, new, at: cache * 2,
    "made anew": lambda cache, new, at: put(jnp.zeros_like(cache), new, at),
    "overwritten whole": lambda cache, new, at: put(cache, jnp.tile(new, (1, 1, 16, 1)), at),
    "another dtype": lambda cache, new, at: put(cache, new, at).astype(jnp.float32),
    "another shape": lambda cache, new, at: put(cache, new, at)[:, :, :4],
    "two dimensions": lambda cache, new, at: cache[0, 0].at[at].set(0),
    "another in a branch": lambda cache, new, at: jax.lax.cond(
        at > 3, put, lambda cache, new, at: cache * 2, cache, new, at
    ),
    "changed in a loop": lambda cache, new, at: jax.lax.fori_loop(0, 3, lambda place, cache: cache * 2, cache),
    "a sum": lambda cache, new, at: jnp.concatenate([cache * 2, new], 2),
}  # fmt: skip


@pytest.mark.parametrize("form", WRITTEN)
def test_a_cache_that_comes_back_with_a_part_overwritten(form) -> None:
    traced = jax.jit(lambda new, at, cache: (new, WRITTEN[form](cache, new, at))).trace(NEW, AT, CACHE)
    [one] = find_overwritten(traced.jaxpr)
    assert (one.argument, one.output, one.name, one.growth) == (2, 1, "cache", 0)
    assert (one.shape, one.dtype) == (CACHE.shape, "bfloat16")


@pytest.mark.parametrize("form", OTHERS)
def test_what_is_no_cache(form) -> None:
    traced = jax.jit(lambda new, at, cache: OTHERS[form](cache, new, at)).trace(NEW, AT, CACHE)
    assert find_overwritten(traced.jaxpr) == ()


def test_a_cache_that_comes_back_longer() -> None:
    traced = jax.jit(lambda cache, new: jnp.concatenate([cache, new], 2)).trace(CACHE, NEW)
    [one] = find_overwritten(traced.jaxpr)
    assert (one.argument, one.name, one.growth) == (0, "cache", 1)
