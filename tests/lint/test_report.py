"""What a run says of the model as a whole."""

from pathlib import Path

from tpuport.lint.engine import Run, lint_paths
from tpuport.lint.settings import Settings


def test_rules_that_were_not_asked_for_count_for_the_verdict(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    code = "from torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return x[x > 0]{}\n"
    file.write_text(code.format(""))
    report = lint_paths([file], Settings(select=("TPU4",)), Run(cache=False))
    assert (report.findings, report.exit_code, report.expected_to_trace) == ((), 0, False)
    assert report.verdict() == "Not expected to trace: 1 error of rules that were not asked for (TPU101)."
    file.write_text(code.format("  # tpuport: ignore[TPU101] masks are full here"))
    assert lint_paths([file], Settings(select=("TPU4",)), Run(cache=False)).expected_to_trace
