"""What libcst reads of a file to tell which findings have a fix."""

import ast
import dataclasses
from pathlib import Path

import pytest

from tpuport.lint import Settings, lint_paths
from tpuport.lint.findings import Applicability, Finding, Severity
from tpuport.lint.fixes import planning
from tpuport.lint.fixes.excerpt import excerpt_around

TEXT = '''\
import torch

LIMIT = 3


def plain(x):
    # a comment
    """A text
    of two lines."""
    return x


def short(x): return x


def imports(x):
    import math
    return math.pi


@torch.no_grad()
def decorated(
    x,
):
    @torch.no_grad()
    def inner():
        return x
    return inner


class Model:
    size = 3

    def method(self):
        return self.size
'''
CORPUS = Path(__file__).parents[1] / "corpus"


def finding(line: int) -> Finding:
    return Finding("model.py", line, 1, line, 2, "TPU507", Severity.WARNING, "", "")


def test_definitions_without_findings_lose_their_bodies() -> None:
    lines = excerpt_around(TEXT, [finding(34)]).split("\n")
    originals = TEXT.split("\n")
    changed = [number for number, line in enumerate(lines, 1) if line != originals[number - 1]]
    assert len(lines) == len(originals)
    assert changed == [8, 9, 10, 25, 26, 27, 28]
    assert [lines[7], lines[24]] == ["    pass", "    pass"]
    names = [getattr(node, "name", "") for node in ast.parse("\n".join(lines)).body]
    assert names == ["", "", "plain", "short", "imports", "decorated", "Model"]


def test_a_finding_keeps_the_definition_around_it() -> None:
    for line in (6, 10, 22, 24, 26):
        assert originals_of(line) <= set(excerpt_around(TEXT, [finding(line)]).split("\n"))


def originals_of(line: int) -> set[str]:
    lines = TEXT.split("\n")
    return set(lines[5:10] if line <= 10 else lines[20:28])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("llama_cache.py", marks=pytest.mark.slow),
        pytest.param("video_dit.py", marks=pytest.mark.slow),
        "hydra_policy.py",
    ],
)
def test_fixes_are_those_of_the_whole_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = CORPUS / name
    text = path.read_text()
    labelled = lint_paths([path], Settings()).findings
    # As the rules give them, not as that run has labelled them.
    findings = [
        dataclasses.replace(labelled_finding, fix=Applicability.SAFE)
        for labelled_finding in labelled
        if labelled_finding.rule in planning.all_rewrites()
    ]
    assert len(findings) > 1
    fixes = planning.available_fixes(text, findings)
    monkeypatch.setattr(planning, "excerpt_around", lambda text, findings: text)
    assert planning.available_fixes(text, findings) == fixes
