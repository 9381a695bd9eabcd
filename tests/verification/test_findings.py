"""Findings in the manner of a newcomer: one for a line, at the user's line, with the right remedy, and none about what
a check does itself.
"""

import importlib
import logging
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

import tpuport
from tpuport.trace_errors import Source, libraries
from tpuport.verification import CheckFinding, CheckResult
from tpuport.verification.check_result import order_findings

X = torch.rand(4, 64, generator=torch.Generator().manual_seed(0))


def line_of(comment: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    [number] = [index for index, line in enumerate(lines, 1) if line.endswith(f"# {comment}")]
    return number


def only_error(result: CheckResult) -> CheckFinding:
    [finding] = result.errors
    return finding


class Flagged(torch.nn.Module):
    """Says something of flags that its user has not set, and has two ways to the same numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.gradient_checkpointing = self.use_rel_pos = self.verbose = False
        self.fused = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gradient_checkpointing:
            logging.getLogger("model").warning("checkpointing is on")
            warnings.warn("checkpointing is on", stacklevel=1)
        if self.verbose:
            sys.stderr.write("x\n")
        if self.use_rel_pos:
            x = x + self.rel_pos
        if self.fused:
            return x.sum(-1, keepdim=True) * x
        return x.flip(-1).cumsum(-1)[..., -1:] * x


def test_nothing_is_said_of_flags_that_a_check_inverts(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    result = tpuport.check(Flagged(), X)
    assert result.ok, result.to_text()
    messages = [record.getMessage() for record in caplog.records]
    assert not [message for message in messages if "checkpointing" in message or "Flagged" in message]
    captured = capfd.readouterr()
    assert "checkpointing" not in captured.err
    assert "x\n" not in captured.err
    assert not logging.root.manager.disable


class ReadsAndEnds(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        return x + total.item() + float(getattr(total, "_elem", total))  # both


def test_a_line_that_needs_a_value_and_ends_the_trace_is_one_finding() -> None:
    result = tpuport.check(ReadsAndEnds(), X)
    finding = only_error(result)
    assert finding.source is not None
    assert (finding.kind, finding.source.line, finding.effort) == ("value", line_of("both"), "minutes")


def test_the_same_line_and_rule_have_one_effort() -> None:
    line = Source("model.py", 3, "forward")
    efforts = {
        CheckFinding(kind, "values", "error", "", source=line, rule="TPU201").effort
        for kind in ("value", "trace")
    }
    assert efforts == {"minutes"}
    other = CheckFinding("trace", "compile", "error", "", source=Source("model.py", 4, "forward"))
    value = CheckFinding("value", "values", "error", "", source=line, rule="TPU201")
    trace = CheckFinding("trace", "compile", "error", "", source=line, rule="TPU204")
    assert order_findings([trace, other, value]) == (value, other)


@pytest.fixture
def config_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An installed package that is no library of models."""
    file = tmp_path / "configuring.py"
    file.write_text("def number(value):\n    return float(value)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(libraries, "_INSTALLED", (f"{tmp_path}/",))
    return importlib.import_module("configuring")


class Configured(torch.nn.Module):
    library: ModuleType

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.library.number(x.mean())  # configured


def test_a_line_of_a_library_without_models_is_where_it_ended(config_library: ModuleType) -> None:
    Configured.library = config_library
    finding = only_error(tpuport.check(Configured(), X))
    assert finding.source is not None
    assert (finding.source.file, finding.source.line) == (__file__, line_of("configured"))
    assert f"(it ended in {config_library.__file__}:2)" in finding.message


class Asks(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.missing(x)


class Mismatched(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x], -1) @ torch.ones(4, 4)


class MismatchedInputs(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(2, -1) @ torch.ones(4, 4)


@pytest.mark.parametrize(
    ("model_class", "remedy"),
    [(Asks, "correct the line"), (Mismatched, "correct the line"), (MismatchedInputs, "correct the inputs")],
)
def test_the_inputs_are_to_blame_only_if_torch_refuses_them(
    model_class: type[torch.nn.Module], remedy: str
) -> None:
    finding = tpuport.check(model_class(), X).errors[0]
    assert finding.kind == "failure"
    assert finding.remedy.startswith(remedy)


class AsksForGpu(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert torch.cuda.is_available(), "no GPU"  # gpu
        return x


def test_what_the_linter_knows_of_a_line_that_fails_is_its_remedy() -> None:
    first, *others = tpuport.check(AsksForGpu(), X).errors
    assert (first.kind, first.rule) == ("failure", "TPU302")
    assert "inputs" not in first.remedy
    assert line_of("gpu") not in {finding.source.line for finding in others if finding.source}
