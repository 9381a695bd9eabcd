"""Profiles of compiled programs: their parts are the whole, and they are never below the roofline.

What is asserted holds with schedules and with the compiler's own estimates: which of them a program has depends on who
loaded libtpu in this process.
"""

import dataclasses
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tpuport.errors import PortError
from tpuport.topology import Decode, compile_for, estimate
from tpuport.topology.compile_report import Profile, Report
from tpuport.topology.step_trace import StepTrace

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
WIDTH = 512
SLICE: dict[str, Any] = {"topology": "v5e:1x1", "dtype": "bfloat16"}


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(torch.nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def stack(blocks: int) -> Report:
    x = torch.empty(1, 256, WIDTH, dtype=torch.bfloat16, device="meta")
    return compile_for(lambda: Stack(blocks), {"x": x}, scan_layers=True, **SLICE)


@pytest.fixture(scope="module")
def looped() -> Report:
    return stack(4)


@pytest.fixture(scope="module")
def decoded() -> Report:
    """With collectives, copies beside the core, and blocks one by one."""
    config = LlamaConfig(
        vocab_size=1024, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=8,
    )  # fmt: skip
    return compile_for(
        lambda: LlamaForCausalLM(config), Decode(4, 256), topology="v5e:2x4", tp=8, dtype="bfloat16"
    )


def profile_of(report: Report) -> Profile:
    assert report.profile is not None
    return report.profile


def trace_of(report: Report) -> StepTrace:
    assert report.trace is not None
    return report.trace


@pytest.fixture(params=["looped", "decoded"])
def report(request: pytest.FixtureRequest) -> Report:
    return request.getfixturevalue(request.param)


def test_parts_add_up_to_the_whole(report: Report) -> None:
    profile = profile_of(report)
    assert sum(profile.kinds.values()) == pytest.approx(profile.seconds)
    for parts in (profile.modules, profile.lines):
        assert sum(part.seconds for part in parts) == pytest.approx(profile.seconds)
        for part in parts:
            assert sum(part.kinds.values()) == pytest.approx(part.seconds)
        assert [part.seconds for part in parts] == sorted((part.seconds for part in parts), reverse=True)
    assert len(profile.instructions) <= 10
    assert sum(instruction.seconds for instruction in profile.instructions) <= profile.seconds * (1 + 1e-9)


def test_a_step_is_never_faster_than_the_roofline(report: Report) -> None:
    assert report.estimate is not None
    assert profile_of(report).seconds >= report.estimate.seconds
    assert 0 < profile_of(report).matrix_units <= profile_of(report).kinds["matrix products"]
    for instruction in profile_of(report).instructions:
        assert instruction.mfu <= 1 + 1e-9
        assert instruction.hbm <= 1 + 1e-9


def test_the_trace_is_the_profile_instruction_by_instruction(report: Report) -> None:
    trace, profile = trace_of(report), profile_of(report)
    seconds: dict[str, float] = {}

    def add(name: str, times: int) -> None:
        for span in trace.computations[name].core:
            for callee in span.calls:
                add(callee, times * span.rounds)
            kind = trace.instructions[span.instruction].kind
            if not span.calls:
                seconds[kind] = seconds.get(kind, 0.0) + times * span.seconds
            seconds["waiting"] = seconds.get("waiting", 0.0) + times * span.waiting

    add(trace.entry, 1)
    assert {kind: time for kind, time in seconds.items() if time} == pytest.approx(profile.kinds)
    assert trace.seconds == trace.computations[trace.entry].seconds == profile.seconds


def test_what_goes_on_beside_the_core_is_one_after_another_within_the_step(report: Report) -> None:
    for computation in trace_of(report).computations.values():
        ends: dict[tuple[str, ...], float] = {}
        for transfer in [*computation.copies, *computation.collectives]:
            lane = ("copies",) if not transfer.axes else transfer.axes
            assert transfer.start >= ends.get(lane, 0.0) - 1e-12
            ends[lane] = transfer.start + transfer.seconds
        assert max(ends.values(), default=0.0) <= computation.seconds + 1e-12


def test_twice_the_rounds_of_a_loop_take_twice_as_long(looped: Report) -> None:
    def loop_seconds(report: Report) -> dict[int, float]:
        trace = trace_of(report)
        return {
            span.rounds: span.seconds
            for computation in trace.computations.values()
            for span in computation.core
            if span.rounds > 1
        }

    assert loop_seconds(looped)[4] * 2 == pytest.approx(loop_seconds(stack(8))[8])
    names = {module.name for module in profile_of(looped).modules}
    assert "blocks.*.down" in names


def test_modules_lines_and_collectives_are_told_apart(decoded: Report) -> None:
    profile = profile_of(decoded)
    assert "lm_head" in {module.name for module in profile.modules}
    assert profile.kinds["collectives"] > 0
    assert any(line.source is not None and "down_proj" in line.source.code for line in profile.lines)
    assert any(
        transfer.axes == ("tp",)
        for transfer in trace_of(decoded).computations[trace_of(decoded).entry].collectives
    )


def test_two_runs_are_equal_and_estimate_is_the_profile(looped: Report) -> None:
    x = torch.empty(1, 256, WIDTH, dtype=torch.bfloat16, device="meta")
    again = estimate(lambda: Stack(4), {"x": x}, scan_layers=True, **SLICE)
    assert dataclasses.asdict(again) == dataclasses.asdict(profile_of(looped))


def test_what_does_not_fit_has_no_estimate() -> None:
    x = torch.empty(1, 1 << 20, 1 << 14, dtype=torch.bfloat16, device="meta")
    with pytest.raises(PortError, match="there is no program to estimate"):
        estimate(torch.nn.Identity, {"input": x}, **SLICE)
