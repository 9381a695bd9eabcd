"""The kernel for experts in MXFP4, interpreted, against float64."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tpuport.compat.float4_products import multiply_float4

# By the four bits of each.
FLOATS = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
# Less than half of the last of 24 bits, as in `test_digit_products`.
ROUNDING = 2.0**-24


def weights_of(groups, outputs, seed=0):
    """Three experts with scales that differ by orders of magnitude, and their numbers [X, K, O]."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 16, (3, groups, 32, outputs)).astype(np.uint8)
    exponents = rng.integers(100, 150, (3, groups, outputs)).astype(np.uint8)
    numbers = FLOATS[values] * 2.0 ** (exponents.astype(np.int64) - 127)[:, :, None]
    scale = jnp.asarray(exponents.view(ml_dtypes.float8_e8m0fnu))
    # XLA for the CPU crashes on some reinterpretations of floats of four bits.
    return jnp.asarray(values, jnp.uint4), scale, numbers.reshape(3, -1, outputs)


@functools.partial(jax.jit, static_argnames="digits")
def product(rows, values, scale, expert, digits=3):
    return multiply_float4(rows, values, scale, expert, digits, interpret=True)


@pytest.mark.parametrize(
    ("rows", "groups", "unused", "outputs", "digits", "dtype"),
    [
        pytest.param(1, 3, 0, 64, 3, jnp.bfloat16, id="less than a chunk"),
        pytest.param(1, 30, 2, 64, 3, jnp.bfloat16, id="scales that are not used"),
        pytest.param(5, 33, 0, 130, 4, np.float32, id="a round and a group"),
        # Of the size that GPT-OSS has; a round and a group take every branch too.
        pytest.param(2, 90, 6, 2880, 3, np.float32, id="several blocks", marks=pytest.mark.slow),
    ],
)
def test_products_of_an_expert(rows, groups, unused, outputs, digits, dtype):
    values, scale, numbers = weights_of(groups, outputs)
    scale = jnp.pad(scale, [(0, 0), (0, unused), (0, 0)], constant_values=np.nan)
    rng = np.random.default_rng(rows)
    shape = (rows, 32 * groups)
    activations = (rng.normal(size=shape) * 10.0 ** rng.integers(-4, 3, shape)).astype(dtype)
    for expert in (0, 2):
        actual = np.asarray(product(activations, values, scale, np.int32(expert), digits))
        assert actual.dtype == np.float32
        assert actual.shape == (rows, outputs)
        expected = activations.astype(np.float64) @ numbers[expert]
        largest = np.abs(activations.astype(np.float64)).reshape(rows, groups, 32).max(-1).repeat(32, -1)
        assert (np.abs(actual - expected) <= 4 * ROUNDING * largest @ np.abs(numbers[expert])).all()


def test_zeros_and_numbers_that_are_not_finite():
    values, scale, numbers = weights_of(3, 64)
    rows = np.zeros((4, 96), np.float32)
    rows[1, 3], rows[2, 90], rows[3] = np.nan, np.inf, 1
    products = np.asarray(product(rows, values, scale, np.int32(0)))
    assert (products[0] == 0).all()
    assert not np.isfinite(products[1:3]).any()
    errors = np.abs(products[3] - numbers[0].sum(0))
    assert (errors <= 4 * ROUNDING * np.abs(numbers[0]).sum(0)).all()
