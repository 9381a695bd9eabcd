"""Legal slices, against libtpu itself and the shapes that Google lists, and what is said of others."""

import itertools
import json
import re
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import topologies

from tpuport.errors import PortError
from tpuport.topology import GENERATIONS, described, slices
from tpuport.topology.describe import ENVIRONMENT
from tpuport.topology.hardware import FIGURES

PAGE = Path(__file__).resolve().parents[2] / "docs/topologies.md"
# docs.cloud.google.com/tpu/docs/v5p lists these, and says that there are more.
V5P = "2x2x1 2x2x2 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16 16x16x24".split()
V5E = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16".split()


def accepted(name: str) -> int:
    """How many devices libtpu describes."""
    described("v6e")  # loads libtpu with its environment and without its noise
    return len(topologies.get_topology_desc(name, platform="tpu", **slices.options(name)).devices)


def test_those_that_google_lists_are_legal() -> None:
    assert [name.partition(":")[2] for name in slices.legal()["v5e"]] == V5E
    assert slices.legal()["v6e"] == tuple(f"v6e:{shape}" for shape in V5E)
    assert {f"v5p:{shape}" for shape in V5P} <= set(slices.legal()["v5p"])
    assert {f"v4:{shape}" for shape in ("4x4x8", "4x8x8", "12x12x24", "16x16x16")} <= set(
        slices.legal()["v4"]
    )


@pytest.mark.parametrize("generation", FIGURES)
def test_shapes_are_ordered_within_the_pod_and_start_with_whole_hosts(generation: str) -> None:
    shapes = slices.shapes(generation)
    chips = [prod(shape) for shape in shapes]
    assert chips == sorted(chips)
    assert chips[-1] <= FIGURES[generation].pod
    assert len(set(shapes)) == len(shapes)
    assert {len(shape) for shape in shapes} == {FIGURES[generation].dimensions}
    assert GENERATIONS[generation] == slices.check(generation)


def test_libtpu_takes_the_listed_ones() -> None:
    rows = [row for row in slices.listing() if row["devices"] <= 1024]
    assert len(rows) > 40
    for row in rows:
        assert accepted(row["name"]) == row["devices"] == slices.devices_of(row["name"])


DESCRIBE = """
import json, sys
from jax.experimental import topologies
from tpuport.topology import described, slices
described("v6e")
for name in json.loads(sys.argv[1]):
    devices = topologies.get_topology_desc(name, platform="tpu", **slices.options(name)).devices
    assert len(devices) == slices.devices_of(name), name
"""
# A described device is 4 KB that the process keeps for ever.
TOGETHER = 300_000


@pytest.mark.slow
@pytest.mark.parametrize("generation", FIGURES)
def test_libtpu_takes_every_legal_one(generation: str) -> None:
    names = slices.legal()[generation]
    totals = itertools.accumulate(map(slices.devices_of, names))
    batches = itertools.groupby(zip(names, totals, strict=True), key=lambda pair: pair[1] // TOGETHER)
    for _, batch in batches:
        argument = json.dumps([name for name, _ in batch])
        subprocess.run([sys.executable, "-c", DESCRIBE, argument], check=True, stderr=subprocess.DEVNULL)
    figures = FIGURES[generation]
    assert max(map(slices.devices_of, names)) == figures.pod * figures.devices


def test_libtpu_is_told_of_one_chip_only() -> None:
    assert slices.options("v6e:1x1") == {"chips_per_host_bounds": (1, 1, 1)}
    assert slices.options("v6e:2x2") == {}
    assert ENVIRONMENT


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("v6e", "v6e:2x2"), ("v5p", "v5p:2x2x1"), ("v5e:2x4", "v5e:2x4"), ("v6e-1", "v6e:1x1"), ("v6e-8", "v6e:2x4"),
        ("v5litepod-8", "v5e:2x4"), ("v5litepod-256", "v5e:16x16"), ("v4-8", "v4:2x2x1"), ("v4-32", "v4:2x2x4"),
        ("v5p-16", "v5p:2x2x2"), ("v5p-128", "v5p:4x4x4"), ("v5p-12288", "v5p:16x16x24"), ("tpu7x-8", "tpu7x:2x2x1"),
    ],
)  # fmt: skip
def test_each_way_of_writing_one(written: str, name: str) -> None:
    assert slices.check(written) == name
    assert slices.check(name) == name


@pytest.mark.parametrize(
    ("name", "said"),
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
def test_another_is_refused_with_those_that_are_near(name: str, said: list[str]) -> None:
    with pytest.raises(PortError) as raised:
        slices.check(name)
    assert f'"{name}"' in raised.value.what
    for words in said:
        assert words in str(raised.value)


@settings(deadline=None)
@given(
    st.text(alphabet="v456ep7utx:-0123456789", max_size=14)
    | st.from_regex(r"(v5e|v4|v6e|tpu7x):\d{1,2}(x\d{1,2}){0,3}")
)
def test_any_name_is_legal_or_refused_with_legal_ones(name: str) -> None:
    every = {one for names in slices.legal().values() for one in names}
    try:
        assert slices.check(name) in every
    except PortError as error:
        offered = re.findall(r"(?:v4|v5e|v5p|v6e|tpu7x):[\dx]+", error.fix or "")
        assert offered
        assert set(offered) <= every


def test_a_row_has_what_a_user_chooses_by() -> None:
    row = next(row for row in slices.listing() if row["name"] == "v5e:2x4")
    assert (row["chips"], row["devices"], row["shape"]) == (8, 8, [2, 4])
    assert row["hbm_per_chip"] == 16 * 2**30
    assert (row["peak_bf16"], row["hbm_bandwidth"], row["ici_bandwidth"]) == (197e12, 819e9, 400e9)
    assert row["sources"]["bf16"] == "https://docs.cloud.google.com/tpu/docs/v5e"
    assert len(slices.listing(every=True)) == sum(map(len, slices.legal().values())) > len(slices.listing())


def test_the_page_is_what_the_code_says() -> None:
    text = PAGE.read_text()
    tables = text[text.index("<!-- written by") :].partition("-->\n")[2].strip()
    assert tables == slices.markdown().strip(), "write it again: python -m tpuport.topology.slices"
