"""Weights in few bits, against loops over their numbers in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuport.compat.operators.quantized import QuantizedArray
from tpuport.errors import PortError

LEVELS = tuple(np.linspace(-1, 1, 16).tolist())


@st.composite
def quantized_arrays(draw):
    """A weight in few bits, and the numbers that it stands for, computed one by one."""
    groups, inputs, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 6))
    columns = draw(st.integers((groups - 1) * inputs + 1, groups * inputs))
    block = draw(st.integers(1, outputs))
    blocks = -(-outputs // block)
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    kind = draw(st.sampled_from(["int8", "int4", "uint4", "float8_e4m3fn", "levels"]))
    dtype = jnp.dtype("uint4" if kind == "levels" else kind)
    low, high = (-8, 8) if kind in ("int4", "float8_e4m3fn") else (0, 16)
    if kind == "int8":
        low, high = -128, 128
    values = rng.integers(low, high, (groups, inputs, outputs)).astype(dtype)
    scale = rng.uniform(0.01, 2, (groups, blocks)).astype(draw(st.sampled_from([np.float32, jnp.bfloat16])))
    zero_point = None
    if kind not in ("levels", "float8_e4m3fn") and draw(st.booleans()):
        zero_point = rng.integers(0, 8, (groups, blocks)).astype(dtype)
    # Factors that all groups share, or none.
    outer_scale = rng.uniform(0.5, 2, (1, blocks)).astype(np.float16) if draw(st.booleans()) else None
    minimum = outer_minimum = None
    if draw(st.booleans()):
        minimum = rng.integers(0, 8, (groups, blocks)).astype(jnp.dtype("uint4"))
        outer_minimum = rng.uniform(0.5, 2, (groups, blocks)).astype(np.float16)
    order = rng.permutation(columns).astype(np.int32) if draw(st.booleans()) else None
    weight = np.zeros((outputs, columns))
    for position in range(columns):
        column = position if order is None else order[position]
        group, item = divmod(position, inputs)
        for output in range(outputs):
            number = float(values[group, item, output])
            if kind == "levels":
                number = LEVELS[int(number)]
            if zero_point is not None:
                number -= float(zero_point[group, output // block])
            number *= float(scale[group, output // block])
            if outer_scale is not None:
                number *= float(outer_scale[0, output // block])
            if minimum is not None:
                number -= float(minimum[group, output // block]) * float(
                    outer_minimum[group, output // block]
                )
            weight[output, column] = number
    array = QuantizedArray(
        jnp.asarray(values),
        jnp.asarray(scale),
        None if zero_point is None else jnp.asarray(zero_point),
        None if order is None else jnp.asarray(order),
        LEVELS if kind == "levels" else None,
        block,
        columns,
        np.dtype(np.float32),
        outer_scale=None if outer_scale is None else jnp.asarray(outer_scale),
        minimum=None if minimum is None else jnp.asarray(minimum),
        outer_minimum=None if outer_minimum is None else jnp.asarray(outer_minimum),
    )
    return array, weight


@settings(settings.get_profile("few"))
@given(quantized_arrays())
def test_the_numbers_are_those_of_the_formula(example):
    array, weight = example
    np.testing.assert_allclose(np.asarray(array.dequantize()), weight, rtol=1e-6, atol=1e-7)


@settings(settings.get_profile("few"))
@given(quantized_arrays(), st.integers(0, 3))
def test_a_product_is_that_of_the_numbers(example, leading):
    array, weight = example
    rng = np.random.default_rng(0)
    activations = rng.normal(size=(*(2,) * leading, weight.shape[1])).astype(np.float32)
    product = np.asarray(array.linear(jnp.asarray(activations)))
    expected = activations.astype(np.float64) @ weight.T
    assert product.shape == expected.shape
    np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-4)


def test_a_scaled_product_is_as_near_to_the_numbers_as_one_with_rounded_weights():
    """In bfloat16, in which a weight that is a value times a scale is rounded."""
    rng = np.random.default_rng(0)
    values, scale = rng.integers(-127, 128, (1, 512, 64)), rng.uniform(0.001, 0.01, (1, 64))
    array = QuantizedArray(
        jnp.asarray(values, jnp.int8), jnp.asarray(scale, jnp.float32), None, None, None, 1, 512,
        jnp.dtype(jnp.bfloat16),
    )  # fmt: skip
    activations = jnp.asarray(rng.normal(size=(256, 512)), jnp.bfloat16)
    exact = np.asarray(activations, np.float64) @ (values[0] * np.asarray(array.scale, np.float64))
    rounded = jnp.einsum("bi,oi->bo", activations, array.dequantize())

    def error(product):
        assert product.dtype == jnp.bfloat16
        return np.sqrt(np.mean((np.asarray(product, np.float64) - exact) ** 2))

    assert error(array.linear(activations)) < 1.05 * error(rounded)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("leading", [(), (4,), (2, 3)])
def test_a_product_of_integers_is_exact(leading, dtype):
    rng = np.random.default_rng(1)
    columns, outputs = 40, 6
    values = rng.integers(-127, 128, (1, columns, outputs)).astype(np.int8)
    scale = rng.uniform(0.01, 2, (1, outputs)).astype(np.float32)
    array = QuantizedArray(
        jnp.asarray(values), jnp.asarray(scale), None, None, None, 1, columns, np.dtype(dtype),
        rounds_activations=True,
    )  # fmt: skip
    activations = jnp.asarray(rng.normal(size=(*leading, columns)), dtype).at[..., 0].set(-9)
    numbers = np.asarray(activations, np.float64)
    step = np.abs(numbers).max(-1, keepdims=True) / 127
    rounded = np.rint(numbers / step) * step
    product = array.linear(activations)
    assert product.dtype == dtype
    assert np.abs(rounded - numbers).max() > 0.01
    expected = rounded @ (values[0] * scale.astype(np.float64))
    tolerance = 1e-5 if dtype == jnp.float32 else 2**-8
    np.testing.assert_allclose(np.asarray(product, np.float64), expected, rtol=tolerance, atol=1e-3)


def test_a_product_of_integers_has_no_gradient():
    array = QuantizedArray(
        jnp.ones((1, 4, 2), jnp.int8), jnp.ones((1, 2)), None, None, None, 1, 4, np.dtype(np.float32),
        rounds_activations=True,
    )  # fmt: skip
    with pytest.raises(PortError, match="no gradients"):
        jax.grad(lambda rows: array.linear(rows).sum())(jnp.ones((3, 4)))


def test_rows_of_zeros_and_of_what_is_not_finite():
    values = jnp.ones((1, 4, 2), jnp.int8)
    array = QuantizedArray(
        values, jnp.ones((1, 2)), None, None, None, 1, 4, np.dtype(np.float32), rounds_activations=True
    )
    rows = jnp.zeros((3, 4)).at[1, 2].set(jnp.nan).at[2].set(1)
    product = np.asarray(array.linear(rows))
    assert (product[0] == 0).all()
    assert not np.isfinite(product[1]).any()
    np.testing.assert_allclose(product[2], 4, rtol=1e-6)


@pytest.mark.parametrize("scale_dtype", [jnp.bfloat16, np.float32])
def test_a_number_in_bfloat16_is_rounded_once(scale_dtype):
    values = np.arange(-128, 128, dtype=np.int8).reshape(1, 1, -1)
    scale = np.linspace(0.001, 3, 256).reshape(1, -1).astype(scale_dtype)
    array = QuantizedArray(
        jnp.asarray(values), jnp.asarray(scale), None, None, None, 1, 1, jnp.dtype(jnp.bfloat16)
    )
    exact = values[0, 0].astype(np.float64) * scale[0].astype(np.float64)
    np.testing.assert_array_equal(np.asarray(array.dequantize())[:, 0], exact.astype(jnp.bfloat16))


def test_no_wide_zero_points_in_bfloat16():
    """Differences of bytes need nine bits, and bfloat16 has eight."""
    values = jnp.full((1, 1, 1), 127, jnp.int8)
    zero_point = jnp.full((1, 1), -128, jnp.int8)
    scale = jnp.ones((1, 1), jnp.bfloat16)
    array = QuantizedArray(values, scale, zero_point, None, None, 1, 1, jnp.dtype(jnp.bfloat16))
    # 255 needs all bits of bfloat16.
    assert float(jax.jit(QuantizedArray.dequantize)(array)[0, 0]) == 255


def test_gradients_of_experts_in_mxfp4_are_those_of_the_wide_weights():
    rng = np.random.default_rng(0)
    numbers = rng.choice([0, 0.5, 1, 1.5, 2, 3, 4, 6], (2, 2, 32, 5)) * rng.choice([-1, 1], (2, 2, 32, 5))
    scale = 2.0 ** rng.integers(-3, 3, (2, 2, 5))
    array = QuantizedArray(
        jnp.asarray(numbers, jnp.float4_e2m1fn), jnp.asarray(scale, jnp.float8_e8m0fnu), None, None, None, 1, 64,
        np.dtype(np.float32),
    )  # fmt: skip
    assert array.is_mxfp4
    wide = (numbers * scale[:, :, None]).reshape(2, 64, 5)
    rows = rng.normal(size=(3, 64)).astype(np.float32)
    value, gradient = jax.value_and_grad(lambda x: array.expert_linear(jnp.int32(1), x).sum())(rows)
    np.testing.assert_allclose(value, (rows @ wide[1]).sum(), rtol=1e-5)
    np.testing.assert_allclose(gradient, np.broadcast_to(wide[1].sum(1), (3, 64)), rtol=1e-5)
