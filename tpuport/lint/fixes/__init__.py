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

__all__ = ["fix_text"]

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
    rewrites = all_rewrites()
    wanted = [
        finding
        for finding in findings
        if finding.rule in rewrites
        and (finding.fix is Applicability.SAFE or (unsafe and finding.fix is Applicability.UNSAFE))
    ]
    if not wanted:
        return text, 0
    try:
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        positions = wrapper.resolve(PositionProvider)
        parents = wrapper.resolve(ParentNodeProvider)
    except (cst.ParserSyntaxError, RecursionError):
        return text, 0
    file = File(wrapper.module, parents)
    edits = []
    for finding, node in _located(wanted, rewrites, positions):
        edit = _asked(rewrites[finding.rule], node, Place(finding, file))
        if edit is not None and (unsafe or not edit.unsafe) and keeps_comments(edit, file.module):
            edits.append(edit)
    return _done(text, file, without_overlap(edits, parents))


def _asked(rewrite: Rewrite, node: cst.CSTNode, place: Place) -> Edit | None:
    """What a rule makes of the node; None too where pieces of the text, put together, are no Python."""
    try:
        return rewrite.function(node, place)
    except cst.ParserSyntaxError:
        return None


def _done(text: str, file: File, edits: list[Edit]) -> tuple[str, int]:
    """The text after these edits, unless they made something that does not parse."""
    if not edits:
        return text, 0
    new = apply(file.module, edits).code
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(new, "<fixed>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return text, 0
    return (new, len(edits)) if new != text else (text, 0)


def _located(
    findings: Sequence[Finding], rewrites: dict[str, Rewrite], positions: Mapping[cst.CSTNode, CodeRange]
) -> list[tuple[Finding, cst.CSTNode]]:
    """The node of each finding that has one, outermost first."""
    by_range: dict[_Range, list[cst.CSTNode]] = {}
    for node, found in positions.items():
        for key in _keys(node, found, positions):
            by_range.setdefault(key, []).append(node)
    pairs = []
    for finding in findings:
        rewrite = rewrites[finding.rule]
        key = (finding.line, finding.column, finding.end_line, finding.end_column)
        node = next((node for node in by_range.get(key, ()) if isinstance(node, rewrite.nodes)), None)
        if node is None and rewrite.within:
            node = _around(key, rewrite.nodes, positions)
        if node is not None:
            pairs.append((finding, node))
    pairs.sort(key=lambda pair: (pair[0].line, pair[0].column, -pair[0].end_line, -pair[0].end_column))
    return pairs


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
