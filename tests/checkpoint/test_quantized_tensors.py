"""Quantised weights that are read in any slices: their parts, and the numbers they stand for."""

import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuport.checkpoint.formats import packed_tensors
from tpuport.checkpoint.formats.packed_tensors import (
    in_memory,
    integer_dtype,
    permute,
    reinterpret,
    unpack,
    unpack_words,
)
from tpuport.checkpoint.formats.weight_tensors import BadWeightError
from tpuport.checkpoint.lazy_tensors import Reader, full_index, transpose
from tpuport.checkpoint.quantized_tensors import QuantizedTensor, group_columns, quantizing
from tpuport.compat.operators.quantized import QuantizedArray
from tpuport.quantization import as_scheme

READER = Reader()
FLOAT32 = np.dtype(np.float32)


@st.composite
def slices(draw, shape):
    """An index of an array of `shape`, with something in it."""
    parts = []
    for size in shape:
        start = draw(st.integers(0, size - 1))
        parts.append(slice(start, draw(st.integers(start + 1, size))))
    return tuple(parts)


@st.composite
def weights(draw):
    """A quantised weight [O, K] of one of the forms that formats have, and an index of it."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    outputs, columns = draw(st.integers(1, 9)), draw(st.integers(1, 12))
    size, block = draw(st.integers(1, columns)), draw(st.integers(1, outputs))
    groups, blocks = -(-columns // size), -(-outputs // block)
    values = in_memory(rng.integers(-8, 8, (outputs, columns)).astype(np.int8))
    order = rng.permutation(columns).astype(np.int32) if draw(st.booleans()) else None
    zero_point = None
    if draw(st.booleans()):
        zero_point = in_memory(rng.integers(-3, 3, (groups, blocks)).astype(np.int8))
    weight = QuantizedTensor(
        (outputs, columns),
        FLOAT32,
        group_columns(values if order is None else permute(values, 1, order), size),
        in_memory(rng.uniform(0.5, 2, (groups, blocks)).astype(np.float32)),
        zero_point,
        None if order is None else in_memory(order),
        output_block=block,
    )
    return weight, draw(slices((outputs, columns)))


def read(tensor, index=None):
    return tensor.read(READER, index or full_index(tensor.shape), tensor.dtype)


@settings(settings.get_profile("few"))
@given(weights())
def test_any_slice_has_the_numbers_that_the_parts_stand_for(example):
    weight, index = example
    parts = {name: jnp.asarray(read(tensor)) for name, tensor in weight.parts.items()}
    array = QuantizedArray(
        parts["values"], parts["scale"], parts.get("zero_point"), parts.get("order"),
        None, weight.output_block, weight.columns, FLOAT32,
    )  # fmt: skip
    np.testing.assert_allclose(read(weight, index), np.asarray(array.dequantize())[index], rtol=1e-6)


@st.composite
def packed(draw):
    """Numbers of a few bits, the integers that hold them along `dim`, and an index of the numbers."""
    bits = draw(st.integers(1, 8))
    dim = draw(st.integers(0, 1))
    size = draw(st.integers(1, 70))
    numbers = np.random.default_rng(draw(st.integers(0, 1000))).integers(0, 1 << bits, (size, 3))
    stream = "".join(f"{number:0{bits}b}"[::-1] for number in numbers[:, 0])
    words = -(-len(stream) // 32)
    columns = []
    for column in range(3):
        stream = "".join(f"{number:0{bits}b}"[::-1] for number in numbers[:, column]).ljust(words * 32, "0")
        columns.append([int(stream[start : start + 32][::-1], 2) for start in range(0, words * 32, 32)])
    integers = np.array(columns, np.uint64).astype(np.uint32).view(np.int32)
    if dim == 0:
        integers = integers.T
    else:
        numbers = numbers.T
    return bits, dim, numbers, np.ascontiguousarray(integers), draw(slices(numbers.shape))


@settings(max_examples=60)
@given(packed(), st.integers(-2, 2), st.sampled_from([2, 10, 1 << 20]))
def test_packed_numbers(example, offset, at_once):
    bits, dim, numbers, integers, index = example
    size = numbers.shape[dim]
    if 32 % bits and integers.shape[dim] == -(-size // (32 // bits)):
        # The integers could also have unused bits.
        with pytest.raises(BadWeightError, match="in two ways"):
            unpack_words(in_memory(integers), dim, bits, np.dtype(np.int16), size, offset)
        return
    lazy = unpack_words(in_memory(integers), dim, bits, np.dtype(np.int16), size, offset)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_tensors, "_NUMBERS_AT_ONCE", at_once)
        np.testing.assert_array_equal(read(lazy, index), numbers[index] + offset)


@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(1, 12), st.integers(1, 12), st.data())
def test_any_slice_of_groups(outputs, columns, size, data):
    weight = np.arange(1, outputs * columns + 1, dtype=np.int32).reshape(outputs, columns)
    groups = -(-columns // size)
    filled = np.zeros((outputs, groups * size), np.int32)
    filled[:, :columns] = weight
    expected = filled.T.reshape(groups, size, outputs)
    grouped = group_columns(in_memory(weight), size)
    index = data.draw(slices(grouped.shape))
    np.testing.assert_array_equal(read(grouped, index), expected[index])


OUTPUTS, COLUMNS = 2048, 4096


def packed_inputs():
    """Integers of four bits as GPTQ packs them, along inputs."""
    words = in_memory(np.ones((COLUMNS // 8, OUTPUTS), np.int32))
    return transpose(unpack_words(words, 0, 4, integer_dtype(4, signed=True), COLUMNS, -8), 0, 1)


def packed_floats():
    """Floats of four bits as NVFP4 has them, two in a byte."""
    stored = in_memory(np.ones((OUTPUTS, COLUMNS // 2), np.uint8))
    return reinterpret(unpack(stored, 1, 4, np.dtype(np.uint8)), jnp.float4_e2m1fn)


@pytest.mark.parametrize("pack", [packed_inputs, packed_floats])
def test_unpacking_takes_no_more_than_a_second_copy(pack):
    grouped = group_columns(pack(), 32)
    tracemalloc.start()
    values = read(grouped)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A number of four bits takes a byte in NumPy.
    assert values.nbytes == OUTPUTS * COLUMNS
    assert peak < 2.2 * values.nbytes


@settings(max_examples=20)
@given(st.data())
def test_segments_that_are_filled_up_to_whole_groups(data):
    """Eight segments of 244 inputs: a group of 128, and one of 116 that is filled up with zeros."""
    outputs, columns, segment = 3, 1952, 244
    weight = np.random.default_rng(0).normal(size=(outputs, columns)).astype(np.float32)
    scheme = as_scheme("int4")
    tensor = quantizing(in_memory(weight), scheme, FLOAT32)
    assert (tensor.segments, tensor.values.shape) == (8, (16, 128, outputs))
    expected = np.zeros_like(weight)
    for start in range(0, columns, segment):
        for group in (slice(start, start + 128), slice(start + 128, start + segment)):
            values, scale = scheme.quantize(weight[:, group], FLOAT32)
            expected[:, group] = values.astype(np.float32) * scale[:, None]
    index = data.draw(slices(tensor.shape))
    np.testing.assert_array_equal(read(tensor, index), expected[index])
    for part in (tensor.values, tensor.scale):
        index = data.draw(slices(part.shape))
        np.testing.assert_array_equal(read(part, index), read(part)[index])
    values, scale = jnp.asarray(read(tensor.values)), jnp.asarray(read(tensor.scale))
    array = QuantizedArray(values, scale, None, None, None, 1, columns, FLOAT32, segments=8)
    np.testing.assert_array_equal(array.dequantize(), expected)
    activations = np.random.default_rng(1).normal(size=(2, columns)).astype(np.float32)
    np.testing.assert_allclose(array.linear(activations), activations @ expected.T, rtol=1e-4, atol=1e-3)


@settings(max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 40), st.integers(1, 16), st.data())
def test_slices_are_quantised_as_the_whole_is(seed, outputs, columns, size, data):
    weight = np.random.default_rng(seed).normal(size=(outputs, columns)).astype(np.float32)
    scheme = as_scheme(f"int4:{size}")
    tensor = quantizing(in_memory(weight), scheme, FLOAT32)
    for part in (tensor.values, tensor.scale):
        index = data.draw(slices(part.shape))
        np.testing.assert_array_equal(read(part, index), read(part)[index])
    # A group at a time, by the scheme itself.
    last = tensor.values.shape[0] - 1
    rest = weight[:, last * size :]
    values, scale = scheme.quantize(rest, FLOAT32)
    np.testing.assert_array_equal(read(tensor.values)[last, : rest.shape[1]].T, values)
    np.testing.assert_array_equal(read(tensor.scale)[last], scale)
