"""The formats, each read back by what reads it."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import tpuport
from tpuport.lint.engine import Run, lint_paths
from tpuport.lint.reports import FORMATS, Options, render
from tpuport.lint.run_report import Report

pytestmark = pytest.mark.usefixtures("word_analysis")

CODE = "def forward():\n\tx = 'é日' + BAD  # \x1b[31m\nBAD  # tpuport: ignore[TPU1]\nBAD\nBAD\nWARN\n"


@pytest.fixture
def report(project: Path) -> Report:
    """Three errors, two warnings, one of them in a file whose name wants escaping, and a failure."""
    (project / "m.py").write_text(CODE)
    (project / "a,b:c%d&<e>.py").write_text("WARN\n")
    (project / "broken.py").write_text("def f(:\n")
    return lint_paths(["."], None, Run(cache=False))


@pytest.fixture
def clean(project: Path) -> Report:
    (project / "m.py").write_text("def forward(): pass\n")
    return lint_paths(["."], None, Run(cache=False))


def test_text(report: Report) -> None:
    text = render("text", report)
    block = text[text.index("./m.py:2:") :].split("\n\n")[0]
    assert block.splitlines() == [
        "./m.py:2:13: TPU101 error [fix]: there is a BAD",
        "  2 | x = 'é日' + BAD  # \N{REPLACEMENT CHARACTER}[31m",
        "    |             ^^^",
        "  help: write GOOD",
    ]
    assert "3 files with 7 lines: 4 errors and 2 warnings" in text
    assert "  TPU1xx data-dependent shapes" in text
    assert "5 findings can be fixed with --fix." in text
    assert "1 finding suppressed by comments." in text
    assert text.endswith("Whether it traces is not known: 1 path could not be linted.\n")
    assert "\x1b" not in text


def test_colors_only_where_asked(report: Report) -> None:
    assert "\x1b[31m" in render("text", report, Options(color=True))
    assert re.sub(r"\x1b\[\d+m", "", render("text", report, Options(color=True))) == render("text", report)


def test_text_without_source(report: Report) -> None:
    assert "^^^" not in render("text", report, Options(show_source=False))


def test_a_long_line_is_cut_around_the_finding(project: Path) -> None:
    (project / "m.py").write_text(f"x = '{'y' * 5000}' + BAD + '{'z' * 5000}'\n")
    text = render("text", lint_paths(["m.py"], None, Run(cache=False)))
    shown, carets = text.splitlines()[1:3]
    assert len(shown) < 200
    assert shown[carets.index("^") :].startswith("BAD")


def test_concise(report: Report) -> None:
    lines = render("concise", report).splitlines()
    assert lines[0] == "./a,b:c%d&<e>.py:1:1: TPU501 warning [fix]: there is a WARN"
    assert lines[1].startswith("./broken.py:1:7: TPU001 error: Python cannot parse this file")


def test_statistics(report: Report) -> None:
    lines = render("text", report, Options(statistics=True)).splitlines()
    assert lines[0].split()[:3] == ["3", "TPU101", "boolean-mask-read"]
    assert not any("m.py" in line for line in lines)


def test_a_clean_model(clean: Report) -> None:
    text = render("text", clean)
    assert text.startswith("1 file with 1 line: no findings (")
    assert text.endswith("Expected to trace: no error in the 1 function traced from 1 entry point.\n")


def test_json(report: Report) -> None:
    content = json.loads(render("json", report))
    assert content["schema_version"] == 1
    assert content["summary"]["by_rule"] == {"TPU001": 1, "TPU101": 3, "TPU501": 2}
    assert content["summary"]["exit_code"] == 2
    finding = next(one for one in content["findings"] if one["path"] == "./m.py")
    wanted = {"line": 2, "column": 13, "end_line": 2, "end_column": 16, "rule": "TPU101", "severity": "error"}
    assert wanted.items() <= finding.items()
    assert re.fullmatch("[0-9a-f]{32}", finding["fingerprint"])


def test_the_page_describes_every_field_of_the_json(report: Report) -> None:
    page = (Path(__file__).parents[3] / "docs" / "lint.md").read_text()
    content = json.loads(render("json", report))
    names = [*content, *content["summary"], *content["findings"][0]]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_sarif(report: Report) -> None:
    log: Any = json.loads(render("sarif", report))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] == "tpuport lint"
    assert len({rule["id"] for rule in rules}) == len(rules) > 40
    for rule in rules:
        assert rule["shortDescription"]["text"].endswith(".")
        assert rule["help"]["markdown"]
        assert rule["defaultConfiguration"]["level"] in {"error", "warning", "note"}
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
        assert result["level"] in {"error", "warning", "note"}
        (location,) = result["locations"]
        region = location["physicalLocation"]["region"]
        assert 1 <= region["startLine"] <= region["endLine"]
        assert region["startColumn"] >= 1
        assert location["physicalLocation"]["artifactLocation"]["uriBaseId"] in run["originalUriBaseIds"]
        assert " " not in location["physicalLocation"]["artifactLocation"]["uri"]
    prints = [one["partialFingerprints"]["tpuportLint/v1"] for one in run["results"]]
    assert len(set(prints)) == len(prints)
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert invocation["toolExecutionNotifications"][0]["message"]["text"].startswith("Python cannot parse")
    assert run["columnKind"] == "unicodeCodePoints"


def test_sarif_of_a_path_that_does_not_exist(project: Path) -> None:
    log = json.loads(render("sarif", lint_paths(["gone/m.py"], None, Run(cache=False))))
    assert log["runs"][0]["results"][0]["ruleId"] == "TPU002"


def test_github(report: Report) -> None:
    lines = render("github", report).splitlines()
    assert lines[0] == (
        "::warning file=a%2Cb%3Ac%25d&<e>.py,line=1,endLine=1,title=TPU501 tensor-built-in-forward,col=1,endColumn=5::"
        "there is a WARN. help: write GOOD"
    )
    assert sum(line.startswith("::error ") for line in lines) == 4


def test_gitlab(report: Report) -> None:
    issues = json.loads(render("gitlab", report))
    assert len({issue["fingerprint"] for issue in issues}) == len(issues) == 6
    for issue in issues:
        assert issue["severity"] in {"info", "minor", "major", "critical", "blocker"}
        assert issue["location"]["lines"]["begin"] >= 1
        assert not issue["location"]["path"].startswith(".")


def test_fingerprints_stay_when_lines_move(project: Path) -> None:
    (project / "m.py").write_text("BAD\nx\nBAD\n")
    before = json.loads(render("gitlab", lint_paths(["m.py"], None, Run(cache=False))))
    (project / "m.py").write_text("y\n\nBAD\nz\nBAD\n")
    after = json.loads(render("gitlab", lint_paths(["m.py"], None, Run(cache=False))))
    assert [one["fingerprint"] for one in before] == [one["fingerprint"] for one in after]


def test_junit(report: Report) -> None:
    root = ET.fromstring(render("junit", report))
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    cases = suite.findall("testcase")
    assert len(cases) == 3
    assert sum(case.find("failure") is not None for case in cases) == 2
    assert "a,b:c%d&<e>.py" in cases[0].get("name", "")


def test_junit_of_clean_files(clean: Report) -> None:
    (suite,) = ET.fromstring(render("junit", clean))
    assert (suite.get("tests"), suite.get("failures"), len(suite.findall("testcase"))) == ("1", "0", 1)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_name_that_is_no_text(project: Path, name: str) -> None:
    import os

    (project / os.fsdecode(b"m\xff.py")).write_text("BAD\n")
    render(name, lint_paths(["."], None, Run(cache=False))).encode(errors="backslashreplace")


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_found(clean: Report, name: str) -> None:
    assert render(name, clean).endswith("\n")


def test_an_unknown_format(clean: Report) -> None:
    with pytest.raises(tpuport.PortError, match="there is no format 'html'"):
        render("html", clean)
