"""Shapes, their tiles and their memory spaces, against arithmetic and numpy's padding."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tpuport.topology.hlo import Array, parse_arrays
from tpuport.topology.hlo.array_types import tuple_types


def test_bytes_of_narrow_types() -> None:
    found = parse_arrays("s4[3], pred[5]{0} f8e4m3fn[2,2] c64[2] token[] u32[]")
    assert [array.nbytes for array in found] == [2, 5, 4, 16, 4]
    assert str(Array("bf16", (2, 3))) == "bf16[2,3]"


def test_layouts() -> None:
    (array,) = parse_arrays("bf16[4096,1376]{0,1:T(8,128)(2,1)S(1)}")
    assert array == Array("bf16", (4096, 1376), (0, 1), ((8, 128), (2, 1)), 1)
    assert array.bare == Array("bf16", (4096, 1376))
    assert array.tiled_nbytes == 1376 * 4096 * 2
    (array,) = parse_arrays("bf16[4096,1376]{1,0:T(8,128)(2,1)}")
    assert (array.space, array.tiled_nbytes) == (0, 4096 * 1408 * 2)


def test_tiles_pad() -> None:
    sizes = {
        "f32[]{:T(128)}": 128 * 4,
        "f32[7]{0:T(256)}": 256 * 4,
        "bf16[4096]{0:T(1024)(128)(2,1)}": 4096 * 2,
        "bf16[8,1,128]{2,1,0:T(2,128)(2,1)}": 8 * 2 * 128 * 2,
        "bf16[8,1,128]{2,0,1:T(8,128)(2,1)}": 8 * 128 * 2,
        "pred[1,1]{1,0:T(4,128)(4,1)}": 4 * 128,
        "f32[3,5]{1,0}": 60,
        "s4[16,100]{1,0:T(8,128)(8,1)E(4)}": 16 * 128 // 2,
    }
    for text, nbytes in sizes.items():
        assert [array.tiled_nbytes for array in parse_arrays(text)] == [nbytes], text


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=4), st.randoms(use_true_random=False),
    st.sampled_from([(8, 128), (2, 128), (4, 8)]),
)  # fmt: skip
def test_a_tiled_array_is_as_large_as_numpy_pads_it(dims, random, tile) -> None:
    order = list(range(len(dims)))
    random.shuffle(order)
    text = f"f32[{','.join(map(str, dims))}]{{{','.join(map(str, order))}:T({tile[0]},{tile[1]})}}"
    memory = np.zeros(dims, np.int8).transpose(order[::-1])
    more = [(0, 0)] * (len(dims) - 2) + [
        (0, -memory.shape[axis] % size) for axis, size in zip((-2, -1), tile, strict=True)
    ]
    (array,) = parse_arrays(text)
    assert array.tiled_nbytes == 4 * np.pad(memory, more).size
    assert array.nbytes == 4 * math.prod(dims)


def test_the_elements_of_a_tuple() -> None:
    assert tuple_types("((f32[2]{0:T(8,128)}, s32[]), /*index=1*/u32[]{:S(2)})") == [
        "(f32[2]{0:T(8,128)}, s32[])", "/*index=1*/u32[]{:S(2)}",
    ]  # fmt: skip
    assert tuple_types("f32[2]{0}") == ["f32[2]{0}"]
    assert tuple_types("()") == []
