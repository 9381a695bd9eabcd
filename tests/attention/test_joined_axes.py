"""Axes joined for a product of matrices and split afterwards: the same numbers, computed with the axes apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpuport.attention.provenance.joined_axes import reshape
from tpuport.compat.jaxprs import walk_equations, without_dead_code

B, H, N, D = 2, 4, 6, 8
KEY = jax.random.key(0)
X = jax.random.normal(KEY, (B, H, N, D))


def product_shapes(function):
    """The shapes of the products of matrices that a traced function computes."""
    program = without_dead_code(jax.make_jaxpr(function)(X))
    equations = [visit.equation for visit in walk_equations(program)]
    return [item.outvars[0].aval.shape for item in equations if item.primitive.name == "dot_general"]


def check(attend, shapes):
    """Compare a function of a joined array whose result is split with the same without rewriting."""
    expected = attend(X, jnp.reshape)
    np.testing.assert_allclose(attend(X, reshape), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda x: attend(x, reshape))(X), expected, rtol=1e-5, atol=1e-6)
    assert product_shapes(lambda x: attend(x, reshape)) == shapes


def join(x):
    return x.reshape(B * H, *x.shape[2:])


def weights_of(q, k):
    return jax.nn.softmax(q @ k.swapaxes(1, 2) / D**0.5, axis=-1)


def by_hand(x, split):
    q, k, v = join(x), join(x + 1), join(2 * x)
    return split(weights_of(q, k) @ v, (B, H, N, D))


def split_by_a_guessed_size(x, split):
    return split(weights_of(join(x), join(x)) @ join(x), (B, -1, N, D))


def split_for_a_mask(x, split):
    scores = split(join(x) @ join(x).swapaxes(1, 2), (B, H, N, N)) + jnp.tril(jnp.ones((N, N)))
    weights = jax.nn.softmax(scores.reshape(B * H, N, N), -1)
    return split(weights @ join(x), (B, H, N, D))


def with_a_mask_that_is_repeated_for_each_head(x, split):
    mask = jnp.repeat(jnp.arange(B * N).reshape(B, 1, N), H, axis=0)
    weights = jax.nn.softmax(join(x) @ join(x).swapaxes(1, 2) + mask, -1)
    return split(weights @ join(x), (B, H, N, D))


def split_among_others(x, split):
    """As torch's multi_head_attention_forward: the sequence first, and heads joined with the batch."""
    q, k, v = (
        array.transpose(2, 0, 1, 3).reshape(N, B * H, D).transpose(1, 0, 2) for array in (x, x + 1, 2 * x)
    )
    return split((weights_of(q, k) @ v).transpose(1, 0, 2), (N * B, H * D))


def with_a_further_key(x, split):
    """As `add_zero_attn`: a key of zeros beside the others."""
    k, v = (jnp.concatenate([join(array), jnp.zeros((B * H, 1, D))], axis=1) for array in (x, 2 * x))
    return split((weights_of(join(x), k) @ v)[:, 1:], (B, H, N - 1, D))


@pytest.mark.parametrize(
    "attend",
    [
        by_hand, split_by_a_guessed_size, split_for_a_mask, with_a_mask_that_is_repeated_for_each_head,
        split_among_others,
    ],
    ids=lambda function: function.__name__,
)  # fmt: skip
def test_heads_are_computed_apart(attend):
    check(attend, [(B, H, N, N), (B, H, N, D)])


def test_a_further_key_is_joined_with_each_head():
    check(with_a_further_key, [(B, H, N, N + 1), (B, H, N, D)])


def test_three_axes_that_were_joined_are_split_where_the_result_is():
    windows = jax.random.normal(KEY, (B, 3, H, N, D))

    def attend(x, split):
        joined = x.reshape(-1, N, D)
        return split(weights_of(joined, joined) @ joined, x.shape)

    np.testing.assert_allclose(
        jax.jit(lambda x: attend(x, reshape))(windows), attend(windows, jnp.reshape), rtol=1e-5, atol=1e-6
    )
    program = without_dead_code(jax.make_jaxpr(lambda x: attend(x, reshape))(windows))
    assert "[2,3,4,6,6]" in str(program)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: reshape(join(x) @ jnp.ones((D, D)), (B, H, N, D)),
        lambda x: reshape(join(x) * 2, (B, H, N, D)),
        lambda x: reshape(weights_of(join(x), join(x)), (H, B, N, N)),
        lambda x: reshape(weights_of(join(x), join(x)), (B * H * N, N)),
    ],
    ids=["no product apart", "no product", "other boundaries", "joined further"],
)
def test_what_splits_no_heads_is_a_plain_reshape(function):
    plain = [shape for shape in product_shapes(function) if len(shape) > 3]
    assert not plain
