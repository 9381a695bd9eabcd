"""The files that two pages give to `tpuport check` and `tpuport compile`, as their readers do."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.commands import commands_of
from tests.docs.pages import ROOT, read_blocks
from tpuport.cli import main

MODELS = ROOT / "tests/verification/small_models.py"


def blocks(page, language):
    return [block for block in read_blocks(page) if block.language == language]


@pytest.fixture
def write_target(tmp_path, monkeypatch):
    """Writes the first block of a page, with a model of the tests for the reader's."""

    def write(page, model):
        code = blocks(page, "python")[0].text
        name = re.match(r"# (\S+)\n", code)[1]
        mine = code.replace("from my_research.model import", f"from tests.docs.readers import {model} as")
        assert mine != code
        (tmp_path / name).write_text(mine)
        monkeypatch.chdir(tmp_path)

    return write


def test_the_target_of_the_page_is_checked(write_target, capsys):
    write_target("docs/check.md", "Tokens")
    assert main(["check", "mine.py:target"]) == 0
    assert "verdict: Tokens runs on the device as in torch" in capsys.readouterr().out


def test_a_report_of_a_check_is_what_the_page_shows(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(MODELS.read_text())
    monkeypatch.chdir(tmp_path)
    assert main(["check", "mine.py:reading_target"]) == 1
    report = capsys.readouterr().out
    [shown] = blocks("docs/check.md", "text")
    start, end = (steady_lines(part) for part in shown.text.split("...\n"))
    lines = steady_lines(report.replace(f"{tmp_path}{os.sep}", ""))
    assert lines[: len(start)] == start
    assert lines[-len(end) :] == end


def steady_lines(report):
    """The lines of a report, without seconds and the numbers of lines of the file that is checked."""
    report = re.sub(r" +[\d.]+ s(?=  |$)|(?<=mine\.py:)\d+", "", report, flags=re.MULTILINE)
    return report.strip().splitlines()


@pytest.mark.slow  # tests/topology/targets/test_user_code.py compiles such functions
@pytest.mark.parametrize("number", [0, 1])
def test_the_target_of_the_page_is_compiled(number, write_target, tmp_path):
    write_target("docs/compile.md", "Tower")
    (tmp_path / "rules.json").write_text('{".*\\\\.weight": ["tp", null]}')
    [script] = [block for block in blocks("docs/compile.md", "bash") if "mine.py" in block.text]
    command = list(commands_of(script))[number]
    assert "mine.py:target" in command
    done = run(command, tmp_path)
    assert "fits" in done.stdout


@pytest.mark.slow  # tests/topology/reports check each of its parts
def test_a_report_of_a_program_is_what_the_page_shows(tmp_path):
    [command] = commands_of(blocks("docs/compile.md", "bash")[0])
    [shown] = blocks("docs/compile.md", "text")
    reported, shown = (list(words_of(text)) for text in (run(command, tmp_path).stdout, shown.text))
    assert [word for word, _ in reported] == [word for word, _ in shown]
    # What the page says, and not each digit: a release of the compiler moves some.
    assert [number for _, number in reported] == pytest.approx([number for _, number in shown], rel=0.05)


def words_of(report):
    """The words of a report, and the number in each; without bars, the lines of files, and how long it took."""
    report = re.sub(r"lower .*|[─-▏█░]+|(?<=\.py):\d+", "", report)
    number = re.compile(r"\d+(?:\.\d+)?")
    for word in report.split():
        numbers = number.findall(word)
        yield number.sub("0", word), float(numbers[0]) if len(numbers) == 1 else 0.0


def run(command, directory):
    program, *arguments = command.split()
    assert program == "tpuport"
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tpuport", *arguments], cwd=directory, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": paths, "COLUMNS": ""}, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def test_what_the_page_lints_before_it_is_ported(capsys, monkeypatch):
    """recipes/own_model: six errors, and the rules that its table names."""
    monkeypatch.chdir(ROOT)
    page = Path("recipes/own_model/README.md").read_text()
    assert main(["lint", "recipes/own_model/before", "--no-cache", "--format", "concise"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "It names six errors" in page
    assert sum(re.search(r": TPU\d+ error", line) is not None for line in lines) == 6
    found = set(re.findall(r"TPU\d+", "\n".join(lines)))
    assert set(re.findall(r"\[(TPU\d+)\]", page)) <= found
