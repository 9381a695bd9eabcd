"""Calls that go on with the cache of earlier ones: torch's results, and no program for each token."""

from pathlib import Path
from typing import Any

import cached_models
import pytest
import torch
from cached_models import Attends, CountingCache, GrowingCache, Scales, SlicedCache, TensorCache

from tpuport.compilation.results import call_results
from tpuport.verification import CheckFinding, further_calls, number_arguments
from tpuport.verification.executed_lines import ExecutedLines
from tpuport.verification.model_runs import Arguments, widen_model

TOKENS = torch.tensor([[1, 5, 3], [2, 2, 9]])


def line_of(comment: str) -> int:
    lines = Path(cached_models.__file__).read_text().splitlines()
    [number] = [index for index, line in enumerate(lines, 1) if line.endswith(f"# {comment}")]
    return number


def find(cache: Any, *, compare: bool = True) -> list[CheckFinding]:
    torch.manual_seed(0)
    model = Attends().eval()
    arguments = Arguments.of({"tokens": TOKENS, "cache": cache})
    return further_calls.findings(model, widen_model(model), arguments, ExecutedLines(), compare=compare)


def line(finding: CheckFinding) -> int:
    assert finding.source is not None
    return finding.source.line


def changed_names(finding: CheckFinding) -> list[str]:
    assert (finding.kind, finding.severity) == ("recompilation", "error")
    return [change["name"] for change in finding.details["changes"]]


def test_a_cache_with_a_tensor_for_its_position_passes() -> None:
    assert find(TensorCache()) == []


def test_a_position_that_is_a_number_is_found_at_the_line_that_assigns_it() -> None:
    [finding] = find(SlicedCache())
    assert changed_names(finding) == ["cache.position"]
    assert line(finding) == line_of("position")
    # A trial with a tensor stops at the slice.
    assert f":{line_of('first slice')}:" in finding.remedy


def test_a_cache_that_grows_is_found_at_the_line_that_assigns_it() -> None:
    [finding] = find(GrowingCache())
    assert changed_names(finding) == ["cache.layers.k"]
    assert line(finding) == line_of("growth")
    assert "float32(2, 3, 8) to float32(2, 4, 8)" in finding.message


def test_a_number_that_may_be_a_tensor_gets_the_option_that_makes_it_one() -> None:
    cache = CountingCache()
    assert find(cache) == []
    # An int is an argument of the program anyway.
    cache.calls = 0.5
    [finding] = find(cache)
    assert changed_names(finding) == ["cache.calls"]
    assert line(finding) == line_of("calls")
    assert finding.details["option"] == "tpuport.compile(model, traced=['cache.calls'])"


def test_a_model_that_changes_no_argument_is_not_called_again() -> None:
    arguments = Arguments.of({"x": torch.ones(2, 3), "start": 1, "scale": 2.0})
    assert further_calls.findings(Scales(), None, arguments, ExecutedLines(), compare=True) == []


def test_a_cache_without_room_is_a_note() -> None:
    cache = TensorCache()
    cache.position += cached_models.LENGTH - 3
    [finding] = find(cache)
    assert (finding.kind, finding.severity) == ("skipped", "note")
    assert "cache" in finding.message


def test_a_write_that_the_caller_does_not_get_is_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_results, "overwrite", lambda tensor, array: None)
    [finding] = find(TensorCache())
    assert (finding.kind, finding.stage) == ("result", "repeat")
    assert finding.message.startswith("the result of call 2")


def test_numbers_among_the_arguments_are_notes_with_what_a_run_shows() -> None:
    start, scale = number_arguments.findings(Scales(), Arguments.of((torch.ones(2, 3), 1, 2.0, True)))
    assert start.severity == scale.severity == "note"
    assert line(start) == line_of("start")
    assert "traced=['scale']" in scale.remedy
