"""Calls that several files make alike are interpreted once, and each file has its own findings and routes."""

from pathlib import Path

import pytest

from tpuport.lint import source, workers
from tpuport.lint.analysis import Analyser
from tpuport.lint.configuration import Settings
from tpuport.lint.interpreter.tracing_interpreter import TracingInterpreter
from tpuport.lint.workers import FileResult

HELPERS = """
import torch

def count(mask):
    return int(mask.sum())

def call(function, x):
    return function(x)
"""
MODEL = """
import torch
from torch import nn
from helpers import call, count

class {name}(nn.Module):
    def forward(self, x, mask):
        return self.scale(x) * count(mask)

    def scale(self, x):
        return call(self.own, x)

    def own(self, x):
        return {body}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "first.py").write_text(MODEL.format(name="First", body="x.tolist()"))
    (tmp_path / "second.py").write_text(MODEL.format(name="Second", body="x.item()"))
    return tmp_path


def analyse(directory: Path, *names: str) -> dict[str, FileResult]:
    analyser = workers.make_real_analyser(Settings())
    return {name: workers.analyse_file(analyser, str(directory / name)) for name in names}


def test_a_second_file_does_not_interpret_the_call_again(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: list[str] = []
    original = TracingInterpreter._run_body

    def run_body(self: TracingInterpreter, activation: object) -> object:
        run.append(activation.function.info.qualname)  # type: ignore[attr-defined]
        return original(self, activation)  # type: ignore[arg-type]

    monkeypatch.setattr(TracingInterpreter, "_run_body", run_body)
    analyse(project, "first.py", "second.py")
    assert run.count("count") == 1
    # What gets a method of the file's own class is each file's own.
    assert run.count("call") == 2


def test_findings_are_those_of_the_file_alone(project: Path) -> None:
    both = analyse(project, "first.py", "second.py")
    reverse = analyse(project, "second.py", "first.py")
    for name in ("first.py", "second.py"):
        alone = analyse(project, name)[name]
        assert alone.findings, "the test shows nothing"
        assert both[name].findings == reverse[name].findings == alone.findings
        assert both[name].traced == reverse[name].traced == alone.traced
        assert both[name].entries == reverse[name].entries == alone.entries


def test_the_route_is_the_file_s_own(project: Path) -> None:
    results = analyse(project, "first.py", "second.py")
    for name, model in (("first.py", "First"), ("second.py", "Second")):
        (finding,) = [f for f in results[name].findings if f.rule == "TPU204"]
        assert Path(finding.path).name == "helpers.py"
        assert finding.route == (f"{model}.forward", "count")


def test_the_work_counts_for_each_file(project: Path) -> None:
    from tpuport.lint.work import meter

    analyser = workers.make_real_analyser(Settings())
    assert isinstance(analyser, Analyser)
    units: list[int] = []
    for name in ("second.py", "second.py"):
        analyser.analyse(source.read(project / name, name))
        units.append(meter.units)
    assert units[0] == units[1]
