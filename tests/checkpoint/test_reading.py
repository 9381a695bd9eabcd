"""Reading bytes: alignment, casts, integers, files that end early."""

import numpy as np
import pytest
from jax import numpy as jnp

from tpuport import PortError
from tpuport.checkpoint.lazy_tensors import Reader, aligned_empty, cast_into, fill_bounds, full_index


@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (5, 7)])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.bool_])
def test_aligned_empty(shape, dtype):
    array = aligned_empty(shape, np.dtype(dtype))
    assert array.shape == shape
    assert array.dtype == dtype
    assert array.ctypes.data % 64 == 0 or array.size == 0
    assert array.flags.c_contiguous


def test_indices():
    assert full_index((2, 3)) == (slice(0, 2), slice(0, 3))
    assert fill_bounds((slice(None), slice(1, None)), (2, 3)) == (slice(0, 2), slice(1, 3))


def test_integers_must_fit():
    out = np.zeros(2, np.int32)
    cast_into(out, np.array([1, -5], np.int64), "steps")
    np.testing.assert_array_equal(out, [1, -5])
    with pytest.raises(PortError, match="steps"):
        cast_into(out, np.array([1, 2**40]), "steps")


def test_a_scalar_and_a_file_that_ends(tmp_path):
    path = tmp_path / "bytes"
    path.write_bytes(np.array([1.5, 2.5], np.float32).tobytes())
    scalar, pair = np.zeros((), np.float64), np.zeros(2, np.float32)
    with Reader() as reader:
        reader.read_slice(path, 4, (), np.dtype(np.float32), (), scalar)
        assert scalar == 2.5
        with pytest.raises(PortError, match="ended"):
            reader.read_slice(path, 4, (2,), np.dtype(np.float32), (slice(0, 2),), pair)


def test_remember_keeps_the_last_result():
    reader, calls, first, second = Reader(), [], object(), object()
    for key in (first, first, second, first):
        assert reader.remember(key, lambda: calls.append(1) or len(calls)) == len(calls)
    assert len(calls) == 3
