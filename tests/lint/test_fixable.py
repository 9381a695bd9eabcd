"""The label of a finding says what there is to rewrite at that place."""

from pathlib import Path

from tpuport.lint import fixable, lint_paths
from tpuport.lint.findings import Applicability

CODE = """
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
    (tmp_path / "model.py").write_text(CODE)
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
    (tmp_path / "model.py").write_text(CODE + "\n" * 25_000)
    report = lint_paths([tmp_path])
    assert not report.exact_fixes
    assert report.fixable(Applicability.SAFE) == 3


def test_nothing_to_fix_is_exact() -> None:
    assert fixable.at_each_place([], lambda path: ()) == ([], True)
