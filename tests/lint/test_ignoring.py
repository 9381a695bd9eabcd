"""`--add-ignore`: afterwards nothing is reported, and nothing else has changed."""

import ast
from pathlib import Path

import pytest

from tpuport.cli.lint import parser, run
from tpuport.lint.configuration import Settings
from tpuport.lint.engine import Run, lint_paths

CODE = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor):
        n = x.sum().item()  # a number
        y = x[mask.bool()] + x.max().item()  # tpuport: ignore[TPU101] fine
        if (
            x.min() > 0
            and mask.any()
        ):
            y = y * 2
        text = f\"\"\"
        {y.tolist()}
        \"\"\"
        return torch.where(
            y > n, y, y.max().item() \\
            + 1,
        )
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.py"
    path.write_text(CODE)
    return path


def found(path: Path) -> list[str]:
    return [finding.rule for finding in lint_paths([path], Settings(), Run(cache=False)).findings]


@pytest.mark.parametrize("option", ["--add-ignore", "--add-noqa"])
def test_nothing_is_reported_afterwards(model: Path, option: str) -> None:
    assert len(found(model)) >= 6
    assert run(parser().parse_args([str(model), option, "--no-cache"])) == 0
    assert found(model) == []
    assert ast.dump(ast.parse(model.read_text())) == ast.dump(ast.parse(CODE))
    lines = model.read_text().splitlines()
    assert lines[6].endswith("# a number  # tpuport: ignore[TPU201]")
    assert lines[7].endswith("# tpuport: ignore[TPU101, TPU201] fine")


def test_line_ends_stay(model: Path) -> None:
    model.write_bytes(CODE.replace("\n", "\r\n").encode())
    run(parser().parse_args([str(model), "--add-ignore", "--no-cache"]))
    assert found(model) == []
    assert model.read_bytes().count(b"\r\n") == CODE.count("\n")


def test_only_selected_rules_get_a_comment(model: Path) -> None:
    run(parser().parse_args([str(model), "--add-ignore", "--no-cache", "--select", "TPU202"]))
    assert model.read_text().count("TPU202") == 1
    assert "TPU205" not in model.read_text()


def test_a_file_that_cannot_be_read_stays_an_error(model: Path) -> None:
    broken = model.with_name("broken.py")
    broken.write_text("def f(:\n")
    assert run(parser().parse_args([str(broken), "--add-ignore", "--no-cache"])) == 2
    assert broken.read_text() == "def f(:\n"
