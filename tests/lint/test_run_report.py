"""What a run says of the model as a whole."""

from pathlib import Path

import pytest

from tpuport.lint.configuration import Settings
from tpuport.lint.engine import Run, lint_paths
from tpuport.lint.findings import Severity
from tpuport.lint.reports.terminal import Style, summary

MODEL = """\
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        print(f"{x}")
        return x[x > 0] * x.max().item()
"""


def test_rules_that_were_not_asked_for_count_for_the_verdict(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    code = "from torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return x[x > 0]{}\n"
    file.write_text(code.format(""))
    report = lint_paths([file], Settings(select=("TPU4",)), Run(cache=False))
    assert (report.findings, report.exit_code, report.expected_to_trace) == ((), 0, False)
    assert report.verdict() == "Not expected to trace: 1 error of rules that were not asked for (TPU101)."
    elsewhere = Settings(per_file_ignores=(("model.py", ("TPU1",)),), root=tmp_path)
    assert "not asked for (TPU101)" in lint_paths([file], elsewhere, Run(cache=False)).verdict()
    file.write_text(code.format("  # tpuport: ignore[TPU101] masks are full here"))
    assert lint_paths([file], Settings(select=("TPU4",)), Run(cache=False)).expected_to_trace


def test_selected_and_other_rules_both_count(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    verdict = lint_paths([file], Settings(select=("TPU1",)), Run(cache=False)).verdict()
    assert verdict == (
        "Not expected to trace: 1 error in or before the 1 function traced from 1 entry point, "
        "and 1 error of rules that were not asked for (TPU201)."
    )


def test_a_script_around_a_model_that_traces(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "from torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return x + 1\n"
    )
    (tmp_path / "train.py").write_text('from model import Model\n\nModel().to("cuda")\n')
    report = lint_paths([tmp_path], Settings(), Run(cache=False))
    assert (report.exit_code, report.expected_to_trace) == (1, False)
    assert report.verdict() == (
        "Not expected to run: 1 error in code around the 1 function traced from 1 entry point, "
        "in which nothing stops the trace."
    )


def test_errors_in_files_that_were_not_named_count_whatever_is_asked(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def read(x):\n    return x[x > 0]\n")
    file = tmp_path / "model.py"
    file.write_text(
        "from torch import nn\nfrom helper import read\n\n\n"
        "class Model(nn.Module):\n    def forward(self, x):\n        return read(x)\n"
    )
    report = lint_paths([file], Settings(select=("TPU4",)), Run(cache=False))
    assert not report.expected_to_trace
    assert "files that were not named" in report.verdict()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(), "3 errors (1 of them does not stop the trace) ("),
        (Settings(severities=(("TPU211", Severity.WARNING),)), "2 errors and 1 warning ("),
        (Settings(select=("TPU1",)), "1 error ("),
        (Settings(select=("TPU211",)), "1 error that does not stop the trace ("),
    ],
)
def test_the_summary_says_which_errors_do_not_stop_the_trace(
    tmp_path: Path, settings: Settings, words: str
) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    report = lint_paths([file], settings, Run(cache=False))
    assert f": {words}" in summary(report, Style(color=False), by_family=False)[0]
