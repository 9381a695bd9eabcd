"""Notebooks: their cells as one module, positions in cells, and fixes that change nothing but sources."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tpuport.cli import main
from tpuport.lint.engine import Run, lint_paths
from tpuport.lint.findings import Applicability
from tpuport.lint.notebooks import ChangedCellsError, NotANotebookError, Notebook

IMPORTS = """\
%load_ext autoreload
!pip install torch \\
    einops
from torch import nn
files = !ls
nn.Linear?"""
MODEL = """\
%%time
class Model(nn.Module):
    def forward(self, x):
        # é😀
        mask = x > 0
        y = x.clone()
        y[mask] *= 2
        return y, x[mask]"""
SCRIPT = """\
model = Model()
if True:
    %timeit model(x)
text = '''
!not a command
'''
total = (1
    % 2)
model.cuda()"""


def cell(source: str, kind: str = "code", as_list: bool = True) -> dict[str, Any]:
    content: dict[str, Any] = {"cell_type": kind, "metadata": {"tags": ["é"]}}
    if kind == "code":
        content |= {"execution_count": 3, "outputs": [{"output_type": "stream", "source": ["x[x > 0]"]}]}
    lines = [f"{line}\n" for line in source.split("\n")]
    lines[-1] = lines[-1].removesuffix("\n")
    return content | {"source": lines if as_list else source}


def notebook(*cells: dict[str, Any], language: str = "python", **style: Any) -> str:
    content = {
        "nbformat": 4,
        "cells": list(cells),
        "metadata": {"language_info": {"name": language}, "z": 1.50, "a": {}},
        "nbformat_minor": 5,
    }
    return json.dumps(content, **{"indent": 1, "ensure_ascii": False} | style)


CELLS = (
    cell("# A model", "markdown"),
    cell(IMPORTS),
    cell("%%bash\nrm -rf build"),
    cell(MODEL),
    cell(SCRIPT),
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TPUPORT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "nb.ipynb"
    file.write_text(notebook(*CELLS) + "\n")
    return file


def test_findings_are_in_cells(file: Path) -> None:
    report = lint_paths(["nb.ipynb"])
    positions = [(finding.place, finding.column, finding.rule) for finding in report.findings]
    assert positions == [
        ("nb.ipynb:cell 4:7", 9, "TPU113"),
        ("nb.ipynb:cell 4:8", 19, "TPU101"),
        ("nb.ipynb:cell 5:9", 1, "TPU301"),
    ]
    assert [report.source(finding)[finding.line - 1] for finding in report.findings] == [
        "        y[mask] *= 2", "        return y, x[mask]", "model.cuda()"
    ]  # fmt: skip
    (verdict,) = report.verdicts
    assert verdict.place == "nb.ipynb:cell 4:2"
    assert "nb.ipynb:cell 4" not in report.verdict()
    assert lint_paths(["."]).findings[0].place == "./nb.ipynb:cell 4:7"
    assert lint_paths(["nb.ipynb"]).findings == report.findings, "from the cache"


def test_every_format(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def output(name: str) -> str:
        assert main(["lint", "nb.ipynb", "--format", name]) == 1
        return capsys.readouterr().out

    assert output("concise").startswith("nb.ipynb:cell 4:7:9: TPU113 error")
    assert "  7 | y[mask] *= 2\n" in output("text")
    content = json.loads(output("json"))
    assert (content["findings"][1]["cell"], content["findings"][1]["line"]) == (4, 8)
    assert content["entry_points"][0]["errors"][0] == "nb.ipynb:cell 4:7: TPU113"
    # These know lines of the file only, where a cell's lines mean nothing.
    assert output("github").startswith("::error file=nb.ipynb,line=1,endLine=1,title=TPU113")
    assert "::cell 4:7:9: `x[mask]`" in output("github")
    result = json.loads(output("sarif"))["runs"][0]["results"][0]
    assert result["message"]["text"].startswith("cell 4:7:9: ")
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 1
    issue = json.loads(output("gitlab"))[0]
    assert issue["description"].startswith("TPU113: cell 4:7:9: ")
    assert issue["location"] == {"path": "nb.ipynb", "lines": {"begin": 1, "end": 1}}
    assert 'message="nb.ipynb:cell 4:7:9: TPU113' in output("junit")


@pytest.mark.parametrize("as_list", [True, False])
@pytest.mark.parametrize(
    "style",
    [{"indent": 1}, {"indent": 4}, {"indent": "\t"}, {"indent": None}, {"ensure_ascii": True}],
    ids=str,
)
def test_fixing_changes_sources_only(file: Path, style: dict[str, Any], as_list: bool) -> None:
    cells = [cell("".join(c["source"]), c["cell_type"], as_list) for c in CELLS]
    before = notebook(*cells, **style)
    file.write_text(before)
    assert main(["lint", "nb.ipynb", "--fix", "-q"]) == 1
    after = file.read_text()
    source = cells[3]["source"] if as_list else [f"{line}\n" for line in cells[3]["source"].split("\n")]
    (old,) = [line for line in source if "y[mask]" in line]
    new = json.loads(after)["cells"][3]["source"]
    lines = new if as_list else [f"{line}\n" for line in new.split("\n")]
    assert lines[0] == "%%time\n"
    (fixed,) = [line for line in lines if line not in source and line.rstrip("\n") not in MODEL]
    # The imports that the fix needs are in the first cell, below its magics or above.
    expected_cells = [dict(c) for c in cells]
    expected_cells[1]["source"] = json.loads(after)["cells"][1]["source"]
    expected_cells[3]["source"] = new
    # `model.cuda()` stays: a notebook may run on a GPU, so that fix is not a safe one.
    assert after == notebook(*expected_cells, **style)
    assert fixed != old
    first = "".join(expected_cells[1]["source"])
    assert "import torch\n" in first
    assert all(line in first for line in IMPORTS.split("\n"))


def test_a_diff_shows_the_cells_as_they_are(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = file.read_text()
    assert main(["lint", "nb.ipynb", "--diff"]) == 1
    out = capsys.readouterr().out
    assert "-        y[mask] *= 2\n" in out
    assert "get_ipython" not in out
    assert file.read_text() == text


def test_suppressions_and_the_baseline(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "nb.ipynb", "--write-baseline", "--baseline", "known.json", "-q"]) == 0
    assert main(["lint", "nb.ipynb", "--baseline", "known.json"]) == 0
    assert "3 findings known by the baseline" in capsys.readouterr().out
    # A cell before it changes no finding's identity.
    file.write_text(notebook(cell("x = 1"), *CELLS))
    assert main(["lint", "nb.ipynb", "--baseline", "known.json"]) == 0
    assert main(["lint", "nb.ipynb", "--add-ignore"]) == 0
    assert main(["lint", "nb.ipynb", "--format", "concise"]) == 0
    assert "3 findings suppressed by comments" in capsys.readouterr().out
    sources = ["".join(c["source"]) for c in json.loads(file.read_text())["cells"]]
    assert "        y[mask] *= 2  # tpuport: ignore[TPU113]\n" in sources[4]
    assert sources[2] == IMPORTS


def test_standard_input(file: Path) -> None:
    command = [sys.executable, "-m", "tpuport", "lint", "-", "--stdin-filename", "nb.ipynb", "--fix"]
    process = subprocess.run(command, input=file.read_text(), capture_output=True, text=True, check=False)
    assert "nb.ipynb:cell 4:" in process.stderr
    before = file.read_text()
    main(["lint", "nb.ipynb", "--fix", "-q"])
    assert process.stdout == file.read_text() != before


def test_what_is_no_python_notebook(file: Path) -> None:
    file.write_text(notebook(cell("x <- c(1)"), language="R"))
    (finding,) = lint_paths(["nb.ipynb"]).findings
    assert (finding.rule, finding.severity) == ("TPU004", "warning")
    for text in ("{}", "[1]", "{", '{"worksheets": []}', ""):
        file.write_text(text)
        report = lint_paths(["nb.ipynb"])
        assert ([finding.rule for finding in report.findings], report.exit_code) == (["TPU002"], 2)
    file.write_text(notebook(cell("x = 1"), cell("\ndef f(:\n    pass")))
    (finding,) = lint_paths(["nb.ipynb"]).findings
    assert (finding.rule, finding.place) == ("TPU001", "nb.ipynb:cell 2:2")
    file.write_text(notebook(cell("# only text", "markdown"), cell("%%html\n<b>")))
    assert lint_paths(["nb.ipynb"]).findings == ()


def test_a_module_goes_back_to_the_cells_it_came_from() -> None:
    text = notebook(*CELLS)
    book = Notebook(text)
    compile(book.module, "nb", "exec")
    assert book.with_module(book.module) == text
    lines = book.module.split("\n")
    assert [number for number, line in enumerate(lines, 1) if line.startswith("# notebook cell")] == [
        1,
        8,
        17,
    ]
    for number in range(1, len(lines)):
        position = book.locate(number)
        assert lines[number - 1].startswith("# notebook") or book.module_line(position) == number
    for wrong in (
        f"import torch\n{book.module}",
        book.module.replace("# notebook cell 4\n", ""),
        book.module.replace("# notebook cell 4\n", "# notebook cell 4\nimport torch\n"),
        "\n".join(line for line in lines if not line.startswith("get_ipython(1)")),
    ):
        with pytest.raises(ChangedCellsError):
            book.with_module(wrong)
    with pytest.raises(NotANotebookError):
        Notebook("[]")


def test_a_fix_that_cannot_be_divided_is_not_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tpuport.lint import fixing

    monkeypatch.setattr(fixing, "rewrite_text", lambda text, *_: (f"x = 1\n{text}", 1))
    before = file.read_text()
    report = lint_paths(["nb.ipynb"], run=Run(fix=Applicability.SAFE))
    (problem,) = [finding for finding in report.findings if finding.rule == "TPU006"]
    assert "beyond one cell" in problem.reason
    assert file.read_text() == before


def test_an_import_goes_behind_the_magic_of_the_first_cell(file: Path) -> None:
    file.write_text(notebook(cell("%%capture\nfrom torch import nn"), cell(MODEL)))
    assert main(["lint", "nb.ipynb", "--fix", "-q"]) == 1
    first, model = ("".join(content["source"]) for content in json.loads(file.read_text())["cells"])
    assert first == "%%capture\nfrom torch import nn\nimport torch"
    assert "y[mask] *= 2" not in model
