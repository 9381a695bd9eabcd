"""Settings of pyproject.toml."""

from pathlib import Path

import pytest

import tpuport
from tpuport.lint.configuration import Settings, find_settings, load_settings, parse_torchax_version
from tpuport.lint.findings import Severity

WHOLE = """
[tool.tpuport.lint]
select = ["TPU1", "tpu201"]
ignore = ["TPU104"]
exclude = ["legacy"]
entry-points = ["pkg.module:Pipeline.step"]
target-torchax = "0.0.14"
training = true
jobs = 2
baseline = "known.json"

[tool.tpuport.lint.per-file-ignores]
"scripts/*" = ["TPU3"]

[tool.tpuport.lint.severities]
TPU5 = "info"
TPU501 = "error"
"""


def settings_of(directory: Path, text: str) -> Settings:
    (directory / "pyproject.toml").write_text(text)
    return find_settings([directory])


def test_every_setting(project: Path) -> None:
    settings = settings_of(project, WHOLE)
    assert settings == Settings(
        select=("TPU1", "TPU201"),
        ignore=("TPU104",),
        exclude=("legacy",),
        per_file_ignores=(("scripts/*", ("TPU3",)),),
        entry_points=("pkg.module:Pipeline.step",),
        severities=(("TPU5", Severity.INFO), ("TPU501", Severity.ERROR)),
        torchax=(0, 0, 14),
        training=True,
        jobs=2,
        baseline=project / "known.json",
        root=project,
    )


@pytest.mark.parametrize(
    ("line", "where", "words"),
    [
        ("nonsense = 1", "nonsense", "no setting 'nonsense'"),
        ('select = "TPU1"', "select", "list of strings"),
        ("select = [1]", "select", "list of strings"),
        ('select = ["TPU9"]', "select", "no rule's id starts with 'TPU9'"),
        ("training = 1", "training", "true or false"),
        ("jobs = -1", "jobs", "number of processes"),
        ("jobs = true", "jobs", "number of processes"),
        ('target-torchax = "new"', "target-torchax", "is not a torchax version"),
        ('severities = {TPU1 = "fatal"}', "severities.TPU1", "'fatal' is not a severity"),
        ("severities = 3", "severities", "must be a table"),
        ('per-file-ignores = {"*" = "TPU1"}', "per-file-ignores.*", "list of strings"),
    ],
)
def test_a_wrong_setting_names_the_file_and_the_key(project: Path, line: str, where: str, words: str) -> None:
    with pytest.raises(tpuport.PortError) as caught:
        settings_of(project, f"[tool.tpuport.lint]\n{line}\n")
    assert words in str(caught.value)
    assert f"{project / 'pyproject.toml'}: tool.tpuport.lint.{where}" in str(caught.value)


@pytest.mark.parametrize("text", ["# tpuport\n[tool", "tool.tpuport.lint = 3"])
def test_a_file_that_is_no_settings_is_named(project: Path, text: str) -> None:
    with pytest.raises(tpuport.PortError, match=r"pyproject\.toml"):
        settings_of(project, text)


def test_the_nearest_file_with_the_table_counts(project: Path) -> None:
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    (project / "pyproject.toml").write_text("[tool.tpuport.lint]\njobs = 3\n")
    (project / "a" / "pyproject.toml").write_text("[project]\nname = 'tpuport'\n")
    (inner / "m.py").write_text("")
    assert find_settings([inner / "m.py"]).jobs == 3
    (inner / "pyproject.toml").write_text("[tool.tpuport.lint]\njobs = 4\n")
    assert find_settings([inner]).jobs == 4
    assert find_settings([inner, project]).jobs == 3, "of two paths, what is above both"


def test_the_longer_prefix_wins() -> None:
    settings = Settings(select=("TPU1", "TPU201"), ignore=("TPU10", "TPU2"), severities=())
    asked = {
        id_: settings.is_enabled(id_) for id_ in ("TPU101", "TPU113", "TPU201", "TPU202", "TPU301", "TPU003")
    }
    assert asked == {
        "TPU101": False, "TPU113": True, "TPU201": True, "TPU202": False, "TPU301": False, "TPU003": True,
    }  # fmt: skip


def test_what_could_not_be_linted_cannot_be_ignored() -> None:
    settings = Settings(ignore=("ALL",))
    assert settings.is_enabled("TPU001")
    assert settings.is_enabled("TPU006")
    assert not settings.is_enabled("TPU003")
    assert not settings.is_enabled("TPU101")


def test_severities_by_prefix(project: Path) -> None:
    settings = settings_of(project, WHOLE)
    assert settings.severity("TPU502", Severity.WARNING) == Severity.INFO
    assert settings.severity("TPU501", Severity.WARNING) == Severity.ERROR
    assert settings.severity("TPU101", Severity.ERROR) == Severity.ERROR


def test_per_file_ignores(project: Path) -> None:
    settings = settings_of(project, WHOLE)
    assert settings.ignored_in(project / "scripts" / "train.py") == ("TPU3",)
    assert settings.ignored_in(project / "model.py") == ()


@pytest.mark.parametrize("text", ["torchax==0.0.13", "0.0.13", " torchax == 0.0.13 "])
def test_target(text: str) -> None:
    assert parse_torchax_version(text) == (0, 0, 13)


def test_a_file_without_the_table_has_no_settings(project: Path) -> None:
    (project / "pyproject.toml").write_text("[project]\n")
    assert load_settings(project / "pyproject.toml") == Settings(root=project)
