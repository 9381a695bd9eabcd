"""Mechanical rewrites of findings, which keep formatting and comments. One rule, one file."""

import warnings
from collections.abc import Mapping, Sequence

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, ParentNodeProvider, PositionProvider

from tpuport.lint.findings import Applicability, Finding
from tpuport.lint.fixes.apply import apply, keeps_comments, without_overlap
from tpuport.lint.fixes.place import File, Place
from tpuport.lint.fixes.registry import all_rewrites
from tpuport.lint.fixes.rewrite import Edit, Rewrite

__all__ = ["available_fixes", "fix_text"]

_NO_PYTHON = (
    cst.ParserSyntaxError,
    cst.CSTValidationError,
    SyntaxError,
    ValueError,
    RecursionError,
    MemoryError,
)
_Range = tuple[int, int, int, int]


def fix_text(text: str, findings: Sequence[Finding], unsafe: bool) -> tuple[str, int]:
    """One pass over a file: the text with as many findings rewritten as do not touch each other, and their number.

    A finding whose place does not look as its rewrite expects is left alone. Of overlapping rewrites the outermost
    and first is done; lint again for the rest. A number of 0 means that nothing more can be rewritten.

    Args:
        text: the file's text.
        findings: its findings; those without a rewrite are passed over.
        unsafe: also do rewrites that may change results.
    """
    wanted = [
        finding
        for finding in findings
        if finding.fix is Applicability.SAFE or (unsafe and finding.fix is Applicability.UNSAFE)
    ]
    wanted.sort(key=lambda f: (f.line, f.column, -f.end_line, -f.end_column))
    file, edits = _edits(text, wanted)
    if file is None:
        return text, 0
    chosen = [edit for edit in edits if edit is not None and (unsafe or not edit.unsafe)]
    return _done(text, file, without_overlap(chosen, file.parents))


def available_fixes(text: str, findings: Sequence[Finding]) -> list[Applicability]:
    """What can be done at each place as it stands; a finding's own `fix` is what its rule can do at best.

    Parses the file, which takes a hundred times as long as finding did.
    """
    _, edits = _edits(text, findings)
    result = []
    for finding, edit in zip(findings, edits, strict=True):
        unsafe = edit is not None and (edit.unsafe or finding.fix is Applicability.UNSAFE)
        none = edit is None or finding.fix is Applicability.NONE
        result.append(Applicability.NONE if none else Applicability.UNSAFE if unsafe else Applicability.SAFE)
    return result


def _edits(text: str, findings: Sequence[Finding]) -> tuple[File | None, list[Edit | None]]:
    """The file, and the rewrite of each finding that has one."""
    rewrites = all_rewrites()
    if not any(finding.rule in rewrites for finding in findings):
        return None, [None] * len(findings)
    try:
        _parse(text)
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        positions = wrapper.resolve(PositionProvider)
        file = File(wrapper.module, wrapper.resolve(ParentNodeProvider))
    except _NO_PYTHON:
        return None, [None] * len(findings)
    edits: list[Edit | None] = []
    nodes = _located(findings, rewrites, positions)
    for finding, node in zip(findings, nodes, strict=True):
        edit = None if node is None else _asked(rewrites[finding.rule], node, Place(finding, file))
        edits.append(edit if edit is not None and keeps_comments(edit, file.module) else None)
    return file, edits


def _parse(text: str) -> None:
    """Raise where Python itself cannot read the text; libcst ends the process where it is nested too deeply."""
    with warnings.catch_warnings(action="ignore"):
        compile(text.removeprefix("\ufeff"), "<text>", "exec", dont_inherit=True)


def _asked(rewrite: Rewrite, node: cst.CSTNode, place: Place) -> Edit | None:
    """What a rule makes of the node; None too where pieces of the text, put together, are no Python."""
    try:
        return rewrite.function(node, place)
    except _NO_PYTHON:
        return None


def _done(text: str, file: File, edits: list[Edit]) -> tuple[str, int]:
    """The text after these edits, unless they made something that does not parse."""
    if not edits:
        return text, 0
    try:
        new = "\ufeff" * text.startswith("\ufeff") + apply(file.module, edits).code
        _parse(new)
    except _NO_PYTHON:
        return text, 0
    return (new, len(edits)) if new != text else (text, 0)


def _located(
    findings: Sequence[Finding], rewrites: dict[str, Rewrite], positions: Mapping[cst.CSTNode, CodeRange]
) -> list[cst.CSTNode | None]:
    """The node of each finding, None where there is no rewrite or not the node that it wants."""
    by_range: dict[_Range, list[cst.CSTNode]] = {}
    for node, found in positions.items():
        for key in _keys(node, found, positions):
            by_range.setdefault(key, []).append(node)
    nodes = []
    for finding in findings:
        rewrite = rewrites.get(finding.rule)
        key = (finding.line, finding.column, finding.end_line, finding.end_column)
        kinds = rewrite.nodes if rewrite else ()
        node = next((node for node in by_range.get(key, ()) if isinstance(node, kinds)), None)
        if node is None and rewrite is not None and rewrite.within:
            node = _around(key, rewrite.nodes, positions)
        nodes.append(node)
    return nodes


def _keys(node: cst.CSTNode, found: CodeRange, positions: Mapping[cst.CSTNode, CodeRange]) -> list[_Range]:
    """Where a finding on this node may say it is: a call in a chain over several lines starts at its method's name."""
    end = found.end.line, found.end.column + 1
    keys = [(found.start.line, found.start.column + 1, *end)]
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        name = positions[node.func.attr].start
        if name.line != found.start.line:
            keys.append((name.line, name.column + 1, *end))
    return keys


def _around(
    key: _Range, kinds: tuple[type[cst.CSTNode], ...], positions: Mapping[cst.CSTNode, CodeRange]
) -> cst.CSTNode | None:
    """The smallest node of these kinds that holds the place."""
    start, end = (key[0], key[1] - 1), (key[2], key[3] - 1)
    best: tuple[tuple[int, int], cst.CSTNode] | None = None
    for node, found in positions.items():
        if isinstance(node, kinds):
            first, last = (found.start.line, found.start.column), (found.end.line, found.end.column)
            if first <= start and end <= last and (best is None or first >= best[0]):
                best = first, node
    return None if best is None else best[1]
