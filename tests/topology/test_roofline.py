"""Estimates against closed forms in float64, messages counted link by link, and the book's worked examples."""

import dataclasses
import itertools
from math import ceil, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuport.hardware import GENERATIONS
from tpuport.hardware.mesh import create_mesh
from tpuport.topology import described, roofline
from tpuport.topology.compile_report import Collective, Costs
from tpuport.topology.roofline import Ring

GENERATION = st.sampled_from(list(GENERATIONS))
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
AMOUNT = st.floats(0, 1e18)
WORK = st.tuples(AMOUNT, AMOUNT, AMOUNT, AMOUNT)  # the numbers of Costs
NBYTES = st.integers(0, 1 << 40)
COUNT = st.integers(1, 1000)


def estimate(generation: str, costs: Costs, collectives=(), units: float = 1.0, **mesh: int):
    return roofline.estimate(generation, mesh or {"tp": 4}, costs, collectives, "tokens", units)


def seconds(
    kind: str, nbytes: int, rings: tuple[Ring, ...], generation: str = "v5e", count: int = 1
) -> float:
    one = Collective(kind, ("tp",), prod(ring.size for ring in rings), count, nbytes)
    return roofline.collective_seconds(one, {"tp": rings}, GENERATIONS[generation])


@settings(deadline=None)
@given(GENERATION, WORK, st.floats(0, 1e9))
def test_compute_and_memory_are_quotients_of_the_devices_figures(
    generation: str, work: tuple, units: float
) -> None:
    costs = Costs(*work)
    found, figures = estimate(generation, costs, units=units), GENERATIONS[generation]
    compute = costs.flops * figures.devices / figures.bf16.value
    memory = costs.hbm_bytes * figures.devices / figures.hbm_bandwidth.value
    assert found.compute == pytest.approx(compute, rel=1e-12)
    assert found.memory == pytest.approx(memory, rel=1e-12)
    assert found.interconnect == 0
    assert found.seconds == max(found.compute, found.memory)
    assert found.seconds_apart == found.compute + found.memory
    assert found.binds == ("compute" if found.compute >= found.memory else "memory")
    assert (found.unit, found.units) == ("tokens", units)
    # Quotients of the smallest numbers have fewer digits.
    if found.seconds > 1e-290:
        assert found.units_per_second == units / found.seconds
        peak = figures.bf16.value / figures.devices * found.seconds
        assert found.mfu == pytest.approx(costs.model_flops / peak, rel=1e-12)
    assert 0 <= found.mfu_apart <= found.mfu


def test_each_product_takes_the_time_of_its_dtype() -> None:
    """400 in all, of which 100 are of int8 and 50 of fp8; and 60 for float32 products in several passes."""
    costs = Costs(
        400e12, 0.0, 0.0, 400e12, product_flops=400e12, int8_flops=100e12, fp8_flops=50e12, pass_flops=60e12
    )
    peaks = {
        "v5e": 310e12 / 197e12 + 100e12 / 393e12 + 0.5 * 100e12 / 197e12,  # fp8 runs as bfloat16 does
        "v6e": (310e12 + 50e12) / 918e12 + 100e12 / 1836e12,
        "tpu7x": 2 * (410e12 / 2307e12 + 50e12 / 4614e12),  # of two devices each; int8 runs as bfloat16 does
    }
    for generation, seconds in peaks.items():
        assert estimate(generation, costs).compute == pytest.approx(seconds, rel=1e-12)
    alone = estimate("v5e", Costs(1e12, 0.0, 0.0, 1e12, int8_flops=1e12))
    assert alone.mfu == pytest.approx(393 / 197), "of the bf16 peak: nothing hides what is above it"


def test_nothing_to_do_takes_no_time() -> None:
    found = estimate("v6e", Costs(0.0, 0.0, 0.0, 0.0))
    assert (found.seconds, found.units_per_second, found.mfu) == (0, 0, 0)


@settings(deadline=None)
@given(GENERATION, WORK, st.lists(st.tuples(st.sampled_from(KINDS), NBYTES, COUNT), max_size=4), st.data())
def test_more_to_do_never_takes_less(generation: str, work: tuple, sent: list, data: st.DataObject) -> None:
    costs = Costs(*work)

    def of(costs: Costs, sent: list):
        collectives = [Collective(kind, ("tp",), 4, count, nbytes) for kind, nbytes, count in sent]
        return estimate(generation, costs, collectives, dp=2, tp=4)

    less = of(costs, sent)
    name = data.draw(st.sampled_from(["flops", "hbm_bytes"]))
    more = of(dataclasses.replace(costs, **{name: getattr(costs, name) * 1.5}), sent)
    longer = of(costs, [(kind, nbytes + 1000, count + 1) for kind, nbytes, count in sent])
    for other in (more, longer):
        assert other.seconds >= less.seconds
        assert other.seconds_apart >= less.seconds_apart
        assert other.mfu <= less.mfu


@pytest.mark.parametrize("figure", ["bf16", "hbm_bandwidth", "link", "hop"])
@settings(deadline=None)
@given(generation=GENERATION, work=WORK, nbytes=NBYTES, kind=st.sampled_from(KINDS))
def test_better_hardware_is_never_slower(
    figure: str, generation: str, work: tuple, nbytes: int, kind: str
) -> None:
    costs = Costs(*work)
    collectives = [Collective(kind, ("tp",), 4, 3, nbytes)]
    before, figures = estimate(generation, costs, collectives, tp=4), GENERATIONS[generation]
    one = getattr(figures, figure)
    better = dataclasses.replace(one, value=one.value * (0.5 if figure == "hop" else 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GENERATIONS, generation, dataclasses.replace(figures, **{figure: better}))
        after = estimate(generation, costs, collectives, tp=4)
    assert after.seconds <= before.seconds
    assert after.seconds_apart <= before.seconds_apart


@settings(deadline=None)
@given(GENERATION, st.sampled_from(KINDS), NBYTES, COUNT)
def test_one_device_has_no_interconnect(generation: str, kind: str, nbytes: int, count: int) -> None:
    alone = Collective(kind, ("tp",), 1, count, nbytes)
    assert estimate(generation, Costs(1.0, 1.0, 1.0, 1.0), [alone], dp=1, sp=1, tp=1).interconnect == 0


@settings(deadline=None)
@given(st.integers(2, 64), st.booleans(), st.integers(1 << 20, 1 << 40), st.integers(1, 9))
def test_gathering_and_reducing_are_the_rings_closed_forms(
    size: int, closed: bool, nbytes: int, count: int
) -> None:
    rate, hop = 45e9, 1e-6
    wide = rate * (2 if closed else 1)
    hops = count * hop * (size // 2 if closed else size - 1)
    rings = (Ring(size, closed, rate),)
    gather = nbytes * (size - 1) / size / wide
    assert seconds("all-gather", nbytes, rings, count=count) == pytest.approx(max(hops, gather), rel=1e-12)
    scatter = nbytes * (size - 1) / wide
    assert seconds("reduce-scatter", nbytes, rings, count=count) == pytest.approx(
        max(hops, scatter), rel=1e-12
    )
    assert seconds("all-reduce", nbytes, rings, count=count) == 2 * seconds(
        "all-gather", nbytes, rings, count=count
    )
    permute = max(count * hop, nbytes / rate)
    assert seconds("collective-permute", nbytes, rings, count=count) == pytest.approx(permute, rel=1e-12)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9, 16])
def test_an_all_to_all_loads_the_busiest_link_as_counted(size: int, closed: bool) -> None:
    if closed and size == 2:
        return
    nbytes, rate = 1 << 30, 45e9
    loads: dict[tuple[int, int], float] = {}
    for start, end in itertools.permutations(range(size), 2):
        ways = [(start, 1, (end - start) % size), (start, -1, (start - end) % size)]
        if not closed:
            ways = [ways[0] if end > start else ways[1]]
        shortest = min(way[2] for way in ways)
        taken = [way for way in ways if way[2] == shortest]
        for place, step, hops in taken:
            for hop in range(hops):
                link = ((place + step * hop) % size, step)
                loads[link] = loads.get(link, 0.0) + nbytes / size / len(taken)
    busiest = max(loads.values()) / rate
    found = seconds("all-to-all", nbytes, (Ring(size, closed, rate),))
    assert found == pytest.approx(busiest, rel=1e-12)
    if closed and size % 2 == 0:
        whole = seconds("all-gather", nbytes * size, (Ring(size, closed, rate),)) * size / (size - 1)
        assert found == pytest.approx(whole / 4, rel=1e-12), "the book's quarter"


def test_the_books_all_gathers_on_v5e() -> None:
    """Pop quiz 2 of the chapter: axis Y of 4 on a slice without wraparound, 34 MB, then 3 hops of 32 kB."""
    row = (Ring(4, False, 45e9),)
    assert seconds("all-gather", 2048 * 8192 * 2, row) == pytest.approx(560e-6, rel=0.01)
    assert seconds("all-gather", 256 * 256 * 2, row) == pytest.approx(3e-6)


def test_the_books_all_gathers_on_a_cube_of_v4() -> None:
    """Question 2: X is a ring of 4 with 9e10 bytes a second both ways; the book leaves (n - 1) / n out."""
    rings = roofline.layout(
        dataclasses.replace(GENERATIONS["v5p"], link=GENERATIONS["v4"].link), {"x": 4, "y": 4, "z": 4}
    )
    assert all(ring == (Ring(4, True, 45e9),) for ring in rings.values())
    assert seconds("all-gather", 2 * 1024 * 4096 // 4, rings["x"]) == pytest.approx(23e-6 * 3 / 4, rel=0.02)
    both = Collective("all-gather", ("x", "y"), 16, 1, 2 * 1024 * 4096)
    assert roofline.collective_seconds(both, rings, GENERATIONS["v5p"]) == pytest.approx(
        46e-6 * 15 / 16, rel=0.02
    )


@pytest.mark.parametrize(
    ("topology", "sizes", "boxes"),
    [
        ("v5e:2x4", (1, 1, 8), {"tp": [(2, False), (4, False)]}),
        ("v5e:2x4", (2, 1, 4), {"tp": [(2, False), (2, False)], "dp": [(2, False)]}),
        ("v6e:4x4", (4, 1, 4), {"tp": [(4, False)], "dp": [(4, False)]}),
        ("v6e:8x16", (8, 1, 16), {"tp": [(16, True)], "dp": [(8, False)]}),
        ("v5p:2x2x4", (1, 2, 8), {"tp": [(2, False), (4, False)], "sp": [(2, False)]}),
        ("v5p:4x4x4", (4, 4, 4), {"tp": [(4, True)], "sp": [(4, True)], "dp": [(4, True)]}),
        ("tpu7x:2x2x1", (4, 1, 2), {"tp": [(2, False)], "dp": [(2, False), (2, False)]}),
    ],
)  # fmt: skip
def test_axes_are_where_the_mesh_has_put_them(topology: str, sizes: tuple[int, ...], boxes: dict) -> None:
    mesh = create_mesh(*sizes, devices=described(topology).devices)
    figures = GENERATIONS[topology.partition(":")[0]]
    found = roofline.layout(figures, dict(mesh.shape), topology, mesh)
    assert {
        axis: [(ring.size, ring.closed) for ring in rings] for axis, rings in found.items() if rings
    } == boxes
    guessed = roofline.layout(figures, dict(mesh.shape), topology)
    for axis, rings in found.items():
        assert sum(ring.links for ring in guessed[axis]) >= sum(ring.links for ring in rings), (
            "no better than the guess"
        )


@settings(deadline=None)
@given(
    GENERATION,
    st.sampled_from([1, 2, 3, 4, 8]),
    st.sampled_from([1, 2, 4, 6]),
    st.sampled_from([1, 2, 4, 8, 16]),
)
def test_each_axis_has_all_of_its_devices(generation: str, dp: int, sp: int, tp: int) -> None:
    mesh = {"dp": dp, "sp": sp, "tp": tp}
    found = roofline.layout(GENERATIONS[generation], mesh)
    assert {axis: prod(ring.size for ring in rings) for axis, rings in found.items()} == mesh


def test_devices_of_a_chip_share_its_links_and_talk_faster_to_each_other() -> None:
    tpu7x, nbytes = GENERATIONS["tpu7x"], 1 << 30
    rings = roofline.layout(tpu7x, {"dp": 4, "tp": 2}, "tpu7x:2x2x1")
    within = seconds("all-gather", nbytes, rings["tp"], "tpu7x")
    assert within == pytest.approx(nbytes / 2 / 540e9)
    between = seconds("all-gather", nbytes, rings["dp"], "tpu7x")
    assert between == pytest.approx(nbytes * 3 / 4 / (2 * 90e9 / 2)), "both devices of a chip gather at once"
    everywhere = roofline.layout(tpu7x, {"tp": 8}, "tpu7x:2x2x1")["tp"]
    assert seconds("all-gather", nbytes, everywhere, "tpu7x") == pytest.approx(nbytes * 3 / 4 / (2 * 90e9))


def test_collectives_along_different_axes_go_on_at_the_same_time_at_best() -> None:
    nbytes = 1 << 30
    along = {
        axes: Collective("all-gather", axes, 4, 1, nbytes) for axes in (("tp",), ("dp",), ("dp", "tp"), ())
    }

    def of(*axes: tuple[str, ...]):
        return estimate("v5e", Costs(0.0, 0.0, 0.0, 0.0), [along[names] for names in axes], dp=4, tp=4)

    tp, dp, both, loose = (of(names).interconnect for names in (("tp",), ("dp",), ("dp", "tp"), ()))
    assert of(("tp",), ("dp",)).interconnect == max(tp, dp)
    assert of(("tp",), ("dp",)).seconds_apart == tp + dp
    assert of(("tp",), ("dp",), ("dp", "tp")).interconnect == max(tp, dp) + both
    # What is not whole axes may go along any of them.
    assert of(("tp",), ("dp",), ()).interconnect == max(tp, dp) + loose


def test_a_group_that_is_no_axis_is_a_ring_of_its_own() -> None:
    v5e, nbytes = GENERATIONS["v5e"], 1 << 30
    loose = Collective("all-gather", (), 4, 1, nbytes)
    assert roofline.collective_seconds(loose, {}, v5e) == pytest.approx(nbytes * 3 / 4 / 90e9)
    pair = Collective("all-gather", (), 2, 1, nbytes)
    assert roofline.collective_seconds(pair, {}, v5e) == pytest.approx(nbytes / 2 / 45e9)
    other = Collective("collective-broadcast", ("tp",), 4, 1, nbytes)
    assert estimate("v5e", Costs(0.0, 0.0, 0.0, 0.0), [other], tp=4).binds == "interconnect"


def test_llama_2_7b_decoding_on_8_chips_of_v5e_is_bound_by_memory() -> None:
    """13.5 GB of weights in eight parts, and 65 all-reduces of one row of 4096, each bound by its hops."""
    weights = 13.5e9 / 8
    reduces = Collective("all-reduce", ("tp",), 8, 65, 65 * 4096 * 2)
    found = estimate("v5e", Costs(weights, weights, weights, weights), [reduces], dp=1, sp=1, tp=8)
    assert found.binds == "memory"
    assert found.memory == pytest.approx(weights / 819e9)
    assert found.interconnect == pytest.approx(2 * 65 * (1 + 3) * 1e-6)
    assert found.units_per_second == pytest.approx(485, rel=0.01)
    assert ceil(found.mfu * 1000) == 5
