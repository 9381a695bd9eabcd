"""Timelines of small programs, whose instructions take what the test says: copies, collectives, loops, branches."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tpuport.topology import hlo
from tpuport.topology.step_trace import StepTrace
from tpuport.topology.timing.instruction_work import Work
from tpuport.topology.timing.profile import summarize
from tpuport.topology.timing.timeline import Span, Timeline, walk
from tpuport.topology.timing.trace_building import build_trace

# Bytes a second.
BANDWIDTH = 100.0
HARDWARE: Any = SimpleNamespace(device=SimpleNamespace(hbm_bandwidth=BANDWIDTH, bf16=1e3), clock=10.0)
NONE = Work("elementwise")


class Counter:
    """In the place of a `WorkCounter`: each instruction asks for what the test says, and all others for nothing."""

    def __init__(self, **work: Work) -> None:
        self._work = {name.replace("__", "."): asked for name, asked in work.items()}

    def work(self, instruction: Any) -> Work:
        return self._work.get(instruction.name, NONE)


def core(seconds: float, hbm_bytes: float = 0.0) -> Work:
    return Work("elementwise", core_seconds=seconds, hbm_bytes=hbm_bytes)


def copied(nbytes: float) -> Work:
    return Work("copies and layouts", hbm_bytes=nbytes)


def sent(seconds: float, *axes: str) -> Work:
    return Work("collectives", link_seconds=seconds, axes=axes)


def program(*lines: str, before: str = "") -> hlo.Program:
    body = "\n".join(f"  {line}" for line in lines)
    return hlo.parse(
        f"HloModule jit_f, is_scheduled=true\n\n{before}ENTRY %main (p: f32[8]) -> f32[8] {{\n"
        f"  %p = f32[8]{{0}} parameter(0)\n{body}\n}}\n"
    )


def walked(parsed: hlo.Program, counter: Counter) -> Timeline:
    return walk(parsed, cast(Any, counter), HARDWARE)


def traced(parsed: hlo.Program, counter: Counter) -> StepTrace:
    return build_trace(parsed, cast(Any, counter), walked(parsed, counter))


def spans(timeline: Timeline, computation: str = "main") -> dict[str, Span]:
    return {span.instruction.name: span for span in timeline.computations[computation].spans}


def op(name: str, *operands: str, root: bool = False) -> str:
    listed = ", ".join(f"%{operand}" for operand in operands)
    return f"{'ROOT ' if root else ''}%{name} = f32[8]{{0}} add({listed})"


def copy_start(name: str, operand: str = "p") -> str:
    return f"%{name} = (f32[8]{{0:S(1)}}, f32[8]{{0}}, u32[]{{:S(2)}}) copy-start(%{operand})"


def copy_done(name: str, start: str) -> str:
    return f"%{name} = f32[8]{{0:S(1)}} copy-done(%{start})"


def gather_start(name: str) -> str:
    return f"%{name} = (f32[8]{{0}}, f32[8]{{0}}) all-gather-start(%p), dimensions={{0}}"


def gather_done(name: str, start: str) -> str:
    return f"%{name} = f32[8]{{0}} all-gather-done(%{start})"


def test_instructions_follow_each_other_and_take_what_is_longer() -> None:
    parsed = program(op("a", "p", "p"), op("b", "a", "p"), op("c", "b", "p", root=True))
    timeline = walked(parsed, Counter(a=core(2.0), b=core(1.0, 300.0), c=core(4.0, 100.0)))
    assert timeline.seconds == 2 + 3 + 4
    assert [(span.start, span.busy, span.waiting) for span in spans(timeline).values()] == [
        (0, 2, 0),
        (2, 3, 0),
        (5, 4, 0),
    ]


def test_a_copy_beside_the_core_takes_no_time_if_it_ends_before_it_is_needed() -> None:
    parsed = program(copy_start("s"), op("a", "p", "p"), copy_done("d", "s"), op("b", "a", "d", root=True))
    counter = Counter(s=copied(150.0), a=core(2.0), b=core(1.0))
    assert walked(parsed, counter).seconds == 3
    [copy] = traced(parsed, counter).computations["main"].copies
    assert (copy.start, copy.seconds) == (0, 1.5)


def test_the_core_waits_for_what_is_left_of_a_copy() -> None:
    parsed = program(copy_start("s"), op("a", "p", "p"), copy_done("d", "s"), op("b", "a", "d", root=True))
    counter = Counter(s=copied(250.0), a=core(1.0), b=core(1.0))
    timeline = walked(parsed, counter)
    assert timeline.seconds == pytest.approx(1 + 1.5 + 1)
    assert spans(timeline)["d"].waiting == pytest.approx(1.5)
    [copy] = traced(parsed, counter).computations["main"].copies
    assert (copy.start, copy.seconds) == (0, pytest.approx(2.5))


def test_what_a_collective_reads_and_writes_passes_beside_the_core() -> None:
    parsed = program(
        gather_start("s"), op("a", "p", "p"), gather_done("d", "s"), op("b", "a", "d", root=True)
    )
    work = Work("collectives", link_seconds=1.0, hbm_bytes=150.0, axes=("tp",))
    timeline = walked(parsed, Counter(s=work, a=core(2.0), b=core(1.0)))
    assert timeline.seconds == 3.0
    assert timeline.computations["main"].copies == ()
    assert [transfer.seconds for transfer in timeline.computations["main"].collectives] == [1.0]


def test_copies_have_the_bandwidth_that_the_core_leaves_in_the_order_of_their_starts() -> None:
    parsed = program(
        copy_start("s1"), copy_start("s2"), op("a", "p", "p"), copy_done("d2", "s2"), copy_done("d1", "s1"),
        op("b", "d1", "d2", root=True),
    )  # fmt: skip
    # The core takes half of the bandwidth for 2 s, in which the first copy moves 100 of its bytes.
    counter = Counter(s1=copied(100.0), s2=copied(100.0), a=core(2.0, 100.0), b=core(1.0))
    timeline = walked(parsed, counter)
    assert spans(timeline)["d2"].waiting == pytest.approx(1.0)
    assert "d1" not in spans(timeline), "it has ended before"
    copies = traced(parsed, counter).computations["main"].copies
    assert [(copy.start, copy.seconds) for copy in copies] == [
        (0, pytest.approx(2.0)),
        (pytest.approx(2.0), pytest.approx(1.0)),
    ]


def test_a_collective_beside_the_core_is_waited_for() -> None:
    parsed = program(
        gather_start("s"), op("a", "p", "p"), gather_done("d", "s"), op("b", "a", "d", root=True)
    )
    timeline = walked(parsed, Counter(s=sent(3.0, "tp"), a=core(1.0), b=core(1.0)))
    assert timeline.seconds == 1 + 2 + 1
    assert spans(timeline)["d"].waiting == 2
    assert walked(parsed, Counter(s=sent(0.5, "tp"), a=core(1.0), b=core(1.0))).seconds == 2


@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [
        (("tp",), ("tp",), 4),
        (("tp",), ("dp",), 2),
        (("tp",), ("dp", "tp"), 4),
        # A group that is not whole axes may use any links.
        ((), ("tp",), 4),
        (("tp",), (), 4),
    ],
)
def test_collectives_that_share_links_follow_each_other(
    first: tuple[str, ...], second: tuple[str, ...], seconds: float
) -> None:
    parsed = program(
        gather_start("s1"), gather_start("s2"), gather_done("d1", "s1"), gather_done("d2", "s2"),
        op("b", "d1", "d2", root=True),
    )  # fmt: skip
    counter = Counter(s1=sent(2.0, *first), s2=sent(2.0, *second))
    assert walked(parsed, counter).seconds == seconds
    collectives = traced(parsed, counter).computations["main"].collectives
    assert [(transfer.start, transfer.seconds, transfer.axes) for transfer in collectives] == [
        (0, 2, first),
        (seconds - 2, 2, second),
    ]


def test_a_collective_that_nothing_ends_apart_keeps_the_core() -> None:
    parsed = program("%r = f32[8]{0} all-gather(%p), dimensions={0}", op("b", "r", "p", root=True))
    counter = Counter(r=sent(3.0, "tp"), b=core(1.0))
    timeline = walked(parsed, counter)
    assert timeline.seconds == 4
    assert (spans(timeline)["r"].busy, spans(timeline)["r"].waiting) == (3, 0)
    [collective] = traced(parsed, counter).computations["main"].collectives
    assert (collective.start, collective.seconds) == (0, 3)


LOOP = """%body (b: f32[8]) -> f32[8] {
  %b = f32[8]{0} parameter(0)
  ROOT %x = f32[8]{0} add(%b, %b)
}

%condition (c: f32[8]) -> pred[] {
  %c = f32[8]{0} parameter(0)
  ROOT %t = pred[] compare(%c, %c), direction=LT
}

"""


def looped(rounds: int) -> hlo.Program:
    return program(
        op("a", "p", "p"),
        "ROOT %w = f32[8]{0} while(%a), condition=%condition, body=%body, "
        f'backend_config={{"known_trip_count":{{"n":"{rounds}"}}}}',
        before=LOOP,
    )


@pytest.mark.parametrize("rounds", [1, 5, 10])
def test_a_loop_takes_all_of_its_rounds(rounds: int) -> None:
    counter = Counter(a=core(1.0), x=core(2.0), t=core(0.5))
    timeline = walked(looped(rounds), counter)
    assert timeline.seconds == 1 + 2.5 * rounds
    assert spans(timeline)["w"].busy == 2.5 * rounds
    assert spans(timeline, "body")["x"].times == rounds
    # Without the loop, which is what its instructions are.
    assert sum(span.times * span.busy for span in timeline.leaves) == timeline.seconds
    trace = traced(looped(rounds), counter)
    [_, loop] = trace.computations["main"].core
    assert (loop.rounds, loop.calls) == (rounds, ("condition", "body"))
    assert [trace.computations[name].seconds for name in loop.calls] == [0.5, 2]


BRANCHES = """%short (b: f32[8]) -> f32[8] {
  %b = f32[8]{0} parameter(0)
  ROOT %x = f32[8]{0} add(%b, %b)
}

%long (c: f32[8]) -> f32[8] {
  %c = f32[8]{0} parameter(0)
  ROOT %y = f32[8]{0} add(%c, %c)
}

"""


def test_of_branches_the_longest_counts() -> None:
    parsed = program(
        "%i = s32[] constant(0)",
        "ROOT %k = f32[8]{0} conditional(%i, %p, %p), branch_computations={%short, %long}",
        before=BRANCHES,
    )
    counter = Counter(x=core(1.0), y=core(4.0))
    timeline = walked(parsed, counter)
    assert timeline.seconds == 4
    assert set(timeline.computations) == {"main", "long"}
    [branch] = traced(parsed, counter).computations["main"].core
    assert (branch.calls, branch.rounds) == (("long",), 1)


def test_a_program_that_does_nothing_takes_no_time() -> None:
    timeline = walked(program(op("a", "p", "p", root=True)), Counter())
    assert (timeline.seconds, timeline.leaves) == (0, [])


def of_block(line: str, number: int) -> str:
    return f'{line}, metadata={{op_name="jit(f)/~blocks.{number}/~norm/add"}}'


def test_what_all_blocks_do_is_one_instruction_of_the_profile() -> None:
    parsed = program(
        of_block(op("a", "p", "p"), 0), of_block(op("b", "a", "p"), 1), of_block(op("c", "b", "p"), 2),
        op("d", "c", "p", root=True),
    )  # fmt: skip
    counter = Counter(a=core(1.0), b=core(3.0, 100.0), c=core(2.0), d=core(4.0))
    first, second = summarize(parsed, walked(parsed, counter), HARDWARE).instructions
    assert (first.name, first.module, first.times, first.seconds) == ("b", "blocks.*.norm", 3, 6)
    assert first.hbm == pytest.approx(100 / 6 / BANDWIDTH)
    assert (second.name, second.times, second.seconds) == ("d", 1, 4)
