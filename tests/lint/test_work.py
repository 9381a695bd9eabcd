"""The limits to what a file may cost: what is cut off is a finding, and the other files are linted as ever."""

from pathlib import Path

import pytest

from benchmarks.abuse_lint_cases import FAMILIES, LINES, lines_of_forward
from benchmarks.abuse_lint_mutations import mutated_file, real_files
from tpuport.lint import lint_paths, project, source, work
from tpuport.lint.configuration import Settings
from tpuport.lint.engine import Run
from tpuport.lint.findings import Applicability
from tpuport.lint.workers import analyse_file, make_real_analyser

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        y = x[x > 0]
{lines}
        return y


class Other(nn.Module):
    def forward(self, x):
        return x
"""
LONG = MODEL.format(lines="\n".join(f"        x{number} = torch.relu(x)" for number in range(500)))
SHORT = MODEL.format(lines="")


def lint(*files: Path):
    return lint_paths(files, Settings(), Run(cache=False))


def calls_of(names):
    return "".join(f"        x = {name}.call(x)\n" for name in names)


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


@pytest.fixture
def low_limit(monkeypatch):
    monkeypatch.setattr(work.meter, "limit", 1_000)


@pytest.mark.usefixtures("low_limit")
def test_a_function_that_takes_too_much_work_is_cut_off(tmp_path):
    report = lint(write(tmp_path / "model.py", LONG))
    cut_off, earlier = sorted(report.findings, key=lambda finding: finding.rule)
    assert (cut_off.rule, cut_off.function, cut_off.route) == ("TPU007", "Model.forward", ("Model.forward",))
    assert LONG.splitlines()[cut_off.line - 1].endswith("= torch.relu(x)")
    # What was found before remains.
    assert (earlier.rule, earlier.line) == ("TPU101", 8)
    assert report.exit_code == 2


@pytest.mark.usefixtures("low_limit")
def test_no_entry_point_of_a_file_that_is_cut_off_is_expected_to_trace(tmp_path):
    report = lint(write(tmp_path / "model.py", LONG))
    rules = {verdict.name: {error.rule for error in verdict.errors} for verdict in report.verdicts}
    assert rules == {"Model": {"TPU007"}, "Other": {"TPU007"}}


@pytest.mark.usefixtures("low_limit")
def test_the_files_after_it_are_linted_as_ever(tmp_path):
    first = write(tmp_path / "a.py", LONG)
    second = write(tmp_path / "b.py", SHORT)
    alone = lint(second)
    together = lint(first, second)
    assert [finding for finding in together.findings if finding.path.endswith("b.py")] == list(alone.findings)
    assert {verdict.name: bool(verdict.errors) for verdict in alone.verdicts} == {
        "Model": True,
        "Other": False,
    }


@pytest.mark.usefixtures("low_limit")
def test_work_in_an_imported_file_is_reported_in_the_file_that_is_linted(tmp_path):
    body = "".join(f"    x{number} = torch.relu(x)\n" for number in range(500))
    write(tmp_path / "helper.py", f"import torch\n\n\ndef helper(x):\n{body}    return x\n")
    text = SHORT.replace("from torch import nn", "from torch import nn\nfrom helper import helper")
    report = lint(write(tmp_path / "model.py", text.replace("y = x[x > 0]", "y = helper(x)")))
    (finding,) = report.findings
    assert (Path(finding.path).name, finding.line) == ("model.py", 1)
    assert finding.route == ("Model.forward", "helper")


def test_a_file_of_too_many_tokens_is_not_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(source.ast, "parse", None)
    text = "X = [" + "1," * 250_000 + "]\n"
    report = lint(write(tmp_path / "data.py", text))
    (finding,) = report.findings
    assert finding.rule == "TPU007"
    assert "more than 500,000" in finding.reason
    assert report.exit_code == 2


def test_modules_of_too_many_tokens_are_not_all_read(tmp_path, monkeypatch):
    """Neither one after the other, nor where another file has had them read before."""
    monkeypatch.setattr(work.meter, "most_tokens", 2_000)
    names = [f"big{number}" for number in range(6)]
    for name in names:
        write(tmp_path / f"{name}.py", f"X = [{'1,' * 250}]\n\n\ndef call(x):\n    return x\n")
    head = "".join(f"import {name}\n" for name in names) + SHORT
    some = [
        write(
            tmp_path / f"some{start}.py",
            head.replace("        y =", calls_of(names[start:][:2]) + "        y ="),
        )
        for start in (0, 2, 4)
    ]
    every = write(tmp_path / "every.py", head.replace("        y =", calls_of(names) + "        y ="))
    alone = lint(every)
    (cut_off,) = alone.findings
    assert cut_off.rule == "TPU007"
    assert "read modules with more than 2,000 names" in cut_off.reason
    together = lint(*some, every)
    rules = {Path(finding.path).name: finding.rule for finding in together.findings}
    assert rules == {**{file.name: "TPU101" for file in some}, "every.py": "TPU007"}


def test_modules_in_memory_are_forgotten_by_their_size(tmp_path, monkeypatch):
    monkeypatch.setattr(project, "_MAX_TOKENS", 100)
    modules = project.Project()
    files = [write(tmp_path / f"m{number}.py", "X = [" + "1," * 20 + "]\n") for number in range(4)]
    for file in files:
        modules.add(source.read(file, file.name))
    assert list(modules._modules) == files[-2:]
    large = write(tmp_path / "large.py", "X = [" + "1," * 200 + "]\n")
    modules.add(source.read(large, "large.py"))
    assert list(modules._modules) == [large]


@pytest.mark.parametrize(
    "quotes",
    ["'", '"""', *(pytest.param(other, marks=pytest.mark.slow) for other in ('"', "'''", "r'''", 'f"'))],
)
def test_a_long_string_is_one_token(tmp_path, quotes):
    end = quotes.removeprefix("r").removeprefix("f")
    text = f"X = {quotes}{'1,' * 600_000}{end}\n# {'2,' * 600_000}\n"
    assert lint(write(tmp_path / "data.py", text)).findings == ()


@pytest.mark.parametrize(
    "text", ["'" * 3, '"' * 3, "'", '"', "\\", "'\\", '"""\\', "'''\"", '"""""\\"', "x'"]
)
def test_counting_tokens_takes_time_by_the_length(text):
    # Were it by its square, this would take hours.
    assert isinstance(source._has_too_many_tokens(text * (3_000_000 // len(text))), bool)


@pytest.mark.slow  # a function that takes too much work above
def test_adversarial_files_are_answered_in_bounded_work(tmp_path):
    """A share of `python -m benchmarks.abuse_lint`, in sizes that take some milliseconds."""
    analyser = make_real_analyser(Settings())
    texts = {name: build(sizes[min(1, len(sizes) - 2)]) for name, (build, sizes) in FAMILIES.items()}
    texts |= {name: lines_of_forward(line)(60) for name, line in LINES.items()}
    wrong = {}
    for name, text in texts.items():
        result = analyse_file(analyser, str(write(tmp_path / "model.py", text)))
        rules = {finding.rule for finding in result.findings}
        # A statement may go some way beyond the limit.
        if "TPU006" in rules or work.meter.units > 2 * work.LIMIT:
            wrong[name] = rules
    assert len(texts) == 54
    assert wrong == {}


def test_a_share_of_the_mutated_files(tmp_path):
    """Of `python -m benchmarks.abuse_lint_mutations`."""
    files = real_files()
    file = tmp_path / "model.py"
    wrong = {}
    for number in range(100):
        file.write_text(mutated_file(number, 0, files), newline="")
        report = lint_paths([file], Settings(), Run(cache=False, fix=Applicability.UNSAFE, write=False))
        if any(finding.rule == "TPU006" for finding in report.findings):
            wrong[number] = [finding.reason for finding in report.findings]
    assert wrong == {}
