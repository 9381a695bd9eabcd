"""Lazy tensors against torch: any recipe of the functions they know, any slice, any dtype; and reading bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import numpy as jnp

from tpuport import PortError
from tpuport.checkpoint import lazy_tensors
from tpuport.checkpoint.lazy_tensors import (
    NotSliceable,
    Reader,
    aligned_empty,
    cast_into,
    fill_bounds,
    full_index,
)
from tpuport.checkpoint.safetensors_files import read_header


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Tensors on disk beside the same in memory: 12 matrices of one shape."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    tensors = {f"t{i:02}": torch.randn(6, 10) for i in range(12)}
    path = tmp_path_factory.mktemp("lazy") / "model.safetensors"
    save_file(tensors, path)
    stored = read_header(path)
    return [(stored[name], tensor) for name, tensor in tensors.items()]


def merged(values):
    """A mixture of experts as it is loaded: lists stacked, the two stacks joined, sides exchanged."""
    first, second = torch.stack(values[:3], dim=0), torch.stack(values[3:6], dim=0)
    return torch.transpose(torch.cat([first, second], dim=1), dim0=1, dim1=2).contiguous()


RECIPES = {
    "plain": lambda values: values[0],
    "merged": merged,
    "stack inside": lambda values: torch.stack(values[:4], dim=1),
    "cat last": lambda values: torch.cat(values[:3], dim=-1),
    "chunk": lambda values: torch.chunk(torch.cat(values[:2], dim=0), 3, dim=0)[1],
    "split": lambda values: torch.split(values[0], [3, 2, 5], dim=1)[2],
    "split even": lambda values: torch.split(values[0], 4, dim=0)[1],
    "squeeze": lambda values: torch.chunk(torch.stack(values[:3]), 3, dim=0)[2].squeeze(0),
    "scalar steps": lambda values: torch.transpose(torch.split(merged(values), 1, dim=0)[0], 0, 2),
}


@pytest.mark.parametrize("recipe", RECIPES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_slices_equal_torch(recipe, data, pairs):
    make = RECIPES[recipe]
    lazy, real = make([lazy for lazy, _ in pairs]), make([real for _, real in pairs])
    assert lazy.shape == tuple(real.shape)
    assert [lazy.size(i) for i in range(real.ndim)] == list(real.shape)
    index = tuple(
        slice(*sorted((data.draw(st.integers(0, size)), data.draw(st.integers(0, size)))))
        for size in real.shape
    )
    dtype = data.draw(st.sampled_from([np.dtype(np.float32), np.dtype(np.float16)]))
    out = aligned_empty(tuple(part.stop - part.start for part in index), dtype)
    read = []
    with Reader(read.append) as reader:
        lazy.read_into(reader, index, out)
    np.testing.assert_array_equal(out, real[index].numpy().astype(dtype))
    assert sum(read) == out.size * 4


@pytest.mark.parametrize("page", [1, 8, 4096])
@pytest.mark.parametrize("block", [16, 64, 1 << 20])
def test_every_way_of_reading_a_slice_gives_the_same(page, block, pairs, monkeypatch):
    monkeypatch.setattr(lazy_tensors, "PAGE_BYTES", page)
    monkeypatch.setattr(lazy_tensors, "BLOCK_BYTES", block)
    lazy, real = merged([lazy for lazy, _ in pairs]), merged([real for _, real in pairs])
    for index in (
        np.s_[0:3, 0:10, 0:12],
        np.s_[1:2, 3:7, 2:11],
        np.s_[0:3, 4:5, 0:12],
        np.s_[2:3, 0:10, 5:6],
    ):
        out = aligned_empty(tuple(part.stop - part.start for part in index), np.dtype(np.float32))
        with Reader() as reader:
            lazy.read_into(reader, index, out)
        np.testing.assert_array_equal(out, real[index].numpy())


def test_other_functions_are_refused(pairs):
    lazy, _ = pairs[0]
    for function in (lambda: torch.exp(lazy), lambda: torch.permute(lazy, (1, 0))):
        with pytest.raises(NotSliceable):
            function()
    narrow = torch.split(lazy, [3, 7], dim=1)[0]
    with pytest.raises(NotSliceable, match="differ"):
        torch.stack([lazy, narrow])
    with pytest.raises(NotSliceable, match="differ"):
        torch.cat([lazy, narrow], dim=0)
    with pytest.raises(NotSliceable, match="split"):
        torch.split(lazy, [3, 3], dim=1)


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
