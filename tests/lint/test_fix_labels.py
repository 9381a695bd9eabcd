"""The `fix` of a finding says what can be done with the code at its position."""

from pathlib import Path

from tpuport.lint import lint_paths
from tpuport.lint.findings import Applicability

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
    assert report.fixable(Applicability.SAFE) == 3


def test_nothing_to_fix_is_exact(project: Path) -> None:
    (project / "m.py").write_text("x = 1\n")
    assert lint_paths(["m.py"]).exact_fixes
