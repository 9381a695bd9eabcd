"""Directories of code, and an analysis that finds words, so that the engine can be tested without the real one."""

import dataclasses
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tpuport.lint import analysis, fixing, source, workers
from tpuport.lint.configuration import Settings
from tpuport.lint.entry_verdicts import TracedEntry
from tpuport.lint.findings import Applicability, Finding, Severity
from tpuport.lint.rules import all_rules
from tpuport.lint.source import SourceFile


@dataclasses.dataclass
class Outcome:
    findings: list[Finding]
    dependencies: tuple[str, ...]
    entry_points: int
    traced: frozenset[str]
    entries: tuple[TracedEntry, ...] = ()


class WordAnalyser:
    """BAD is an error, WARN a warning, CRASH raises; `# uses NAME` depends on NAME and finds its BADs too."""

    seen: list[str]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def analyse(self, source: SourceFile) -> Outcome:
        self.seen.append(source.path.name)
        if "CRASH" in source.text:
            raise RuntimeError("on purpose")
        findings = words(str(source.path), source.lines)
        used = [str(source.path.parent / name) for name in re.findall(r"# uses (\S+)", source.text)]
        for path in used:
            if Path(path).exists():
                findings += words(path, tuple(Path(path).read_text().splitlines()))
        entries = source.text.count("def forward")
        traced = frozenset({f"{source.path}:forward"} if entries else ())
        return Outcome(findings, tuple(used), entries, traced)


def words(path: str, lines: tuple[str, ...]) -> list[Finding]:
    kinds = {"BAD": ("TPU101", Severity.ERROR), "WARN": ("TPU501", Severity.WARNING)}
    return [
        Finding(
            path=path, line=number, column=match.start() + 1, end_line=number, end_column=match.end() + 1,
            rule=kinds[match[0]][0], severity=kinds[match[0]][1], reason=f"there is a {match[0]}",
            remedy="write GOOD", function="f", fix=Applicability.SAFE,
        )
        for number, line in enumerate(lines, 1)
        for match in re.finditer(r"BAD|WARN", line)
    ]  # fmt: skip


@pytest.fixture
def word_analysis(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Puts the analysis of words in place; the list holds the names of the files it was given."""
    seen: list[str] = []
    monkeypatch.setattr(WordAnalyser, "seen", seen, raising=False)
    monkeypatch.setattr(workers, "make_analyser", WordAnalyser)
    # Its findings stand on words; what a rewrite says of those places is not looked at.
    monkeypatch.setattr(fixing, "available_fixes", lambda _, findings: [finding.fix for finding in findings])
    return seen


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory with settings and a cache of its own, which is the working directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "pyproject.toml").write_text("[tool.tpuport.lint]\n")
    monkeypatch.chdir(directory)
    return directory


class CodeTree:
    """A directory of Python files, which are named by relative path, and what the linter says about them."""

    HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
    STOPS = ("TPU1", "TPU2")

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, code: str, head: str = HEAD) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head + textwrap.dedent(code))
        return path

    def analyse(
        self, name: str, analyser: analysis.Analyser | None = None, **options: Any
    ) -> analysis.Outcome:
        analyser = analyser or analysis.Analyser(analysis.Options(rules=all_rules(), **options))
        return analyser.analyse(source.read(self.root / name, name))

    def stops(self, name: str, analyser: analysis.Analyser | None = None, **options: Any) -> list[str]:
        """Errors that stop a trace: file, function and text from the finding's column on, as "a.py f: x.item()"."""
        findings = self.analyse(name, analyser, **options).findings
        return [
            self._shown(finding)
            for finding in findings
            if finding.severity == Severity.ERROR and finding.rule.startswith(self.STOPS)
        ]

    def _shown(self, finding: Finding) -> str:
        path = Path(finding.path)
        line = path.read_text().split("\n")[finding.line - 1]
        return f"{path.relative_to(self.root)} {finding.function}: {line[finding.column - 1 :].strip()}"


@pytest.fixture
def tree(tmp_path: Path) -> CodeTree:
    return CodeTree(tmp_path)
