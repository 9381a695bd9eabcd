"""Groups of devices in every syntax, against numpy's indices of a mesh."""

import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

from tpuport.topology.hlo.collectives import group_axes, parse_groups

NAMES = ("dp", "sp", "tp")
SHAPES = [(1, 2, 4), (2, 2, 2), (8, 1, 1), (1, 1, 8), (2, 4, 1), (4, 1, 2)]


def sets(found) -> set[frozenset[int]]:
    return {frozenset(map(int, group)) for group in found}


def mesh_of(shape) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(shape), NAMES)


def along(shape, used) -> list[tuple[int, ...]]:
    """Places in the mesh that differ only along the axes in use."""
    places = np.arange(math.prod(shape)).reshape(shape)
    others = [range(size) if axis not in used else [slice(None)] for axis, size in enumerate(shape)]
    return [tuple(places[index].ravel().tolist()) for index in itertools.product(*others)]


@given(st.sampled_from(SHAPES), st.sets(st.integers(0, 2), min_size=1))
def test_axes_come_back_from_each_syntax(shape, used) -> None:
    wanted = along(shape, used)
    apart = [axis for axis in range(3) if axis not in used]
    size = len(wanted[0])
    listed = "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in wanted) + "}"
    order = ",".join(map(str, [*apart, *sorted(used)]))
    names = ",".join(repr("abc"[axis]) for axis in sorted(used))
    texts = [
        f"(%x), channel_id=1, replica_groups={listed}, use_global_device_ids=true",
        f"(%x), replica_groups=[{8 // size},{size}]<=[{','.join(map(str, shape))}]T({order}), dimensions={{0}}",
        f"(%x), replica_groups=mesh['a'={shape[0]},'b'={shape[1]},'c'={shape[2]}] {{{names}}}, dimensions={{0}}",
    ]
    for text in texts:
        found = parse_groups(text, 8)
        assert sets(found) == sets(wanted), text
        assert group_axes(found, mesh_of(shape)) == tuple(
            NAMES[axis] for axis in sorted(used) if shape[axis] > 1
        )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("[1,8]<=[8]", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("[4,2]<=[2,4]T(1,0)", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("[4,2]<=[8]T(0)", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("mesh['axis_0'=8,'axis_1'=1] {'axis_0'}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("mesh['a'=2,'b'=4], device_ids=(7,6,5,4,3,2,1,0) {'b'}", [[7, 6, 5, 4], [3, 2, 1, 0]]),
        ("mesh['a'=8] {'a':(1)2}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("mesh['a'=8] {'a':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("mesh['a'=2,'b'=4] {'a','b':(2)2}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ],
)
def test_groups_as_they_are_written(text, wanted) -> None:
    assert sets(parse_groups(f"(%x), channel_id=1, replica_groups={text}, dimensions={{0}}", 8)) == sets(
        wanted
    )
    assert sets(parse_groups(f"(%x), replica_groups={text}", 8)) == sets(wanted)


def test_groups_that_are_no_whole_axes_have_none() -> None:
    assert group_axes([(0, 1), (2, 3), (4, 5), (6, 7)], mesh_of((1, 1, 8))) == ()
    assert group_axes([(0, 3), (1, 2), (4, 7), (5, 6)], mesh_of((2, 2, 2))) == ()
    assert group_axes([(0, 9)], mesh_of((2, 2, 2))) == ()
    assert group_axes([(one,) for one in range(8)], mesh_of((2, 2, 2))) == ()


def test_permutations_are_the_rings_that_send_to_one_another() -> None:
    mesh = mesh_of((1, 2, 4))
    ring = parse_groups("(%x), source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}", 8)
    assert sets(ring) == sets([(0, 1, 2, 3), (4, 5, 6, 7)])
    assert group_axes(ring, mesh, whole=False) == ("tp",)
    halves = parse_groups("(%x), channel_id=2, source_target_pairs={{0,1},{1,0}}, metadata={}", 8)
    assert sets(halves) == sets([(0, 1)])
    assert group_axes(halves, mesh, whole=False) == ("tp",)
    assert group_axes(halves, mesh) == ()
    crossed = parse_groups("(%x), source_target_pairs={{0,0},{1,4},{4,1}}", 8)
    assert sets(crossed) == sets([(0,), (1, 4)])
    assert group_axes(crossed, mesh, whole=False) == ()
