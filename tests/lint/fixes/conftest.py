"""Findings made by hand: every node of a kind whose text is the wanted one."""

import ast
from collections.abc import Callable
from textwrap import dedent

import pytest

from tpuport.lint import Applicability, Finding, Severity
from tpuport.lint.fixes import fix_text
from tpuport.lint.places import place


def _spans(text: str, wanted: str) -> list[tuple[tuple[int, int, int, int], str]]:
    """Places of the syntax nodes with this source text, with the function each is in."""
    lines = tuple(text.splitlines())
    found: dict[tuple[int, int, int, int], str] = {}

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}" if function else node.name
        if hasattr(node, "lineno") and ast.get_source_segment(text, node) == wanted:
            found.setdefault(place(node, lines), function)
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(text), "")
    return list(found.items())


def find(text: str, rule: str, wanted: str, fix: Applicability, severity: Severity) -> list[Finding]:
    found = _spans(text, wanted)
    assert found, f"{wanted!r} is nowhere in the text"
    return [
        Finding("m.py", *span, rule, severity, "", "", function, ("Model.forward",) * ("forward" in function), fix)
        for span, function in found
    ]


Fix = Callable[..., str]


@pytest.fixture
def fix() -> Fix:
    """fix(text, (rule, source of the node), ..., unsafe=False, host=False) -> text after the fixpoint."""

    def run(
        text: str, *wanted: tuple[str, str], unsafe: bool = False, host: bool = False, rounds: int = 1
    ) -> str:
        text = dedent(text)
        severity = Severity.WARNING if host else Severity.ERROR
        for _ in range(rounds):
            findings = [
                finding
                for rule, node in wanted
                for finding in find(text, rule, node, Applicability.UNSAFE if unsafe else Applicability.SAFE, severity)
            ]
            text, _ = fix_text(text, findings, unsafe)
        return text

    return run
