"""What instructions ask of a v5e, beside counts that are written out by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from tpuport.hardware import GENERATIONS
from tpuport.hardware.schedules import KernelSchedule
from tpuport.topology import hlo, roofline
from tpuport.topology.kernels import KernelCost
from tpuport.topology.timing.instruction_work import Work, WorkCounter
from tpuport.topology.timing.timeline import walk

V5E = GENERATIONS["v5e"]
PEAK, CLOCK, BANDWIDTH = V5E.device.bf16, V5E.clock, V5E.device.hbm_bandwidth
ROWS, COLUMNS = 512, 1024
WIDE, TALL = "bf16[512,1024]{1,0:T(8,128)(2,1)}", "bf16[1024,512]{1,0:T(8,128)(2,1)}"
SQUARE = "bf16[512,512]{1,0:T(8,128)(2,1)}"
NBYTES = 2 * ROWS * COLUMNS
# A product of bfloat16: two for each multiplication.
FLOPS = 2 * ROWS * ROWS * COLUMNS
KERNEL = 'custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"x"}}'
TEXT = f"""\
HloModule jit_f, is_scheduled=true

%multiply (a: bf16[512,1024], b: bf16[1024,512]) -> bf16[512,512] {{
  %a = {WIDE} parameter(0)
  %b = {TALL} parameter(1)
  %product = {SQUARE} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %negative = {SQUARE} negate(%product)
}}

%turn (c: bf16[512,1024]) -> bf16[1024,512] {{
  %c = {WIDE} parameter(0)
  ROOT %turned = {TALL} transpose(%c), dimensions={{1,0}}
}}

%add_up (d: bf16[512,512]) -> bf16[512,512] {{
  %d = {SQUARE} parameter(0)
  ROOT %sum = {SQUARE} add(%d, %d)
}}

ENTRY %main (x: bf16[512,1024]) -> bf16[512,512] {{
  %x = {WIDE} parameter(0)
  %copies = {TALL} fusion(%x), kind=kLoop, calls=%turn
  %products = {SQUARE} fusion(%x, %copies), kind=kOutput, calls=%multiply
  %sums = {SQUARE} fusion(%products), kind=kLoop, calls=%add_up
  %splash_mha = {SQUARE} custom-call(%sums), {KERNEL}
  %other = {SQUARE} custom-call(%splash_mha), {KERNEL}
  %start = (bf16[512,512]{{1,0:T(8,128)(2,1)S(1)}}, {SQUARE}, u32[]{{:S(2)}}) copy-start(%other)
  %done = bf16[512,512]{{1,0:T(8,128)(2,1)S(1)}} copy-done(%start)
  ROOT %reduced = {SQUARE} all-reduce(%done), replica_groups={{{{0,1,2,3}}}}, to_apply=%add_up
}}
"""
MESH: Any = SimpleNamespace(axis_names=("tp",), shape={"tp": 4}, devices=SimpleNamespace(size=4, shape=(4,)))


def work(name: str, *, cost: KernelCost | None = None, **cycles: int) -> Work:
    """Of an instruction, with schedules of so many cycles, each of which starts three copies."""
    program, counter = counted(cost, **cycles)
    return counter.work(program.computations["main"].named[name])


def counted(cost: KernelCost | None = None, **cycles: int) -> tuple[hlo.Program, WorkCounter]:
    program = hlo.parse(TEXT)
    if cost is not None:
        program.kernel_costs["other"] = cost
    schedules = {name: KernelSchedule(name, count, 3, True) for name, count in cycles.items()}
    rings = roofline.layout(V5E, {"tp": 4})
    return program, WorkCounter(program, schedules, V5E, MESH, rings)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("copies", "copies and layouts"),
        ("products", "matrix products"),
        ("sums", "elementwise"),
        ("splash_mha", "attention"),
        ("other", "other kernels"),
        ("start", "copies and layouts"),
        ("reduced", "collectives"),
    ],
)
def test_each_second_is_of_one_kind(name: str, kind: str) -> None:
    assert work(name).kind == kind


def test_the_core_takes_its_cycles_and_the_start_of_each_copy() -> None:
    counts = work("sums", sums=9400)
    assert counts.core_seconds == pytest.approx(9400 / CLOCK + 3 * V5E.copy_start.value)
    assert (counts.product_seconds, counts.flops) == (0, 0)
    assert counts.hbm_bytes == 2 * 2 * ROWS * ROWS, "it reads and writes a square"


@pytest.mark.parametrize(("cycles", "longest"), [(10, "peak"), (10**6, "schedule")])
def test_a_product_takes_its_schedule_and_at_least_its_operations_at_the_peak(
    cycles: int, longest: str
) -> None:
    counts = work("products", products=cycles)
    assert counts.flops == FLOPS
    assert counts.product_seconds == pytest.approx(FLOPS / PEAK)
    seconds = {"peak": FLOPS / PEAK, "schedule": cycles / CLOCK}[longest]
    assert counts.core_seconds == pytest.approx(seconds + 3 * V5E.copy_start.value)


def test_a_product_without_a_schedule_takes_its_operations_at_the_peak() -> None:
    assert work("products").core_seconds == pytest.approx(FLOPS / PEAK)


@pytest.mark.parametrize(
    ("bound", "product_seconds"),
    [(None, FLOPS / PEAK), ("at least", FLOPS / PEAK), ("at most", 10 / CLOCK), ("about", 10 / CLOCK)],
)
def test_what_a_kernel_computes_at_most_is_no_more_than_its_schedule(
    bound: str | None, product_seconds: float
) -> None:
    counts = work("other", cost=KernelCost(FLOPS, 100.0, "counted", bound), other=10)
    assert counts.product_seconds == pytest.approx(product_seconds)
    assert counts.core_seconds == pytest.approx(max(product_seconds, 10 / CLOCK) + 3 * V5E.copy_start.value)
    assert counts.hbm_bytes == 100


def test_a_copy_beside_the_core_takes_none_of_it() -> None:
    counts = work("start", start=5000)
    # It ends in VMEM.
    assert (counts.core_seconds, counts.cycles, counts.hbm_bytes) == (0, None, 2 * ROWS * ROWS)


def test_a_collective_takes_the_links_along_its_axes() -> None:
    counts = work("reduced")
    assert counts.axes == ("tp",)
    nbytes = 2 * ROWS * ROWS
    [first, second] = roofline.layout(V5E, {"tp": 4})["tp"]
    assert first == second == roofline.Ring(2, closed=False, rate=V5E.link.value)
    # A reduce-scatter and an all-gather over two links, of three quarters of the bytes each.
    assert counts.link_seconds == pytest.approx(2 * nbytes * 3 / 4 / (2 * V5E.link.value))


def test_a_step_is_never_shorter_than_any_of_its_resources_needs() -> None:
    program, counter = counted(sums=9400, products=10)
    seconds = walk(program, counter, V5E).seconds
    works = [counter.work(instruction) for instruction in program.computations["main"].instructions]
    needs = (
        sum(asked.core_seconds for asked in works),
        sum(asked.hbm_bytes for asked in works) / BANDWIDTH,
        sum(asked.link_seconds for asked in works),
    )
    assert all(need > 0 for need in needs)
    assert seconds >= max(needs)
