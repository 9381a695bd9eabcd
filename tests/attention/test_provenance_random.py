"""Random graphs of the operations that masks are made of: the structure means what the values are."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, example, given, settings
from jax.extend.core import jaxpr_as_fun

from tpuport.attention.provenance import structure_of

B, H = 2, 2
LOW = float(jnp.finfo(jnp.float32).min)
NUMBERS = (0, 1, -1, 2, LOW, -np.inf, -10000.0, 0.5)
SEEDS = (0, 1)


def inputs(sizes, seed):
    random = np.random.RandomState(seed)
    batch, heads, queries, keys = sizes
    return {
        "keys": random.rand(batch, 1, 1, keys) < 0.6,
        "queries": random.rand(batch, 1, queries, 1) < 0.6,
        "pairs": random.rand(1, 1, queries, keys) < 0.6,
        "heads": random.rand(1, heads, 1, 1) < 0.6,
        "key numbers": random.randint(-1, 3, (batch, 1, 1, keys)).astype(np.int32),
        "query numbers": random.randint(-1, 3, (1, 1, queries, 1)).astype(np.int32),
        "key scores": random.choice([0, -1.5, LOW, -np.inf, 3], (1, 1, 1, keys)).astype(np.float32),
        "scalar": np.full((1, 1, 1, 1), random.randint(-3, 4), np.int32),
    }


def leaves(sizes):
    _, _, queries, keys = sizes
    return {
        "query places": lambda: jnp.arange(queries, dtype=jnp.int32)[None, None, :, None],
        "key places": lambda: jnp.arange(keys, dtype=jnp.int32)[None, None, None],
        "places": lambda: jax.lax.broadcasted_iota(jnp.int32, (1, 1, queries, keys), 3),
        "tril": lambda: jnp.tril(jnp.ones((queries, keys), jnp.bool_), 1)[None, None],
        "triu": lambda: jnp.triu(jnp.full((queries, keys), -jnp.inf, jnp.float32), 1)[None, None],
        "constant keys": lambda: jnp.asarray(np.arange(keys) % 3 != 0)[None, None, None],
        "constant pairs": lambda: jnp.asarray(np.add.outer(np.arange(queries), np.arange(keys)) % 3 != 0)[
            None, None
        ],
        "constant band": lambda: jnp.asarray(np.tri(queries, keys, 2, dtype=bool))[None, None],
        "one": lambda: jnp.ones((1, 1, 1, 1), jnp.float32),
    }


def boolean(x):
    return x if x.dtype == jnp.bool_ else x != 0


def number(x):
    return x.astype(jnp.int32) if x.dtype == jnp.bool_ else x


def alike(x, y):
    kind = jnp.result_type(number(x), number(y))
    return number(x).astype(kind), number(y).astype(kind)


PAIRWISE = {
    "and": lambda x, y: boolean(x) & boolean(y),
    "or": lambda x, y: boolean(x) | boolean(y),
    "xor": lambda x, y: boolean(x) ^ boolean(y),
    "bits": lambda x, y: number(x) & number(y)
        if number(x).dtype == number(y).dtype == jnp.int32 else boolean(x) & boolean(y),
    "eq": lambda x, y: jnp.equal(*alike(x, y)),
    "ne": lambda x, y: jnp.not_equal(*alike(x, y)),
    "le": lambda x, y: jnp.less_equal(*alike(x, y)),
    "lt": lambda x, y: jnp.less(*alike(x, y)),
    "ge": lambda x, y: jnp.greater_equal(*alike(x, y)),
    "gt": lambda x, y: jnp.greater(*alike(x, y)),
    "add": lambda x, y: jnp.add(*alike(x, y)),
    "sub": lambda x, y: jnp.subtract(*alike(x, y)),
    "mul": lambda x, y: jnp.multiply(*alike(x, y)),
    "max": lambda x, y: jnp.maximum(*alike(x, y)),
    "min": lambda x, y: jnp.minimum(*alike(x, y)),
    "fill -inf": lambda x, y: jnp.where(boolean(x), number(y).astype(jnp.float32), -jnp.inf),
    "fill lowest": lambda x, y: jnp.where(boolean(x), LOW, number(y).astype(jnp.float32)),
    "outer": lambda x, y: jnp.matmul(x.astype(jnp.float32), y.astype(jnp.float32)) > 0
        if x.shape[3] == 1 and y.shape[2] == 1 else boolean(x) & boolean(y),
}  # fmt: skip


def _pad(x, axis):
    """One element less in front, one more of 1 behind, so that the shape stays."""
    if x.shape[axis] == 1:
        return x
    cut = jax.lax.slice_in_dim(x, 1, x.shape[axis], axis=axis)
    widths = [(0, 1) if a == axis else (0, 0) for a in range(4)]
    return jnp.pad(cut, widths, constant_values=1)


def _joined(x, axis):
    cut = jax.lax.slice_in_dim(x, 0, max(1, x.shape[axis] - 2), axis=axis)
    more = jnp.ones_like(jax.lax.slice_in_dim(x, 0, x.shape[axis] - cut.shape[axis], axis=axis))
    return jnp.concatenate([more, cut], axis)


def _over_heads(x):
    spread = jnp.repeat(x[:, :1], H, axis=0)
    return spread.reshape(x.shape[0], H, *x.shape[2:])


SINGLE = {
    "not": lambda x, full: ~boolean(x),
    "zero": lambda x, full: number(x) == 0,
    "float": lambda x, full: number(x).astype(jnp.float32),
    "bf16": lambda x, full: number(x).astype(jnp.bfloat16).astype(jnp.float32),
    "int": lambda x, full: boolean(x).astype(jnp.int32),
    "abs": lambda x, full: jnp.abs(number(x)),
    "neg": lambda x, full: -number(x),
    "one minus": lambda x, full: 1 - number(x),
    "full": lambda x, full: jnp.broadcast_to(x, full),
    "over queries": lambda x, full: jnp.broadcast_to(x, (*x.shape[:2], full[2], x.shape[3])),
    "over keys": lambda x, full: jnp.broadcast_to(x, (*x.shape[:3], full[3])),
    "tiled": lambda x, full: jnp.tile(x, [n if own == 1 else 1 for own, n in zip(x.shape, full, strict=True)]),
    "over heads": lambda x, full: _over_heads(x),
    "transposed": lambda x, full: x.swapaxes(2, 3) if full[2] == full[3] else x,
    "flipped keys": lambda x, full: jnp.flip(x, 3),
    "flipped queries": lambda x, full: jnp.flip(x, 2),
    "padded keys": lambda x, full: _pad(x, 3),
    "padded queries": lambda x, full: _pad(x, 2),
    "joined keys": lambda x, full: _joined(x, 3),
    "joined queries": lambda x, full: _joined(x, 2),
    "summed": lambda x, full: jnp.cumsum(number(x), axis=3),
    "any key": lambda x, full: boolean(x).any(3, keepdims=True),
    "all queries": lambda x, full: boolean(x).all(2, keepdims=True),
    "first": lambda x, full: x[:, :, :1],
    "second row": lambda x, full: x[-1:],
    "every second": lambda x, full: jnp.repeat(x[..., ::2], 2, axis=3)[..., : x.shape[3]],
    "column set": lambda x, full: x.at[:, :, :, 0].set(jnp.ones((), x.dtype)),
    "rolled": lambda x, full: jnp.roll(x, 1, axis=3),
    "chosen": lambda x, full: x[:, :, :, jnp.arange(x.shape[3])[::-1]],
    "tril": lambda x, full: jnp.tril(x, 1),
    "triu": lambda x, full: jnp.triu(x, -1),
    "flat and back": lambda x, full: x.reshape(-1).reshape(x.shape),
    "jitted": lambda x, full: jax.jit(lambda y: jnp.where(boolean(y), y, 1))(x),
    "chunks": lambda x, full: number(x) // 2,
    "signs": lambda x, full: jnp.sign(number(x)),
    "clipped": lambda x, full: jnp.clip(number(x), 0, 1),
}  # fmt: skip

STEP = st.one_of(
    st.tuples(st.sampled_from(sorted(PAIRWISE)), st.integers(0, 30), st.integers(0, 30)),
    st.tuples(st.sampled_from(sorted(SINGLE)), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("number"), st.integers(0, len(NUMBERS) - 1), st.integers(0, 30)),
    st.tuples(st.just("-inf or lowest"), st.integers(0, 1), st.integers(0, 30)),
)


def build(data, leaf_names, steps, sizes, final):
    """Newest arrays are the likeliest operands: index 0 is the newest."""
    constants = leaves(sizes)
    arrays = [data[name] if name in data else constants[name]() for name in leaf_names]
    for name, first, second in steps:
        pick = lambda index: arrays[-1 - index % len(arrays)]  # noqa: E731
        if name in PAIRWISE:
            made = PAIRWISE[name](pick(first), pick(second))
        elif name in SINGLE:
            made = SINGLE[name](pick(first), sizes)
        elif name == "number":
            made = number(pick(second)) * NUMBERS[first]
        else:
            made = jnp.where(boolean(pick(second)), 0.0, (-jnp.inf, LOW)[first]).astype(jnp.float32)
        arrays.append(made)
    return boolean(arrays[-1]) if final == "bool" else number(arrays[-1]).astype(final)


def meaning(array, sizes):
    if array is None:
        return np.ones(sizes, bool), np.zeros(sizes, np.float32)
    array = np.broadcast_to(np.asarray(array), sizes)
    if array.dtype == bool:
        return array, np.zeros(sizes, np.float32)
    with np.errstate(invalid="ignore"):
        visible = array > jnp.finfo(array.dtype).min
    return visible, np.where(visible, array, np.zeros((), array.dtype)).astype(np.float32)


SETTINGS = settings(
    settings.get_profile("few"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@SETTINGS
@example(["constant band"], [("-inf or lowest", 0, 0), ("jitted", 0, 0)], (B, H, 5, 7), "bool", True)
@example(["constant band"], [("number", 0, 0), ("-inf or lowest", 0, 0)], (B, H, 5, 7), "float32", True)
@given(
    leaf_names=st.lists(
        st.sampled_from(sorted(inputs((1, 1, 1, 1), 0)) + sorted(leaves((1, 1, 1, 1)))),
        min_size=1,
        max_size=4,
    ),
    steps=st.lists(STEP, max_size=7),
    sizes=st.sampled_from([(B, H, 5, 7), (B, H, 6, 6)]),
    final=st.sampled_from(["bool", "bool", "float32", "bfloat16"]),
    traced=st.booleans(),
)
def test_means_the_same(leaf_names, steps, sizes, final, traced):
    def run(data):
        with np.errstate(all="ignore"):
            array = build(data, leaf_names, steps, sizes, final)
        mask = structure_of(array, batch=sizes[0], heads=sizes[1], queries=sizes[2], keys=sizes[3])
        return array, mask.to_dense(*sizes[2:])

    first = {name: jnp.asarray(x) for name, x in inputs(sizes, 0).items()}
    if traced:
        closed, shapes = jax.make_jaxpr(run, return_shape=True)(first)
        again = jaxpr_as_fun(closed)
    for seed in SEEDS if traced else SEEDS[:1]:
        data = {name: jnp.asarray(x) for name, x in inputs(sizes, seed).items()}
        if traced:
            results = again(*jax.tree.leaves(data))
            array, dense = results[0], results[1] if shapes[1] is not None else None
        else:
            array, dense = run(data)
        for expected, got in zip(meaning(array, sizes), meaning(dense, sizes), strict=True):
            np.testing.assert_array_equal(got, expected)
