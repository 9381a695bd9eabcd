"""Legal slices, against libtpu itself and the shapes that Google lists, and what is said of others."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import topologies

from tpuport.errors import PortError
from tpuport.hardware import GENERATIONS, SMALLEST_SLICES, Slice, described, legal_slices, parse_slice
from tpuport.hardware.generations import Generation
from tpuport.hardware.listing import markdown, slice_rows

PAGE = Path(__file__).resolve().parents[2] / "docs/topologies.md"
# docs.cloud.google.com/tpu/docs/v5p lists these, and says that there are more.
V5P = "2x2x1 2x2x2 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16 16x16x24".split()
V5E = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16".split()


def legal_names(generation: str) -> list[str]:
    return [legal.name for legal in legal_slices(GENERATIONS[generation])]


def count_described_devices(requested: Slice) -> int:
    described("v6e")  # loads libtpu with its environment and without its noise
    topology = topologies.get_topology_desc(requested.name, platform="tpu", **requested.libtpu_options)
    return len(topology.devices)


def test_those_that_google_lists_are_legal() -> None:
    assert legal_names("v5e") == [f"v5e:{layout}" for layout in V5E]
    assert legal_names("v6e") == [f"v6e:{layout}" for layout in V5E]
    assert {f"v5p:{layout}" for layout in V5P} <= set(legal_names("v5p"))
    assert {f"v4:{layout}" for layout in ("4x4x8", "4x8x8", "12x12x24", "16x16x16")} <= set(legal_names("v4"))


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=lambda generation: generation.name)
def test_shapes_are_ordered_within_the_pod_and_start_with_whole_hosts(generation: Generation) -> None:
    slices = legal_slices(generation)
    chips = [legal.chips for legal in slices]
    assert chips == sorted(chips)
    assert chips[-1] == generation.pod
    assert len(set(slices)) == len(slices)
    assert {len(legal.shape) for legal in slices} == {generation.dimensions}
    smallest = SMALLEST_SLICES[generation.name]
    assert parse_slice(generation.name).name == smallest
    assert smallest in legal_names(generation.name)


def test_libtpu_accepts_the_listed_ones() -> None:
    rows = [row for row in slice_rows() if row["devices"] <= 1024]
    assert len(rows) > 40
    for row in rows:
        requested = parse_slice(row["name"])
        assert count_described_devices(requested) == row["devices"] == requested.devices


DESCRIBE = """
import json, sys
from jax.experimental import topologies
from tpuport.hardware import described, parse_slice
described("v6e")
for requested in map(parse_slice, json.loads(sys.argv[1])):
    topology = topologies.get_topology_desc(requested.name, platform="tpu", **requested.libtpu_options)
    assert len(topology.devices) == requested.devices, requested.name
"""
# A process never frees the 4 KB of a described device.
DEVICES_PER_PROCESS = 300_000


@pytest.mark.slow
@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=lambda generation: generation.name)
def test_libtpu_accepts_every_legal_one(generation: Generation) -> None:
    slices = legal_slices(generation)
    totals = itertools.accumulate(legal.devices for legal in slices)
    batches = itertools.groupby(
        zip(slices, totals, strict=True), key=lambda pair: pair[1] // DEVICES_PER_PROCESS
    )
    for _, batch in batches:
        argument = json.dumps([legal.name for legal, _ in batch])
        subprocess.run([sys.executable, "-c", DESCRIBE, argument], check=True, stderr=subprocess.DEVNULL)


def test_libtpu_has_to_be_told_of_a_single_chip() -> None:
    assert parse_slice("v6e:1x1").libtpu_options == {"chips_per_host_bounds": (1, 1, 1)}
    assert parse_slice("v6e:2x2").libtpu_options == {}


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("v6e", "v6e:2x2"), ("v5p", "v5p:2x2x1"), ("v5e:2x4", "v5e:2x4"), ("v6e-1", "v6e:1x1"), ("v6e-8", "v6e:2x4"),
        ("v5litepod-8", "v5e:2x4"), ("v5litepod-256", "v5e:16x16"), ("v4-8", "v4:2x2x1"), ("v4-32", "v4:2x2x4"),
        ("v5p-16", "v5p:2x2x2"), ("v5p-128", "v5p:4x4x4"), ("v5p-12288", "v5p:16x16x24"), ("tpu7x-8", "tpu7x:2x2x1"),
    ],
)  # fmt: skip
def test_each_way_of_writing_a_slice(written: str, name: str) -> None:
    assert parse_slice(written).name == name
    assert parse_slice(name).name == name


@pytest.mark.parametrize(
    ("name", "phrases"),
    [
        ("v5e:8", ["v5e:2x4 has 8 chips"]),
        ("v5e:3x5", ["v5e:2x4 (8 chips) or v5e:4x4 (16 chips)", "8x16"]),
        ("v5e:32x32", ["use v5e:16x16 (256 chips)"]),
        ("v6e:4x2", ["another order", "use v6e:2x4"]),
        ("v5p:2x4x2", ["another order", "use v5p:2x2x4"]),
        ("v4:2x4", ["v4 has 3 dimensions", "v4:2x2x2 (8 chips)"]),
        ("v4:4x4x6", ["multiple of 4", "v4:4x4x4 (64 chips) or v4:4x4x8 (128 chips)"]),
        ("v5p:16x20x28", ["8960 chips", "6144 at most", "v5p:16x16x24"]),
        ("v5p-10", ["counts cores, two a chip", "v5p:2x2x1 (4 chips) or v5p:2x2x2 (8 chips)"]),
        ("v6e-5", ["counts chips", "v6e:2x2 (4 chips) or v6e:2x4 (8 chips)"]),
        ("v6:2x2", ["did you mean v6e:2x2?"]),
        ("v5e:02x4", ["did you mean v5e:2x4?"]),
        ("v5e:\u0be7x1", ["use one of v4:2x2x1"]),
        ("h100", ["use one of v4:2x2x1"]),
        ("", ["use one of v4:2x2x1"]),
    ],
)
def test_any_other_name_is_refused_with_the_nearest_slices(name: str, phrases: list[str]) -> None:
    with pytest.raises(PortError) as raised:
        parse_slice(name)
    assert f'"{name}"' in raised.value.what
    for phrase in phrases:
        assert phrase in str(raised.value)


LEGAL = {name for generation in GENERATIONS for name in legal_names(generation)}


@settings(settings.get_profile("few"), deadline=None)
@given(
    st.text(alphabet="v456ep7utx:-0123456789", max_size=14)
    | st.from_regex(r"(v5e|v4|v6e|tpu7x):\d{1,2}(x\d{1,2}){0,3}")
)
def test_any_name_is_legal_or_refused_with_legal_ones(name: str) -> None:
    try:
        assert parse_slice(name).name in LEGAL
    except PortError as error:
        suggestions = re.findall(r"(?:v4|v5e|v5p|v6e|tpu7x):[\dx]+", error.fix or "")
        assert suggestions
        assert set(suggestions) <= LEGAL


def test_a_row_has_what_a_user_chooses_by() -> None:
    (row,) = (row for row in slice_rows() if row["name"] == "v5e:2x4")
    assert (row["chips"], row["devices"], row["shape"]) == (8, 8, [2, 4])
    assert row["hbm_per_chip"] == 16 * 2**30
    assert (row["peak_bf16"], row["hbm_bandwidth"], row["ici_bandwidth"]) == (197e12, 819e9, 400e9)
    assert row["sources"]["bf16"] == "https://docs.cloud.google.com/tpu/docs/v5e"
    legal = sum(len(legal_slices(generation)) for generation in GENERATIONS.values())
    assert legal > len(slice_rows())


def test_the_page_has_the_tables_of_the_code() -> None:
    text = PAGE.read_text()
    tables = text[text.index("<!-- written by") :].partition("-->\n")[2].strip()
    assert tables == markdown().strip(), "write it again: python -m tpuport.hardware.listing"
