"""The verdict on each model class, apart from scripts and tests."""

import json
from pathlib import Path

import pytest

from tpuport.lint.configuration import Settings
from tpuport.lint.engine import Run, lint_paths
from tpuport.lint.entry_verdicts import group_of
from tpuport.lint.reports import Options, render
from tpuport.lint.run_report import Report

HEAD = "import torch\nfrom torch import nn\n"
MODEL = """
def longest(mask):
    return mask.sum().item()

class Clean(nn.Module):
    def forward(self, x: torch.Tensor):
        return x * 2

class Inner(nn.Module):
    def forward(self, x: torch.Tensor):
        return x[:, : longest(x)]

class Moved(nn.Module):
    def forward(self, x: torch.Tensor):
        return x + torch.cuda.current_device()

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.clean = Clean()

    def forward(self, x: torch.Tensor):
        return self.inner(self.clean(x))

class Flash(nn.Module):
    def forward(self, x: torch.Tensor):
        return x[x.nonzero()]

IMPLEMENTATIONS = {"eager": Clean, "flash_attention_2": Flash}

class Chosen(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = IMPLEMENTATIONS[config.implementation]()

    def forward(self, x: torch.Tensor):
        return self.attention(x)

class Quiet(nn.Module):
    def forward(self, x: torch.Tensor):
        return x.item()  # tpuport: ignore[TPU201] on purpose
"""
SCRIPT = """
class Head(nn.Module):
    def forward(self, x: torch.Tensor):
        return x.tolist()

if __name__ == "__main__":
    Head().to("cuda")
"""


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.chdir(tmp_path)
    for name, text in (("model.py", MODEL), ("train.py", SCRIPT), ("tests/test_model.py", SCRIPT)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(HEAD + text)
    return lint_paths(["."], Settings(), Run(cache_directory=tmp_path / "cache"))


def verdicts(report: Report) -> dict[str, list[str]]:
    return {f"{one.group} {one.name}": [error.rule for error in one.errors] for one in report.verdicts}


EXPECTED = {
    "model Clean": [], "model Inner": ["TPU201"], "model Moved": ["TPU303"], "model Outer": ["TPU201"],
    "model Flash": ["TPU102"], "model Chosen": [],
    "model Quiet": [], "script Head": ["TPU202"], "test Head": ["TPU202"],
}  # fmt: skip


def test_each_class_has_its_own_verdict(report: Report) -> None:
    assert verdicts(report) == EXPECTED


def test_verdicts_come_from_the_cache_too(report: Report, tmp_path: Path) -> None:
    again = lint_paths(["."], Settings(), Run(cache_directory=tmp_path / "cache"))
    assert verdicts(again) == EXPECTED


def test_the_text_keeps_scripts_and_tests_apart(report: Report) -> None:
    lines = render("text", report, Options()).splitlines()
    assert "In models, 3 of 7 entry points are expected to trace." in lines
    assert "  not Outer (./model.py:19): 1 error, first TPU201 in ./model.py:5" in lines
    assert "In files that run as scripts, 0 of 1 entry points are expected to trace." in lines
    assert "In tests, 0 of 1 entry points are expected to trace." in lines


def test_the_json_lists_every_entry_point(report: Report) -> None:
    entries = json.loads(render("json", report, Options()))["entry_points"]
    assert {entry["name"]: entry["expected_to_trace"] for entry in entries if entry["group"] == "model"} == {
        "Chosen": True, "Clean": True, "Flash": False, "Inner": False, "Moved": False, "Outer": False, "Quiet": True,
    }  # fmt: skip
    assert entries[1]["errors"] == ["./model.py:5: TPU201"]


@pytest.mark.parametrize(
    ("path", "line", "group"),
    [
        ("pkg/model.py", "", "model"),
        ("pkg/model.py", "if __name__ == '__main__':", "script"),
        ("examples/run.py", "", "script"),
        ("pkg/tests/helpers.py", "", "test"),
        ("pkg/model_test.py", "", "test"),
        ("pkg/testing_ground.py", "", "model"),
    ],
)
def test_groups(path: str, line: str, group: str) -> None:
    assert group_of(path, [line]) == group


CALLS = """
class Cache:
    pass

class Base(nn.Module):
    def forward(self, x: torch.Tensor, mask=None):
        if mask is not None:
            x = x[: mask.item()]
        return x

    def encode_image(self, x: torch.Tensor):
        return x.tolist()

class Always(Base):
    def forward(self, x: torch.Tensor, mask: torch.Tensor):
        return super().forward(x, mask)

class Sometimes(Base):
    def forward(self, x: torch.Tensor, mask=None):
        return super().forward(x, mask)
"""


def lint_calls(tmp_path: Path, settings: Settings) -> dict[str, list[tuple[str, str]]]:
    path = tmp_path / "package" / "model.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD + CALLS)
    report = lint_paths([path], settings, Run(cache_directory=tmp_path / "cache"))
    return {
        verdict.name: [(error.rule, error.scenario) for error in verdict.errors]
        for verdict in report.verdicts
    }


@pytest.mark.parametrize("run", ["first", "cached"])
def test_each_class_has_the_error_in_its_own_calls(tmp_path: Path, run: str) -> None:
    if run == "cached":
        lint_calls(tmp_path, Settings())
    assert lint_calls(tmp_path, Settings()) == {
        "Base": [("TPU201", "Base.forward with `mask`"), ("TPU202", "Base.encode_image")],
        "Always": [("TPU201", "")],
        "Sometimes": [("TPU201", "Sometimes.forward with `mask`")],
    }


# A copy of a library's model: with the options of most models, the wrapper's branch is never taken.
DECORATED = """
from transformers.modeling_rope_utils import dynamic_rope_update

class Rotary(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.rope_type = config.rope_type

    @dynamic_rope_update
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor):
        return x * position_ids
"""


def test_what_decorators_of_installed_libraries_add_is_not_traced(tmp_path: Path) -> None:
    path = tmp_path / "rotary.py"
    path.write_text(HEAD + DECORATED)
    report = lint_paths([path], Settings(), Run(cache_directory=tmp_path / "cache"))
    assert verdicts(report) == {"model Rotary": []}
    assert report.outside == ()


def test_what_a_patch_replaces_is_not_traced(tmp_path: Path) -> None:
    settings = Settings(patched=("package.model:Base.forward", "other:Base.encode_image"))
    assert lint_calls(tmp_path, Settings())["Always"]
    assert lint_calls(tmp_path, settings) == {
        "Base": [("TPU202", "Base.encode_image")], "Always": [], "Sometimes": [],
    }  # fmt: skip
