"""Which lint rule is about a line where tracing failed: by the linter's findings, or by
what is written there.
"""

import ast
import contextlib
import functools
import linecache
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tpuport.lint import source, workers
from tpuport.lint.configuration import Settings
from tpuport.lint.findings import Finding, Severity
from tpuport.trace_errors.tracebacks import Frame

# Rules about values, by the last name of what is called.
_CALL_RULES: Final = {
    "item": "TPU201", "tolist": "TPU202", "numpy": "TPU203", "__array__": "TPU203", "asarray": "TPU203",
    "int": "TPU204", "float": "TPU204", "bool": "TPU204", "complex": "TPU204",
    "range": "TPU208", "equal": "TPU210", "allclose": "TPU210", "is_nonzero": "TPU210",
    "print": "TPU211", "format": "TPU211", "max": "TPU212", "min": "TPU212", "any": "TPU212", "all": "TPU212",
    "sorted": "TPU212", "tensor": "TPU213", "as_tensor": "TPU213", "full": "TPU213",
    "nonzero": "TPU102", "argwhere": "TPU102", "where": "TPU102", "masked_select": "TPU103",
    "unique": "TPU104", "unique_consecutive": "TPU104", "repeat_interleave": "TPU105", "bincount": "TPU106",
    "ones": "TPU107", "zeros": "TPU107", "empty": "TPU107", "arange": "TPU107", "view": "TPU107", "reshape": "TPU107",
    "expand": "TPU107", "linspace": "TPU107", "narrow": "TPU107", "tril": "TPU107", "triu": "TPU107",
    "split": "TPU109", "tensor_split": "TPU109", "one_hot": "TPU110",
    "pack_padded_sequence": "TPU111", "nested_tensor": "TPU112", "to_sparse": "TPU114",
    "cpu": "TPU312", "to": "TPU312", "cuda": "TPU301",
}  # fmt: skip
# Only if Python's own is called: a tensor's method of the name is traced.
_BUILTINS: Final = frozenset(
    {
        "int",
        "float",
        "bool",
        "complex",
        "range",
        "max",
        "min",
        "any",
        "all",
        "sorted",
        "print",
    }
)
_SCOPES: Final = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class LineRange(NamedTuple):
    """Lines from the first to the last, both included."""

    first: int
    last: int


def collect_findings(files: Iterable[str]) -> list[Finding]:
    """What the linter finds from these files on, suppressed or not; nothing for a file
    that cannot be read.

    Args:
        files: as tracebacks name them, cells of notebooks too.
    """
    findings: dict[Finding, None] = {}
    with _restored_recursion_limit(), _readable_cells(files):
        analyser = workers.make_analyser(Settings())
        for file in dict.fromkeys(files):
            result = workers.analyse_file(analyser, _absolute(file))
            if not result.failed:
                findings.update(dict.fromkeys(result.findings))
    return list(findings)


def match_frame(
    frame: Frame, findings: Iterable[Finding], prefixes: tuple[str, ...]
) -> Finding | None:
    """The finding about the expression of a frame, else about its statement.

    Args:
        frame: where tracing failed.
        findings: the candidates; only errors that stop a trace count.
        prefixes: of the ids of the rules that count.
    """
    path = _absolute(frame.file)
    lines = _statement_lines(frame)
    about = [finding for finding in findings if finding.rule.startswith(prefixes)]
    matches = [finding for finding in about if _stops_at(finding, path, lines)]
    return min(matches, key=lambda finding: _distance(frame, finding), default=None)


def _stops_at(finding: Finding, path: str, lines: LineRange) -> bool:
    """Whether a finding is one that ends a trace, on one of these lines."""
    overlaps = finding.line <= lines.last and finding.end_line >= lines.first
    return (
        finding.path == path
        and overlaps
        and finding.severity == Severity.ERROR
        and finding.stops
    )


def _statement_lines(frame: Frame) -> LineRange:
    """The lines of the innermost statement around a frame's line; of one with a body,
    those of its head.
    """
    expression = LineRange(frame.line, frame.end_line)
    tree = parse_file(frame.file)
    if tree is None:
        return expression
    ranges = [
        _head_lines(node) for node in ast.walk(tree) if isinstance(node, ast.stmt)
    ]
    around = [lines for lines in ranges if lines.first <= frame.line <= lines.last]
    return min(around, key=lambda lines: lines.last - lines.first, default=expression)


def _head_lines(statement: ast.stmt) -> LineRange:
    decorators = getattr(statement, "decorator_list", [])
    first = min(node.lineno for node in [statement, *decorators])
    # A match statement counts as a whole: its cases have no lines of their own.
    inner = [*getattr(statement, "body", []), *getattr(statement, "handlers", [])]
    if not inner:
        return LineRange(first, _end(statement)[0])
    # A body on the line of its head belongs to the head.
    return LineRange(first, max(first, min(node.lineno for node in inner) - 1))


def _distance(frame: Frame, finding: Finding) -> tuple[int, int]:
    """How far a finding is from a frame's expression: in lines, then in columns."""
    lines = abs(finding.line - frame.line) + abs(finding.end_line - frame.end_line)
    if frame.column is None or frame.end_column is None:
        return lines, 0
    start = _characters(frame.file, frame.line, frame.column)
    end = _characters(frame.file, frame.end_line, frame.end_column)
    return lines, abs(finding.column - 1 - start) + abs(finding.end_column - 1 - end)


def _characters(file: str, line: int, column: int) -> int:
    """A column in characters: Python counts bytes, and the linter does not."""
    return len(linecache.getline(file, line).encode()[:column].decode(errors="replace"))


def parse_file(file: str) -> ast.Module | None:
    """The syntax of a file, as tracebacks name it; None if it cannot be read."""
    return _parse(file, "".join(linecache.getlines(file)))


@functools.lru_cache(16)
def _parse(file: str, text: str) -> ast.Module | None:
    try:
        return source.parse(text, Path(_absolute(file)), file).tree
    except source.Unreadable:
        return None


def _absolute(file: str) -> str:
    return str(Path(file).absolute())


@contextlib.contextmanager
def _readable_cells(files: Iterable[str]) -> Iterator[None]:
    """Let the linter read texts that Python knows and that are not files: a notebook's
    cells.
    """
    texts = {Path(_absolute(file)): "".join(linecache.getlines(file)) for file in files}
    cells = {path: text for path, text in texts.items() if text and not path.exists()}
    # What an editor has put there already stays.
    before = dict(source.overlay)
    source.overlay.update(cells | before)
    try:
        yield
    finally:
        source.overlay.clear()
        source.overlay.update(before)


@contextlib.contextmanager
def _restored_recursion_limit() -> Iterator[None]:
    """Restore the limit afterwards: the analysis raises it, because what it follows may
    be deep.
    """
    before = sys.getrecursionlimit()
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def rule_written_at(frame: Frame, *, is_mask: bool = False) -> str | None:
    """The id of the rule about what is written at a frame's position, if the linter
    cannot tell what values are.

    Args:
        frame: where a value was asked for.
        is_mask: whether the error was about a boolean mask as an index.
    """
    node, parents = _locate(frame)
    while node is not None and not isinstance(node, _SCOPES):
        parent = parents.get(node)
        if rule := _rule_of_expression(node, is_mask=is_mask) or _rule_of_position(
            node, parent
        ):
            return rule
        # What is around the statement asked for nothing.
        if isinstance(node, ast.stmt):
            return None
        node = parent
    return None


def node_at(frame: Frame) -> ast.AST | None:
    """The smallest expression or statement around a frame's position; None if its file
    cannot be read.
    """
    return _locate(frame)[0]


def _locate(frame: Frame) -> tuple[ast.AST | None, dict[ast.AST, ast.AST]]:
    """What is written at a frame's position, and the parents of every node of its
    file.
    """
    tree = parse_file(frame.file)
    if tree is None or frame.column is None:
        return None, {}
    start = frame.line, frame.column
    end = frame.end_line, frame.end_column or 0
    # Of two nodes of the same extent, the outer one comes first.
    parents = {
        child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
    }
    around = [
        node
        for node in parents
        if isinstance(node, ast.expr | ast.stmt)
        and _start(node) <= start
        and end <= _end(node)
    ]
    # The node that starts last and, of those, ends first is inside of the others.
    return min(around, key=_inverse_extent, default=None), parents


def _inverse_extent(node: ast.expr | ast.stmt) -> tuple[int, int, tuple[int, int]]:
    return -node.lineno, -node.col_offset, _end(node)


def _start(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _rule_of_expression(node: ast.AST, *, is_mask: bool) -> str | None:
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return _CALL_RULES.get(name)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"))):
            return "TPU204"
        case ast.Call(func=ast.Attribute(attr=name)) if name not in _BUILTINS:
            return _CALL_RULES.get(name)
        case ast.Subscript(ctx=ast.Store()) if is_mask:
            return "TPU113"
        case ast.Subscript() if is_mask:
            return "TPU101"
        case ast.Subscript(slice=index):
            return _rule_of_index(index)
        case ast.Compare(ops=[ast.In() | ast.NotIn()]):
            return "TPU209"
        case ast.BoolOp() | ast.IfExp() | ast.UnaryOp(op=ast.Not()):
            return "TPU205"
        case ast.FormattedValue() | ast.JoinedStr():
            return "TPU211"
    return None


def _rule_of_index(index: ast.expr) -> str | None:
    parts = [index]
    if isinstance(index, ast.Tuple):
        parts = index.elts
    kinds = set(map(type, parts))
    if kinds <= {ast.Constant}:
        return None
    if ast.Slice in kinds:
        return "TPU108"
    return "TPU214"


def _rule_of_position(node: ast.AST, parent: ast.AST | None) -> str | None:
    """The rule about being a condition of the parent."""
    match parent:
        case ast.Assert(test=test) if test is node:
            return "TPU206"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if (
            test is node
        ):
            return "TPU205"
        case ast.comprehension(ifs=conditions) if node in conditions:
            return "TPU205"
    return None
