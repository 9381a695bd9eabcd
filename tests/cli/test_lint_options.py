"""Options of `tpuport lint` that users of other linters know, with the meaning that they have there."""

import dataclasses
import io
import json
import os
import sys
from pathlib import Path

import pytest

from tpuport.cli import main

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        mask = x > 0
        y = x.clone()
        y[mask] *= 2
        return y, x[mask]


def train(model):
    model.cuda()
"""
HELPER = "def pad(x):\n    return x[x > 0]\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a model and settings, which is the working directory."""
    monkeypatch.setenv("TPUPORT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    directory = tmp_path / "project"
    (directory / "old").mkdir(parents=True)
    (directory / "pyproject.toml").write_text("[tool.tpuport.lint]\n")
    (directory / "model.py").write_text(MODEL)
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def lint(capsys: pytest.CaptureFixture[str]):
    """Runs the command; its exit code and the rules of the findings."""

    def run(*arguments: str) -> tuple[int, list[str]]:
        code = main(["lint", *arguments, "--format", "json"])
        out, err = capsys.readouterr()
        assert out, err
        return code, [finding["rule"] for finding in json.loads(out)["findings"]]

    return run


def set_input(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


ALL = ["TPU113", "TPU101", "TPU301"]


def test_standard_input(
    lint, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_input(monkeypatch, MODEL)
    assert lint("-") == (1, ALL)
    # The text of a file that has another one on disk, and imports what is beside it.
    (project / "helper.py").write_text(HELPER)
    text = (
        "from torch import nn\nfrom helper import pad\n\n\nclass Model(nn.Module):\n"
        "    def forward(self, x):\n        return pad(x)\n"
    )
    set_input(monkeypatch, text)
    assert main(["lint", "--stdin-filename", "old/../model.py", "--format", "concise"]) == 1
    assert "1 error in files that were not named" in capsys.readouterr().out
    assert lint("model.py") == (1, ALL), "nothing of standard input is in the cache"
    for arguments, message in (
        (["model.py"], "with other files"),
        (["--add-ignore"], "writes files"),
        (["--watch"], "--watch"),
    ):
        assert main(["lint", "-", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_fixes_of_standard_input_go_to_standard_output(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_input(monkeypatch, MODEL)
    assert main(["lint", "-", "--stdin-filename", "model.py", "--fix"]) == 1
    out, err = capsys.readouterr()
    assert "TPU101" in err
    assert (project / "model.py").read_text() == MODEL
    assert main(["lint", "model.py", "--fix", "-q"]) == 1
    assert (project / "model.py").read_text() == out != MODEL


def test_another_file_of_settings(lint, project: Path) -> None:
    (project / "other.toml").write_text('[tool.tpuport.lint]\nselect = ["TPU3"]\n')
    assert lint("model.py", "--config", "other.toml") == (0, ["TPU301"])
    assert lint("model.py", "--config", 'severities.TPU3 = "error"', "--select", "TPU3") == (1, ["TPU301"])
    (project / "pyproject.toml").write_text('[tool.tpuport.lint]\nignore = ["TPU"]\n')
    assert lint("model.py") == (0, [])
    assert lint("model.py", "--isolated") == (1, ALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "gone.toml"], "gone.toml"),
        (["--config", "selekt = []"], "there is no setting 'selekt'"),
        (["--config", "select = ["], "is not a setting"),
        (["--fixable", "TPU9"], "no rule's id starts with 'TPU9'"),
    ],
)
def test_wrong_settings(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "model.py", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_selection(lint, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.tpuport.lint]\nselect = ["TPU3"]\n')
    assert lint("model.py", "--extend-select", "TPU101") == (1, ["TPU101", "TPU301"])
    assert lint("model.py", "--select", "TPU113", "--extend-select", "TPU301") == (1, ["TPU113", "TPU301"])
    (project / "pyproject.toml").write_text("[tool.tpuport.lint]\n")
    assert lint("model.py", "--extend-select", "TPU1") == (1, ALL)


def test_exclusion(lint, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "old" / "first.py").write_text(MODEL)
    (project / "pyproject.toml").write_text('[tool.tpuport.lint]\nexclude = ["model.py"]\n')
    assert lint(".") == (1, ALL)
    assert lint(".", "--extend-exclude", "old") == (2, ["TPU002"])
    assert lint(".", "--exclude", "old")[1] == ALL
    assert lint(".", "--exclude", "old/*.py,model.py")[0] == 2
    # Patterns of the command line start at the working directory.
    monkeypatch.chdir(project / "old")
    (project / "old" / "inner").mkdir()
    (project / "old" / "inner" / "second.py").write_text(MODEL)
    assert lint(".", "--exclude", "inner/*.py") == (1, ALL)
    assert lint(".", "--exclude", "old/inner/*.py") == (1, [*ALL, *ALL])


def test_entry_points_and_training(lint, project: Path) -> None:
    (project / "helper.py").write_text(HELPER)
    assert lint("helper.py") == (0, [])
    assert lint("helper.py", "--entry-point", "helper:pad") == (1, ["TPU101"])
    dropping = (
        "    def forward(self, x):\n        if self.training:\n            x = x[x > 0]\n        return x\n"
    )
    (project / "trained.py").write_text(f"from torch import nn\n\n\nclass Model(nn.Module):\n{dropping}")
    assert lint("trained.py") == (0, [])
    assert lint("trained.py", "--training") == (1, ["TPU101"])
    (project / "pyproject.toml").write_text("[tool.tpuport.lint]\ntraining = true\n")
    assert lint("trained.py", "--no-training") == (0, [])


def test_which_rules_are_fixed(lint, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "model.py", "--unsafe-fixes", "--diff", "--unfixable", "TPU113"]) == 1
    out = capsys.readouterr().out
    assert "-    model.cuda()" in out
    assert "-        y[mask]" not in out
    assert main(["lint", "model.py", "--unsafe-fixes", "--diff", "--fixable", "TPU1"]) == 1
    out = capsys.readouterr().out
    assert "-    model.cuda()" not in out
    assert "-        y[mask]" in out
    (project / "pyproject.toml").write_text('[tool.tpuport.lint]\nunfixable = ["TPU1"]\n')
    assert main(["lint", "model.py", "--format", "concise"]) == 1
    assert "[fix]" not in capsys.readouterr().out


def test_what_would_be_linted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "old" / "first.py").write_text(MODEL)
    assert main(["lint", ".", "--show-files"]) == 0
    assert capsys.readouterr().out == f"{project}/model.py\n{project}/old/first.py\n"
    assert main(["lint", ".", "--show-files", "--exclude", "old"]) == 0
    assert capsys.readouterr().out == f"{project}/model.py\n"


def test_the_settings_can_be_read_back(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tpuport.lint.configuration import load_settings

    text = """[tool.tpuport.lint]
select = ["TPU1"]
entry-points = ["a:b"]
baseline = "known.json"
per-file-ignores = { "a/*" = ["TPU3"] }
severities = { TPU5 = "info" }
"""
    (project / "pyproject.toml").write_text(text)
    assert main(["lint", ".", "--show-settings", "--ignore", "TPU104"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"# from {project}/pyproject.toml\n[tool.tpuport.lint]\n")
    settings = load_settings(project / "pyproject.toml")
    (project / "pyproject.toml").write_text(out)
    assert load_settings(project / "pyproject.toml") == dataclasses.replace(settings, ignore=("TPU104",))


def test_quiet(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "model.py", "-q", "--format", "concise"]) == 1
    out, err = capsys.readouterr()
    assert [line.split(": ")[0] for line in out.splitlines()] == [
        "model.py:9:9", "model.py:10:19", "model.py:14:5"
    ]  # fmt: skip
    assert not err
    (project / "model.py").write_text("x = 1\n")
    assert main(["lint", "model.py", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_exit_code_agrees_with_the_verdict(lint, project: Path) -> None:
    """An error of the project's own that the named files call fails the run, unless it would not if it were named."""
    (project / "helper.py").write_text(HELPER)
    (project / "model.py").write_text(
        "from torch import nn\nfrom helper import pad\n\n\nclass Model(nn.Module):\n"
        "    def forward(self, x):\n        return pad(x)\n"
    )
    assert lint("model.py") == (1, [])
    assert lint("model.py", "--select", "TPU3") == (0, [])
    (project / "pyproject.toml").write_text(
        '[tool.tpuport.lint.per-file-ignores]\n"helper.py" = ["TPU101"]\n'
    )
    assert lint("model.py") == (0, [])
    (project / "pyproject.toml").write_text('[tool.tpuport.lint]\nbaseline = "known.json"\n')
    assert lint(".", "--write-baseline")[0] == 0
    assert lint("model.py") == (0, [])
    os.truncate(project / "pyproject.toml", 0)
    (project / "helper.py").write_text("def pad(x):\n    return x[x > 0]  # tpuport: ignore[TPU101] known\n")
    assert lint("model.py") == (0, [])
