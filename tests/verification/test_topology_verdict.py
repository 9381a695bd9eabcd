"""The stage of `--topology`, with made-up answers of the process that compiles."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from tpuport.errors import PortError
from tpuport.topology import compile_process
from tpuport.topology.compile_messages import CompileRequest, CompileResult, Event, Progress
from tpuport.topology.compile_report import Failure, Finding, Source
from tpuport.verification import CheckFinding, Stage
from tpuport.verification.topology_verdict import compile_target

ADVICE = dataclasses.asdict(Finding("TPC001", "name", "products are small", "a larger batch"))
MEMORY = dataclasses.asdict(Failure("memory", "it needs 20 GiB", remedy="more devices"))
TRACE = dataclasses.asdict(
    Failure(
        "trace", "a branch on a tensor", Source("model.py", 3, "forward", "if x:"), "TPU205", "torch.where"
    )
)


def verdict(monkeypatch: pytest.MonkeyPatch, *outcomes: dict[str, Any]) -> tuple[Stage, list[CheckFinding]]:
    """The stage and findings if the process answers with these outcomes."""

    def run_in_child(request: CompileRequest) -> Iterator[Event]:
        yield Progress("compiling", request.target)
        for outcome in outcomes:
            yield CompileResult("model", request.topology, **outcome)

    monkeypatch.setattr(compile_process, "run_in_child", run_in_child)
    return compile_target(CompileRequest("mine.py:target", {}, "v5e:2x4", {"tp": 8}))


def test_a_program_that_fits_passes_with_advice_as_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"fits": True, "failure": None, "advice": [ADVICE]}
    stage, [finding] = verdict(monkeypatch, {"report": report})
    assert (stage.status, stage.summary) == ("passed", "model fits v5e:2x4")
    assert (finding.severity, finding.rule, finding.remedy) == ("note", "TPC001", "a larger batch")


@pytest.mark.parametrize("failure", [MEMORY, None])
def test_a_program_that_does_not_fit_is_an_error(
    monkeypatch: pytest.MonkeyPatch, failure: dict[str, Any] | None
) -> None:
    report = {"fits": False, "failure": failure, "advice": [ADVICE]}
    stage, [finding] = verdict(monkeypatch, {"report": report})
    assert (stage.status, stage.summary) == ("findings", "model does not fit v5e:2x4")
    assert finding.severity == "error"
    assert finding.remedy


def test_what_cannot_be_traced_is_an_error_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, [finding] = verdict(monkeypatch, {"failure": TRACE})
    assert (stage.status, stage.summary) == ("findings", "model cannot be compiled for v5e:2x4")
    assert finding.source is not None
    assert (finding.source.file, finding.source.line, finding.rule) == ("model.py", 3, "TPU205")


def test_no_answer_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, findings = verdict(monkeypatch)
    assert (stage.status, findings) == ("skipped", [])


def test_a_process_that_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(request: CompileRequest) -> Iterator[Event]:
        raise PortError("the process that compiles has died", where="its last words", fix="tpuport doctor")
        yield

    monkeypatch.setattr(compile_process, "run_in_child", die)
    stage, [finding] = compile_target(CompileRequest("mine.py:target", {}, "v5e:2x4", {"tp": 8}))
    assert stage.status == "failed"
    assert (finding.kind, finding.severity) == ("failure", "error")
    assert "its last words" in finding.message
