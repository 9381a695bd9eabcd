"""The `fix` of a finding says what can be done with the code at its position."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tpuport.lint import Settings, fixing, lint_paths
from tpuport.lint.engine import Run
from tpuport.lint.findings import Applicability, Finding

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        mask = x > 0
        rows = torch.where(mask)[0]
        y = x.clone()
        y[mask] *= 2
        return y, rows


def train(model):
    model.cuda()
"""


def test_a_place_without_a_rewrite_is_not_called_fixable(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    report = lint_paths([tmp_path])
    labels = {finding.rule: finding.fix for finding in report.findings}
    assert labels == {
        "TPU102": Applicability.NONE,
        "TPU113": Applicability.SAFE,
        "TPU301": Applicability.UNSAFE,
    }
    assert report.exact_fixes
    assert (report.fixable(Applicability.SAFE), report.fixable(Applicability.UNSAFE)) == (1, 1)


def test_large_runs_keep_what_the_rules_can_do_at_best(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL + "\n" * 25_000)
    report = lint_paths([tmp_path])
    assert not report.exact_fixes
    assert report.fixable(Applicability.SAFE) == 2


def test_nothing_to_fix_is_exact(project: Path) -> None:
    (project / "m.py").write_text("x = 1\n")
    assert lint_paths(["m.py"]).exact_fixes


def test_an_unchanged_file_is_not_planned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUPORT_CACHE_DIR", str(tmp_path / "cache"))
    model = tmp_path / "model.py"
    model.write_text(MODEL)
    first = lint_paths([tmp_path])
    planned: list[str] = []

    def plan(text: str, findings: Sequence[Finding]) -> list[Applicability]:
        planned.append(text)
        return fixing.available_fixes_with_libcst(text, findings)

    monkeypatch.setattr(fixing, "available_fixes", plan)
    assert lint_paths([tmp_path]).findings == first.findings
    # Of other rules' findings nothing else is known.
    lint_paths([tmp_path], Settings(select=("TPU1",)))
    assert not planned
    assert lint_paths([tmp_path], run=Run(fix=Applicability.SAFE, write=False)).fixed
    assert lint_paths([tmp_path]).findings == first.findings
    model.write_text(f"{MODEL}\n\n")
    assert lint_paths([tmp_path]).findings == first.findings
    assert len(planned) == 2  # for the run with fixes, and for the new text


def test_a_copy_to_the_host_may_be_needed_on_a_gpu(tmp_path: Path) -> None:
    """Without it, `.numpy()` of a tensor on a GPU is an error, in whatever line it stands."""
    (tmp_path / "model.py").write_text("""
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x.cpu().data.numpy()
""")
    labels = {finding.rule: finding.fix for finding in lint_paths([tmp_path]).findings}
    assert labels["TPU312"] == Applicability.UNSAFE


def test_a_script_may_still_run_on_a_gpu(tmp_path: Path) -> None:
    """A program that trains on one moves its model there, and so does a constructor what no `to` of the model moves."""
    (tmp_path / "train.py").write_text("import torch\n\nmodel = torch.nn.Linear(2, 2).cuda()\n")
    (tmp_path / "model.py").write_text("""
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2).cuda()
        self.table = torch.ones(2, device="cuda")

    def forward(self, x):
        return self.layer(x) * self.table
""")
    labels = {(finding.rule, finding.fix) for finding in lint_paths([tmp_path]).findings}
    assert {("TPU301", Applicability.UNSAFE), ("TPU302", Applicability.UNSAFE)} <= labels
