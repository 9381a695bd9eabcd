"""Files and trees that are not as they should be, with the real analysis: each says why, the others are linted."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tpuport.lint.engine import Run, lint_paths
from tpuport.lint.run_report import Report

BAD = """\
from torch import nn


class Model(nn.Module):
    def forward(self, x, mask):
        return x[mask > 0].sum()
"""

NESTED = {
    "calls": "x = " + "f(" * 90 + ")" * 90,
    "attributes": "x = a" + ".b" * 3000,
    "sums": "x = " + " + ".join(["1"] * 3000),
    "ands": "if " + " and ".join(["a"] * 3000) + ": pass",
    "chains": "x = a" + ".b()" * 700,
    "elifs": "def f(a):\n    if a: pass\n" + "    elif a: pass\n" * 900,
    "functions": "".join("  " * n + f"def f{n}():\n" for n in range(90)) + "  " * 90 + "pass",
    "classes": "".join("  " * n + f"class C{n}:\n" for n in range(90)) + "  " * 90 + "pass",
    "lambdas": "x = " + "lambda: " * 900 + "1",
    "subscripts": "x = a" + "[0]" * 900,
    "comparisons": "x = " + " < ".join(["a"] * 3000),
    "strings": "x = f'" + "{a}" * 3000 + "'",
    "decorators": "@d\n" * 3000 + "def f(): pass",
}


def lint(*paths: str) -> Report:
    return lint_paths(paths, None, Run(cache=False))


def rules(report: Report) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in report.findings:
        found.setdefault(finding.path, set()).add(finding.rule)
    return found


def test_everything_at_once(project: Path) -> None:
    (project / "good.py").write_text(BAD)
    (project / "syntax.py").write_text("def f(:\n")
    (project / "latin.py").write_bytes(b"x = '\xe9'\n")
    (project / "null.py").write_bytes(b"x = 1\0\n")
    (project / "notebook.ipynb").write_text("{}")
    (project / "self.py").symlink_to("self.py")
    (project / "gone.py").symlink_to("nowhere.py")
    (project / "loop").symlink_to(".")
    os.mkfifo(project / "pipe.py")
    report = lint(".", "missing", "missing.py")
    assert rules(report) == {
        "./good.py": {"TPU101"}, "./syntax.py": {"TPU001"}, "./latin.py": {"TPU002"}, "./null.py": {"TPU002"},
        "./notebook.ipynb": {"TPU002"}, "./self.py": {"TPU002"}, "./gone.py": {"TPU002"}, "./loop": {"TPU002"},
        "./pipe.py": {"TPU002"}, "missing": {"TPU002"}, "missing.py": {"TPU002"},
    }  # fmt: skip
    assert report.exit_code == 2
    assert all(finding.reason and finding.remedy for finding in report.findings)


def test_a_file_nobody_may_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "good.py").write_text(BAD)
    (project / "secret.py").write_text(BAD)
    real = Path.read_bytes

    def refuse(self: Path) -> bytes:
        if self.name == "secret.py":
            raise PermissionError(13, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    report = lint(".")
    assert rules(report) == {"./good.py": {"TPU101"}, "./secret.py": {"TPU002"}}


# What takes time or memory that is exponential in the length of the file, if every element is told apart.
DOUBLING = {
    "concatenated": "t = t + t",
    "starred": "t = (*t, *t)",
    "in place": "t += t",
    "repeated": "t = t * 2",
    "chosen": "t = t + t if x.ndim else (*t, *t)",
}


@pytest.mark.parametrize("name", DOUBLING)
def test_sequences_that_double(
    project: Path, name: str, lines_run: Callable[[Callable[[], object]], int]
) -> None:
    head = (
        "from torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        t = (x, x)\n"
    )
    tail = "        return t[0].item()\n"
    text = head + f"        {DOUBLING[name]}\n" * 60 + tail
    (project / "m.py").write_text(text)
    reports: list[Report] = []
    assert lines_run(lambda: reports.append(lint("m.py"))) < 3_000_000
    # The elements of a sequence that is cut off are tensors still.
    assert {(finding.rule, finding.line) for finding in reports[0].findings} == {("TPU201", 67)}


@pytest.mark.slow
def test_a_file_of_100_000_lines(project: Path) -> None:
    # Of 500,000 tokens and more nothing is read.
    method = (
        "    def m{0}(self, x):\n        # a comment\n        y = x + {0}\n        return self.m{1}(y)\n\n"
    )
    body = "".join(method.format(number, number + 1) for number in range(20_000))
    forward = "    def forward(self, x, mask):\n        x = self.m0(x)\n        return x[mask > 0]\n"
    text = "from torch import nn\n\n\nclass Model(nn.Module):\n" + forward + body
    (project / "long.py").write_text(text)
    report = lint("long.py")
    assert text.count("\n") > 100_000
    assert report.lines == text.count("\n")
    assert ("TPU101", 7) in {(finding.rule, finding.line) for finding in report.findings}


def test_a_file_twice_as_long_takes_twice_the_work(
    project: Path, word_analysis: list[str], lines_run: Callable[[Callable[[], object]], int]
) -> None:
    reports: list[Report] = []

    def lines(findings: int) -> int:
        (project / "long.py").write_text("x = WARN\n" * findings)
        return lines_run(lambda: reports.append(lint("long.py")))

    assert lines(400) < 2.2 * lines(200)
    assert [len(report.findings) for report in reports] == [400, 200]


@pytest.mark.parametrize("name", NESTED)
def test_deep_nesting(project: Path, name: str) -> None:
    (project / "deep.py").write_text(NESTED[name] + "\n")
    inside = "\n".join(f"        {line}" for line in NESTED[name].splitlines())
    (project / "traced.py").write_text(
        f"from torch import nn\nclass M(nn.Module):\n    def forward(self, a):\n{inside}\n        return a\n"
    )
    (project / "good.py").write_text(BAD)
    found = rules(lint("."))
    assert found["./good.py"] == {"TPU101"}
    # What Python itself can parse may still be too deep to follow, but says so.
    assert found.get("./deep.py", set()) | found.get("./traced.py", set()) <= {
        "TPU001", "TPU002", "TPU006", "TPU205", "TPU211", "TPU212", "TPU204", "TPU209", "TPU101",
    }  # fmt: skip


CYCLES = {
    "modules": {
        "a.py": "from b import X\nclass A(X):\n    def forward(self, x): return x\n",
        "b.py": "from a import A as X\n",
    },
    "stars": {
        "a.py": "from b import *\n",
        "b.py": "from a import *\nclass A(Q):\n    def forward(self, x): return y\n",
    },
    "base": {"a.py": "class A(A):\n    def forward(self, x): return self.forward(x)\n"},
    "bases": {"a.py": "class A(B): pass\nclass B(A):\n    def forward(self, x): return x\n"},
    "names": {"a.py": "x = y\ny = x\nclass A(x):\n    def forward(self, z): return x(z) + y\n"},
    "calls": {
        "a.py": "from torch import nn\ndef f(x): return g(x)\ndef g(x): return f(x)\n"
        "class A(nn.Module):\n    def forward(self, x): return f(x)\n"
    },
    "growing": {
        "a.py": "from torch import nn\ndef f(*x): return f(x, *x)\n"
        "class A(nn.Module):\n    def forward(self, x): return f(x)\n"
    },
    "containers": {
        "a.py": "from torch import nn\nclass A(nn.Module):\n    def forward(self, x):\n        y = []\n"
        "        while True:\n            y = [y, x]\n            x = (y, {'a': x})\n        return y\n"
    },
    "itself": {"a.py": "import a\nfrom a import *\nx = a.x\nclass A(a.A):\n    def forward(self, x): return a.A(x)\n"},
    "attributes": {
        "a.py": "from torch import nn\nclass A(nn.Module):\n    def __init__(self):\n        self.b = A()\n"
        "    def forward(self, x): return self.b.b.b(x)\n"
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CYCLES)
def test_what_refers_to_itself(
    project: Path, name: str, lines_run: Callable[[Callable[[], object]], int]
) -> None:
    for file, text in CYCLES[name].items():
        (project / file).write_text(text)
    reports: list[Report] = []
    lines = lines_run(lambda: reports.append(lint(".")))
    assert not {"TPU001", "TPU002", "TPU006"} & {finding.rule for finding in reports[0].findings}
    assert lines < (100_000 if name == "growing" else 10_000)
