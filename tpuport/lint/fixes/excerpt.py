"""A file's text without what its findings have nothing to do with, since libcst takes
long to read it.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Final

from tpuport.lint.findings import Finding

# Rewrites ask what the whole file imports, wherever it does.
_IMPORT: Final = re.compile(r"\bimport\b")
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def excerpt_around(text: str, findings: Iterable[Finding]) -> str:
    """The text, with `pass` as the body of each function and class of the file that no
    finding is in.

    Every line keeps its number. A definition in whose body something is imported stays
    as it is.

    Raises:
        SyntaxError: the text is not Python.
        ValueError: it has null bytes.
    """
    lines = text.split("\n")
    with_findings: set[int] = set()
    for finding in findings:
        with_findings.update(range(finding.line, finding.end_line + 1))
    for definition in _top_level_definitions(text):
        whole = range(_first_line(definition), (definition.end_lineno or 0) + 1)
        if not with_findings.isdisjoint(whole):
            continue
        first = definition.body[0]
        start, end = _first_line(first), whole.stop
        indent = lines[start - 1][
            : len(lines[start - 1]) - len(lines[start - 1].lstrip())
        ]
        # `def f(x): return x`
        is_on_line_of_header = not indent
        if is_on_line_of_header or _IMPORT.search(
            "\n".join(lines[start - 1 : end - 1])
        ):
            continue
        lines[start - 1 : end - 1] = [f"{indent}pass", *[""] * (end - start - 1)]
    return "\n".join(lines)


def _top_level_definitions(
    text: str,
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    return (node for node in ast.parse(text).body if isinstance(node, _DEFINITIONS))


def _first_line(node: ast.stmt) -> int:
    """The line that a statement starts on, with its decorators."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])
