"""Products of few rows in integers, against float64."""

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tpuport
from tpuport import compat
from tpuport.checkpoint.formats.ggml_blocks import quantized_tensor
from tpuport.checkpoint.formats.packed_tensors import in_memory, read_whole
from tpuport.compat.digit_products import multiply_groups, split_digits
from tpuport.compat.operators.quantized import QuantizedArray

# As in the programs that call it: one by one, its operations take several times as long to compile.
multiply = jax.jit(multiply_groups, static_argnums=(4, 5))

# What an activation may lose: less than half of the last of 24 bits of the largest in its group.
ROUNDING = 2.0**-24


def rows_of(count, groups=3, inputs=32, dtype=np.float32):
    """Rows [R, G, I] whose numbers differ by orders of magnitude, with an outlier as language models have them."""
    rng = np.random.default_rng(count)
    rows = rng.normal(size=(count, groups, inputs)) * 10.0 ** rng.integers(-4, 3, (count, groups, inputs))
    rows[:, 0, 5] = -3e4
    return rows.astype(dtype)


@pytest.mark.parametrize("digits", [3, 4])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16])
def test_digits_add_up_to_the_numbers(dtype, digits):
    rows = rows_of(4, dtype=dtype)
    split, units = jax.jit(split_digits, static_argnums=1)(jnp.asarray(rows), digits)
    assert {digit.dtype for digit in split} == {jnp.dtype(jnp.int8)}
    places, units = np.asarray(split, np.float64), np.asarray(units, np.float64)
    numbers = rows.astype(np.float64)
    largest = np.abs(numbers).max(-1, keepdims=True)
    assert (np.abs((places * units[..., None]).sum(0) - numbers) <= 2 * ROUNDING * largest).all()


@pytest.mark.parametrize(
    ("rows", "joined"),
    [(1, 2), (5, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 1), (5, 2)))],
)
@pytest.mark.parametrize("values_dtype", [jnp.int4, jnp.uint4, jnp.int8])
@pytest.mark.parametrize("shift_outputs", [None, 1, 6])
def test_products_of_groups(rows, values_dtype, shift_outputs, joined):
    rng = np.random.default_rng(3)
    limits = jnp.iinfo(values_dtype)
    values, scale = rng.integers(limits.min, limits.max + 1, (4, 32, 6)), rng.uniform(0.5, 2, (4, 6))
    shift = None
    if shift_outputs is not None:
        shift = rng.integers(limits.min, limits.max + 1, (4, shift_outputs))
    activations = rows_of(rows, groups=4)
    product = multiply(
        jnp.asarray(activations), jnp.asarray(values, values_dtype), jnp.asarray(scale, jnp.float32),
        None if shift is None else jnp.asarray(shift, jnp.int32), 3, joined,
    )  # fmt: skip
    weights = (values - (0 if shift is None else shift[:, None])) * scale[:, None]
    expected = np.einsum("rgi,gio->ro", activations.astype(np.float64), weights)
    # The sums are of float32 too.
    magnitudes = np.einsum("rg,go->ro", np.abs(activations).max(-1), np.abs(weights).sum(1))
    assert product.dtype == jnp.float32
    assert (np.abs(np.asarray(product, np.float64) - expected) <= 4 * ROUNDING * magnitudes).all()


@pytest.mark.parametrize("joined", [1, 2])
@pytest.mark.parametrize("outputs", [1, 6])
def test_products_of_groups_with_minima(outputs, joined):
    rng = np.random.default_rng(4)
    values, scale = rng.integers(0, 16, (4, 32, 6)), rng.uniform(0.5, 2, (4, 6))
    minimum = rng.uniform(0, 20, (4, outputs))
    activations = rows_of(3, groups=4)
    product = multiply(
        jnp.asarray(activations), jnp.asarray(values, jnp.uint4), jnp.asarray(scale, jnp.float32), None, 3, joined,
        jnp.asarray(minimum, jnp.float32),
    )  # fmt: skip
    weights = values * scale[:, None] - minimum[:, None]
    expected = np.einsum("rgi,gio->ro", activations.astype(np.float64), weights)
    terms = (values * scale[:, None]).sum(1) + 32 * minimum
    magnitudes = np.einsum("rg,go->ro", np.abs(activations).max(-1), terms)
    assert (np.abs(np.asarray(product, np.float64) - expected) <= 4 * ROUNDING * magnitudes).all()


def test_zeros_and_numbers_that_are_not_finite():
    rows = np.zeros((4, 2, 8), np.float32)
    rows[1, 0, 2], rows[2, 1, 3], rows[3] = np.nan, np.inf, 1
    values, scale = jnp.ones((2, 8, 3), jnp.int4), jnp.ones((2, 1))
    products = np.asarray(multiply(jnp.asarray(rows), values, scale, None, 3))
    assert (products[0] == 0).all()
    assert not np.isfinite(products[1:3]).any()
    np.testing.assert_allclose(products[3], 16, rtol=1e-6)


def int4_weight(dtype=np.float32, inputs=64):
    """Four groups with zero points and factors that groups share, and its numbers [O, K] in float64."""
    rng = np.random.default_rng(5)
    values, zero_point = rng.integers(-8, 8, (4, inputs, 6)), rng.integers(-7, 9, (4, 3))
    scale, outer_scale = rng.integers(1, 64, (4, 3)), rng.uniform(0.001, 0.01, (2, 3)).astype(np.float16)
    array = QuantizedArray(
        jnp.asarray(values, jnp.int4), jnp.asarray(scale, jnp.uint8), jnp.asarray(zero_point, jnp.int16), None, None,
        2, 4 * inputs, np.dtype(dtype), outer_scale=jnp.asarray(outer_scale),
    )  # fmt: skip
    scales = np.repeat(scale * np.repeat(outer_scale.astype(np.float64), 2, 0), 2, 1)
    numbers = (values - np.repeat(zero_point, 2, 1)[:, None]) * scales[:, None]
    return array, numbers.reshape(-1, 6).T


@pytest.mark.parametrize("leading", [pytest.param((), marks=pytest.mark.slow), (1,), (2, 3)])
def test_a_weight_with_zero_points(leading):
    array, numbers = int4_weight()
    activations = np.random.default_rng(2).normal(size=(*leading, 256)).astype(np.float32)
    product = jax.jit(array.multiply_digits, static_argnums=1)(activations.reshape(*leading, 4, 64), 1)
    expected = activations.astype(np.float64) @ numbers.T
    assert product.shape == expected.shape
    np.testing.assert_allclose(product, expected, rtol=1e-5, atol=2e-5)


def test_a_product_in_bfloat16_is_rounded_once():
    """As near to the numbers as one in float32 that is rounded at the end; a weight that is rounded is not."""
    array, numbers = int4_weight(jnp.bfloat16)
    rows = jnp.asarray(np.random.default_rng(2).normal(size=(8, 256)), jnp.bfloat16)
    product = jax.jit(array.multiply_digits, static_argnums=1)(rows.reshape(8, 4, 64), 2)
    exact = np.asarray(rows, np.float64) @ numbers.T
    assert product.dtype == jnp.bfloat16
    # Half of the last of eight bits.
    np.testing.assert_allclose(np.asarray(product, np.float64), exact, rtol=2**-8, atol=1e-4)


@pytest.fixture
def on_tpu(monkeypatch):
    """Let this machine run what a TPU would."""

    def run_tpu_branch(*operands, tpu, default):
        return tpu(*operands)

    monkeypatch.setattr(jax.lax, "platform_dependent", run_tpu_branch)


def test_few_rows_have_the_gradient_of_the_numbers(on_tpu):
    array, numbers = int4_weight()
    activations = jnp.asarray(np.random.default_rng(4).normal(size=(3, 256)), jnp.float32)
    cotangent = np.random.default_rng(5).normal(size=(3, 6)).astype(np.float32)
    gradient = jax.jit(jax.grad(lambda rows: jnp.sum(array.linear(rows) * cotangent)))(activations)
    np.testing.assert_allclose(gradient, cotangent @ numbers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "rows", "in_integers"), [(64, 1, 1), (64, 8, 1), (64, 9, 0), (32, 4, 1), (32, 5, 0)]
)
def test_a_tpu_multiplies_few_rows_in_integers(inputs, rows, in_integers, on_tpu):
    array, numbers = int4_weight(inputs=inputs)
    program = str(jax.make_jaxpr(array.linear)(jnp.zeros((rows, 4 * inputs))))
    assert program.count("preferred_element_type=int32") == in_integers
    random = np.random.default_rng(6).normal(size=(rows, 4 * inputs)).astype(np.float32)
    np.testing.assert_allclose(jax.jit(array.linear)(random), random @ numbers.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "in_integers"),
    [
        ("Q4_K", 1),
        ("IQ4_XS", 0),
        *(pytest.param(kind, 1, marks=pytest.mark.slow) for kind in ("Q5_K", "Q6_K")),
    ],
)
def test_blocks_of_a_gguf_file_are_multiplied_in_integers(kind, in_integers, on_tpu):
    """But for those whose values are the indices of other numbers."""
    array, numbers = gguf_weight(kind)
    row = np.random.default_rng(6).normal(size=512).astype(np.float32)
    program = str(jax.make_jaxpr(array.linear)(jnp.asarray(row)))
    assert program.count("preferred_element_type=int32") == in_integers
    np.testing.assert_allclose(jax.jit(array.linear)(row), row @ numbers.T, rtol=1e-4, atol=1e-4)


def gguf_weight(kind):
    """A weight [6, 512] of random blocks, and its numbers by the gguf package."""
    inputs, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = np.random.default_rng(7).integers(0, 256, (6, 512 // inputs, size), dtype=np.uint8)
    # Wherever a type has its factors: at most 0.05, as sixteen bits.
    blocks[..., [0, 1, 2, 3, -2, -1]] = 0x20
    blocks = blocks.reshape(6, -1)
    source = quantized_tensor(in_memory(blocks), kind, np.dtype(np.float32))
    parts = {name: jnp.asarray(read_whole(tensor)) for name, tensor in source.parts.items()}
    array = QuantizedArray(
        **parts, zero_point=None, order=None, levels=source.levels, output_block=1, columns=512,
        dtype=np.dtype(np.float32),
    )  # fmt: skip
    return array, gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind])


@pytest.mark.parametrize(("tp", "product"), [(1, "i8[1,128,6]"), (2, "i8[2,64,6]"), (4, None)])
def test_a_mesh_divides_groups_that_are_joined(tp, product, on_tpu):
    """Four groups of 32 would fill a matrix unit; no weight moves to another device for that."""
    array, _ = int4_weight(inputs=32)
    with compat.operators_on_mesh(tpuport.create_mesh(tp=tp, devices=jax.devices()[:tp])):
        program = jax.make_jaxpr(lambda weight: weight.linear(jnp.zeros(128)))(array)
    if product is None:
        assert "int32" not in str(program)
    else:
        assert product in str(program)
