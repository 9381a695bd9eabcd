"""Meshes of the devices here and of TPUs that are described, and the arguments that cannot work."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import tpuport
from tpuport.hardware import mesh as meshes


@dataclasses.dataclass(frozen=True)
class Chip:
    """What jax's topology code reads of a TPU device."""

    id: int
    coords: tuple[int, int, int]
    device_kind: str
    slice_index: int = 0
    process_index: int = 0
    core_on_chip: int = 0
    platform: str = "tpu"


def slice_of(kind, *sizes, number=0):
    """The chips of one slice, x fastest, as jax lists them."""
    places = itertools.product(*map(range, reversed(sizes)))
    first = number * math.prod(sizes)
    return [Chip(first + i, tuple(reversed(zyx)), kind, number) for i, zyx in enumerate(places)]


V5E = slice_of("TPU v5 lite", 2, 4, 1)
V4 = slice_of("TPU v4", 2, 2, 2)


def arranged(devices, **sizes):
    """Device ids [dp, sp, tp] as create_mesh puts them; a Mesh itself takes real devices only."""
    shape = meshes._axis_sizes({"dp": 1, "sp": 1, "tp": 1} | sizes, devices)
    return np.vectorize(lambda device: device.id)(meshes._arrange_devices(shape, devices))


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [({"tp": 8}, (1, 1, 8)), ({"dp": 2, "tp": 4}, (2, 1, 4)), ({"dp": -1, "tp": 2}, (4, 1, 2)),
     ({"tp": -1}, (1, 1, 8)), ({"dp": 2, "sp": -1, "tp": 2}, (2, 2, 2)), ({"dp": 8, "tp": -1}, (8, 1, 1))],
)  # fmt: skip
def test_all_devices_on_three_axes(sizes, shape):
    mesh = tpuport.create_mesh(**sizes)
    assert tuple(mesh.shape.items()) == tuple(zip(("dp", "sp", "tp"), shape, strict=True))
    assert set(mesh.devices.flat) == set(jax.devices())
    assert mesh.axis_types == (AxisType.Auto,) * 3


def test_a_mesh_places_and_computes():
    mesh = tpuport.create_mesh(dp=2, sp=2, tp=2)
    x = jax.device_put(jnp.arange(32.0).reshape(4, 8), NamedSharding(mesh, PartitionSpec("dp", ("sp", "tp"))))
    assert {shard.data.shape for shard in x.addressable_shards} == {(2, 2)}
    np.testing.assert_array_equal(jax.jit(lambda a: a @ a.T)(x), np.asarray(x) @ np.asarray(x).T)
    assert tpuport.create_mesh(devices=jax.devices()[:1]).size == 1
    assert tpuport.create_mesh(tp=2, devices=jax.devices()[4:6]).devices[0, 0, 0] == jax.devices()[4]


@pytest.mark.parametrize(
    ("sizes", "count", "parts"),
    [
        (
            {"tp": 3},
            8,
            [
                "needs 3 devices, and there are 8 cpu devices",
                "dp=1, sp=1, tp=3",
                "tp=8 or devices=jax.devices()[:3]",
            ],
        ),
        ({"tp": 4}, 8, ["tp=8 or sp=2 or dp=2 or devices=jax.devices()[:4]"]),
        ({"tp": 16}, 8, ["needs 16 devices", "fix: tp=8", "count=16 JAX_PLATFORMS=cpu\n"]),
        ({"dp": 3, "tp": 3}, 8, ["needs 9 devices", "choose sizes whose product is 8"]),
        ({"dp": 3, "tp": -1}, 8, ["a multiple of 3", "choose sizes whose product is 8"]),
        ({}, 8, ["needs 1 device, and", "tp=8 or sp=8 or dp=8 or devices=jax.devices()[:1]"]),
        ({"tp": 2}, 1, ["there is 1 cpu device\n", "fix: tp=1; to simulate 2 devices on this CPU"]),
        ({"dp": 2, "tp": 4}, 1, ["XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_PLATFORMS=cpu\n"]),
        ({"tp": 0}, 8, ["at least one device", "tp=0"]),
        ({"dp": -2}, 8, ["at least one device"]),
        ({"dp": -1, "tp": -1}, 8, ["one axis may be -1", "dp=-1, sp=1, tp=-1"]),
        ({"tp": -1}, 0, ["the list is empty"]),
    ],
)
def test_sizes_that_do_not_fit(sizes, count, parts):
    with pytest.raises(tpuport.PortError) as raised:
        tpuport.create_mesh(**sizes, devices=jax.devices()[:count])
    for part in parts:
        assert part in f"{raised.value}\n"


def test_fewer_devices_than_there_are_need_no_pretence():
    with pytest.raises(tpuport.PortError) as raised:
        tpuport.create_mesh(tp=4)
    assert "XLA_FLAGS" not in str(raised.value)


@given(st.sampled_from([V5E, V4, slice_of("TPU v6 lite", 4, 4, 1), slice_of("TPU v5", 2, 2, 4)]), st.data())
def test_every_shape_uses_every_chip_once(chips, data):
    count = len(chips)
    tp = data.draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0]))
    sp = data.draw(st.sampled_from([n for n in range(1, count // tp + 1) if count // tp % n == 0]))
    ids = arranged(chips, dp=-1, sp=sp, tp=tp)
    assert ids.shape == (count // tp // sp, sp, tp)
    assert sorted(ids.flat) == list(range(count))


def test_neighbours_in_the_torus_share_tp():
    """tp=4 on 2x4 chips is a row of four or a square, each next to another, and a ring of four goes around."""
    places = {chip.id: chip.coords for chip in V5E}
    for group in arranged(V5E, dp=2, tp=4).reshape(2, 4):
        extent = [max(c) - min(c) + 1 for c in zip(*(places[i] for i in group), strict=True)]
        assert math.prod(extent) == 4
    square = slice_of("TPU v5 lite", 2, 2, 1)
    ring = [square[i].coords for i in arranged(square, tp=4).flat]
    assert all(sum(abs(a - b) for a, b in zip(p, q, strict=True)) == 1 for p, q in itertools.pairwise(ring))


def test_a_physical_axis_is_split_only_where_it_must_be():
    ids = arranged(V4, dp=2, sp=2, tp=2)
    assert sorted(ids.flat) == list(range(8))
    wide = slice_of("TPU v4", 4, 4, 4)
    assert arranged(wide, dp=8, tp=8).shape == (8, 1, 8)  # 8 is no product of whole axes of size 4


@pytest.mark.parametrize(
    ("sizes", "crossing"),
    [({"dp": 2, "tp": 8}, (2, 1, 1)), ({"dp": 4, "tp": 4}, (2, 1, 1)), ({"sp": 2, "tp": 8}, (1, 2, 1))],
)
def test_slices_are_joined_by_the_outermost_axis(sizes, crossing, caplog):
    chips = [chip for number in (0, 1) for chip in slice_of("TPU v5 lite", 2, 4, 1, number=number)]
    slices = arranged(chips[::-1], **sizes) // 8
    for axis, expected in enumerate(crossing):
        across = np.unique(np.moveaxis(slices, axis, 0).reshape(slices.shape[axis], -1), axis=1)
        assert (len(set(across[:, 0])) > 1) == (expected > 1)
    assert not caplog.records


def test_slices_crossed_by_tp_are_told(caplog):
    chips = [chip for number in range(4) for chip in slice_of("TPU v5 lite", 2, 2, 1, number=number)]
    slices = arranged(chips, dp=2, tp=8) // 4
    assert [sorted(set(row)) for row in slices[:, 0]] == [[0, 1], [2, 3]]
    assert "tp=8 reaches over 2 slices" in caplog.text


def test_uneven_slices_are_refused():
    chips = slice_of("TPU v5 lite", 2, 2, 1) + slice_of("TPU v5 lite", 2, 1, 1, number=1)
    with pytest.raises(tpuport.PortError, match="4 in slice 0, 2 in slice 1"):
        arranged(chips, tp=6)


def test_chips_that_form_no_box_keep_their_order(caplog):
    chips = [V4[i] for i in (0, 3, 5)]
    assert list(arranged(chips, tp=3).flat) == [0, 3, 5]
    assert "form no box" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("10.0.0.1:80", 2, None), "give all three, or none"),
        (("10.0.0.1:80", None, None), "give all three, or none"),
        ((None, None, 1), "give all three, or none"),
        (("10.0.0.1:80", 2, 2), "no process 2 of 2"),
        (("10.0.0.1:80", 2, -1), "no process -1 of 2"),
        (("10.0.0.1:80", 0, 0), "no process 0 of 0"),
        (("10.0.0.1", 2, 0), "'10.0.0.1' is not host:port"),
        (("10.0.0.1:http", 2, 0), "is not host:port"),
        (("10.0.0.1:70000", 2, 0), "is not host:port"),
        ((None, 2, 0), "None is not host:port"),
        (("10.0.0.1:80", 2, 0), "started its devices already"),
        ((None, None, None), "started its devices already"),
    ],
)
def test_processes_that_cannot_join(arguments, part, monkeypatch):
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
    jax.devices()
    with pytest.raises(tpuport.PortError) as raised:
        tpuport.initialize_distributed(*arguments)
    assert part in str(raised.value)


@pytest.mark.parametrize("name", ["heartbeat_timeout_seconds", "stall_timeout_seconds"])
@pytest.mark.parametrize("seconds", [0, True, "100", math.nan, math.inf])
def test_times_that_are_none(name, seconds):
    with pytest.raises(tpuport.PortError, match=f"{name} is"):
        tpuport.initialize_distributed("10.0.0.1:80", 2, 0, **{name: seconds})
