"""The pages about the linter say what it does."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tpuport.cli import main
from tpuport.errors import PortError
from tpuport.lint.configuration import find_settings, parse_torchax_version
from tpuport.lint.rule_catalogue import all_entries


def lint(arguments: list[str]) -> int:
    return main(["lint", *arguments])


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "lint.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}[^\n]*\n(.*?)```", PAGE, re.DOTALL)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_rules", ROOT / "docs" / "gen_rules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_of_the_rules_are_what_the_rules_say() -> None:
    assert generator().stale_pages() == [], "run python docs/gen_rules.py"


def test_every_rule_has_a_page_and_the_index_names_it() -> None:
    pages = generator().pages()
    for one in all_entries():
        assert f"({one.id}.md)" in pages["index.md"]
        assert pages[f"{one.id}.md"].startswith(f"# {one.id} {one.name}\n")


def test_the_example_prints_what_the_page_shows(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, shown = blocks("console")[0].split("\n", 1)
    (code,) = [block for block in blocks("python") if "class Model" in block]
    (project / "model.py").write_text(code)
    assert lint(command.split()[3:]) == 1
    printed = capsys.readouterr().out
    assert re.sub(r"\(\d.*?\)", "", printed) == re.sub(r"\(\d.*?\)", "", shown)


def test_the_settings_shown_are_settings(project: Path) -> None:
    (block,) = blocks("toml")
    (project / "pyproject.toml").write_text(block)
    settings = find_settings([project])
    assert settings.entry_points == ("pipelines.video:VideoPipeline.denoise", "Sampler.step_*")
    names = re.findall(r"^([\w-]+) = ", block, re.MULTILINE)
    assert {
        "select",
        "ignore",
        "exclude",
        "entry-points",
        "target-torchax",
        "training",
        "jobs",
        "baseline",
    } <= set(names)


def test_a_wrong_target_is_answered_with_the_form_shown(project: Path) -> None:
    with pytest.raises(PortError) as caught:
        parse_torchax_version("new")
    assert str(caught.value).rpartition("fix: write ")[2] == "torchax==0.0.13"
    assert 'target-torchax = "torchax==0.0.13"' in PAGE


SCRIPT = """\
import torch


def main():
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.ones(3).cuda().sum()
    print(loss.item())


if __name__ == "__main__":
    main()
"""


def test_in_a_training_script_only_what_runs_at_import_is_an_error(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "train.py").write_text(SCRIPT)
    assert lint(["train.py", "--format", "concise"]) == 0
    assert "train.py:6:16: TPU301 warning" in capsys.readouterr().out
    (project / "train.py").write_text(
        SCRIPT.replace("\n\n\ndef", "\n\nLIMIT = torch.ones(1).cuda()\n\n\ndef", 1)
    )
    assert lint(["train.py", "--format", "concise"]) == 1
    assert "train.py:3:9: TPU301 error" in capsys.readouterr().out
    assert "is a warning, and an error if it runs upon import" in " ".join(PAGE.split())


def test_the_suppressions_shown_suppress(project: Path) -> None:
    from tpuport.lint import suppressions

    (block,) = [block for block in blocks("python") if "tpuport: ignore" in block]
    found = suppressions.parse_suppressions(block)
    assert found.problems == ()
    assert [(comment.first, comment.last) for comment in found.comments[:3]] == [(1, 1), (4, 5), (9, 10)]


def test_the_workflow_shown_is_the_file() -> None:
    workflow = (ROOT / "docs" / "examples" / "tpuport-lint.yml").read_text()
    shown, local = blocks("yaml")
    assert shown == workflow
    steps = yaml.safe_load(workflow)["jobs"]["lint"]["steps"]
    command = next(step["run"] for step in steps if "tpuport lint" in step.get("run", ""))
    upload = next(step["with"]["sarif_file"] for step in steps if "upload-sarif" in step.get("uses", ""))
    assert command.endswith(f"--format sarif --output-file {upload}")
    assert yaml.safe_load(local)["repos"][0]["hooks"][0]["id"] == "tpuport-lint"


def test_the_hook_runs_the_command(project: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["id"] == "tpuport-lint"
    assert hook["entry"].split()[:2] == ["tpuport", "lint"]
    (project / "m.py").write_text("x = 1\n")
    assert lint([*hook["entry"].split()[2:], "m.py"]) == 0


def test_every_option_is_on_the_command_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(["--help"]) == 0
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help", "--show-source"}
    page = (ROOT / "docs" / "cli.md").read_text()
    assert {option for option in options if option not in page} == set()
