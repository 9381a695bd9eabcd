"""Rounding to few bits, against its definition."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from tpuport import PortError
from tpuport.quantization import Scheme, as_scheme

WEIGHTS = hypothesis_numpy.arrays(
    np.float32, st.tuples(st.integers(1, 3), st.integers(1, 9)), elements=st.floats(-100, 100, width=32)
)


@given(WEIGHTS, st.sampled_from([np.float32, jnp.bfloat16]))
def test_integers_are_the_nearest_multiples_of_the_scale(weights, scale_dtype):
    values, scale = as_scheme("int8").quantize(weights, scale_dtype)
    assert values.dtype == np.int8
    assert scale.dtype == scale_dtype
    step = scale.astype(np.float64)[:, None]
    error = np.abs(values.astype(np.float64) * step - weights)
    # A scale in bfloat16 may be smaller than its definition by one part in 256, which clips the largest weight.
    rounding = 0.5 + (0.6 if scale_dtype != np.float32 else 1e-4)
    assert (error <= step * rounding + 1e-30).all()


@given(WEIGHTS)
def test_four_bits_clip_at_most_half_a_step_more(weights):
    values, scale = as_scheme("int4").quantize(weights, np.float32)
    step = scale.astype(np.float64)[:, None]
    error = np.abs(values.astype(np.float64) * step - weights)
    assert (error <= step * 0.5001 + 1e-30).all()
    assert values.dtype == jnp.int4


def test_fp8_keeps_three_bits_of_each_number():
    weights = np.geomspace(1e-3, 1, 64, dtype=np.float32)[None]
    values, scale = as_scheme("fp8").quantize(weights, np.float32)
    restored = values.astype(np.float64) * scale[:, None]
    np.testing.assert_allclose(restored, weights, rtol=1 / 16)


def test_zeros_stay_zeros():
    values, scale = as_scheme("int8").quantize(np.zeros((2, 4), np.float32), np.float32)
    assert not values.any()
    assert not scale.any()


@pytest.mark.parametrize("weight", [np.inf, np.nan])
def test_a_weight_that_is_not_finite_is_refused(weight):
    with pytest.raises(PortError, match="not finite"):
        as_scheme("int8").quantize(np.array([[1, weight]], np.float32), np.float32)


@pytest.mark.parametrize(
    ("name", "columns", "grouping"),
    [
        ("int8", 11008, (11008, 1)),
        ("int4", 4096, (128, 1)),
        # Eight devices have 1,376 inputs of Llama's feed-forward each: eleven groups, the last with zeros.
        ("int4", 11008, (128, 8)),
        ("int4", 2880, (128, 8)),
        # Zeros would take more than the scales of smaller groups.
        ("int4", 768, (32, 1)),
        # Four devices, or two.
        ("int4", 1408, (32, 1)),
        ("int4", 448, (32, 1)),
        ("int4", 96, (96, 1)),
        ("int4", 200, (128, 1)),
        ("int4:64", 11008, (64, 1)),
        ("int8:16", 8, (8, 1)),
    ],
)
def test_inputs_that_share_a_scale(name, columns, grouping):
    assert as_scheme(name).grouping(columns) == grouping


def test_inputs_that_no_axis_divides():
    assert as_scheme("int4").grouping(768, devices=1) == (128, 1)


@pytest.mark.parametrize("name", ["int3", "int4:0", "int4:", "", "INT8", 8, True, "int8;", None])
def test_anything_else_is_refused(name):
    with pytest.raises(PortError, match="not a quantisation scheme") as caught:
        as_scheme(name)
    assert "'int8', 'int4', 'fp8'" in caught.value.fix


def test_a_scheme_is_itself():
    assert isinstance(as_scheme(as_scheme("int8")), Scheme)
