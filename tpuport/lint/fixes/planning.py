"""From findings to edits of a file, and from edits to the new text."""

import contextlib
import functools
import importlib
import pkgutil
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from tpuport.lint.findings import Applicability, Finding
from tpuport.lint.fixes.edits import Edit, Removed, Rewrite, Statements
from tpuport.lint.fixes.excerpt import excerpt_around
from tpuport.lint.fixes.site import ParsedFile, Site
from tpuport.lint.fixes.syntax import (
    CannotRewriteError,
    expect,
    nodes_of_kind,
    parents_below,
    require,
)
from tpuport.lint.source import Span

# What libcst and Python raise for text that is not Python, or too deeply nested.
_PARSE_ERRORS: Final = (
    cst.ParserSyntaxError,
    cst.CSTValidationError,
    SyntaxError,
    ValueError,
    RecursionError,
    MemoryError,
)
_REWRITE_MODULE: Final = re.compile(r"tpu\d{3}_")
_BYTE_ORDER_MARK: Final = "\ufeff"


@functools.cache
def all_rewrites() -> dict[str, Rewrite]:
    """The rewrite of each rule that has one, by the rule's id; modules `tpuNNN_name.py`
    define them.
    """
    package = importlib.import_module("tpuport.lint.fixes")
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    modules = [
        importlib.import_module(f"tpuport.lint.fixes.{name}")
        for name in names
        if _REWRITE_MODULE.match(name)
    ]
    return {module.REWRITE.rule: module.REWRITE for module in modules}


def fix_text(text: str, findings: Sequence[Finding], unsafe: bool) -> tuple[str, int]:
    """One pass over a file: the text with as many findings rewritten as do not overlap,
    and their number.

    A finding whose code is not of the shape that its rewrite expects is left alone. Of
    overlapping rewrites the outermost and first is applied; lint again for the rest. A
    number of 0 means that nothing more can be rewritten.

    Args:
        text: the file's text.
        findings: its findings; those without a rewrite are ignored.
        unsafe: also apply rewrites that may change results.
    """
    limit = Applicability.UNSAFE if unsafe else Applicability.SAFE
    findings = [finding for finding in findings if finding.fix.is_within(limit)]
    # Outer code before the code inside it.
    findings.sort(
        key=lambda finding: (
            finding.line,
            finding.column,
            -finding.end_line,
            -finding.end_column,
        )
    )
    plan = _plan_edits(text, findings)
    edits = [
        edit
        for finding, edit in zip(findings, plan.edits, strict=True)
        if edit is not None
        if _applicability(finding, edit).is_within(limit)
    ]
    if plan.file is None or not edits:
        return text, 0
    edits = _without_overlap(edits, plan.file)
    # Edits that are sound by themselves may together give text that is not Python; then
    # none is applied.
    try:
        new_text = _apply_edits(plan.file.module, edits).code
        if text.startswith(_BYTE_ORDER_MARK):
            new_text = _BYTE_ORDER_MARK + new_text
        _check_syntax(new_text)
    except _PARSE_ERRORS:
        return text, 0
    return new_text, 0 if new_text == text else len(edits)


def available_fixes(text: str, findings: Sequence[Finding]) -> list[Applicability]:
    """What can be done about each finding with the code at its position.

    A finding's own `fix` is what its rule can do at best. Takes a hundred times as long
    as the linting of the same lines, so only the functions and classes with findings
    are read, where that is enough.
    """
    rewrites = [
        rewrite
        for rule, rewrite in all_rewrites().items()
        if _is_rule_of_any(rule, findings)
    ]
    if rewrites and not any(rewrite.reads_whole_file for rewrite in rewrites):
        with contextlib.suppress(*_PARSE_ERRORS):
            text = excerpt_around(text.removeprefix(_BYTE_ORDER_MARK), findings)
    edits = _plan_edits(text, findings).edits
    return [
        _applicability(finding, edit)
        for finding, edit in zip(findings, edits, strict=True)
    ]


def _is_rule_of_any(rule: str, findings: Sequence[Finding]) -> bool:
    return any(finding.rule == rule for finding in findings)


def _applicability(finding: Finding, edit: Edit | None) -> Applicability:
    """The rule's best fix, limited by what its rewrite made of the code."""
    if edit is None or finding.fix is Applicability.NONE:
        return Applicability.NONE
    return Applicability.UNSAFE if edit.unsafe else finding.fix


# --- from findings to edits ---


class _Plan(NamedTuple):
    """A file and an edit for each finding; the file is None, and so are all edits, if
    it cannot be parsed.
    """

    file: ParsedFile | None
    edits: list[Edit | None]


def _plan_edits(text: str, findings: Sequence[Finding]) -> _Plan:
    no_edits = _Plan(None, [None] * len(findings))
    # Parsing is slow, so it is skipped if no rewrite needs it.
    if all_rewrites().keys().isdisjoint(finding.rule for finding in findings):
        return no_edits
    try:
        _check_syntax(text)
        # The copy would only be needed if the same node occurred twice in the tree.
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        positions = wrapper.resolve(PositionProvider)
    except _PARSE_ERRORS:
        return no_edits
    nodes = _NodesByPosition(positions)
    imports = sorted(filter(_is_import, positions), key=nodes.start)
    file = ParsedFile(wrapper.module, parents_below(wrapper.module), imports)
    return _Plan(file, [_edit_for(finding, nodes, file) for finding in findings])


def _is_import(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Import | cst.ImportFrom)


def _check_syntax(text: str) -> None:
    """Raise if Python itself cannot parse the text; libcst's parser ends the process if
    it is too deeply nested.
    """
    with warnings.catch_warnings(action="ignore"):
        compile(
            text.removeprefix(_BYTE_ORDER_MARK), "<text>", "exec", dont_inherit=True
        )


def _edit_for(
    finding: Finding, nodes: "_NodesByPosition", file: ParsedFile
) -> Edit | None:
    # Pieces of the text, put together, need not be Python: hence the parse errors.
    with contextlib.suppress(CannotRewriteError, *_PARSE_ERRORS):
        rewrite = require(all_rewrites().get(finding.rule))
        node = require(nodes.find(finding, rewrite))
        edit = require(rewrite.function(node, Site(finding, file)))
        expect(_keeps_comments(edit))
        return edit
    return None


class _NodesByPosition:
    """The nodes of a file by their range in the text."""

    def __init__(self, positions: Mapping[cst.CSTNode, CodeRange]) -> None:
        self.positions = positions
        self.nodes: dict[Span, list[cst.CSTNode]] = {}
        self._nodes_of_kinds: dict[
            tuple[type[cst.CSTNode], ...], list[cst.CSTNode]
        ] = {}
        for node in positions:
            for span in self._spans(node):
                self.nodes.setdefault(span, []).append(node)

    def find(self, finding: Finding, rewrite: Rewrite) -> cst.CSTNode | None:
        """The node that a rewrite wants at or around the position of a finding."""
        span = Span(finding.line, finding.column, finding.end_line, finding.end_column)
        for node in self.nodes.get(span, []):
            if isinstance(node, rewrite.nodes):
                return node
        return self._innermost_around(span, rewrite.nodes) if rewrite.within else None

    def _spans(self, node: cst.CSTNode) -> Iterator[Span]:
        """The positions of findings on this node, as `source.node_span` determines
        them.
        """
        start, end = self.positions[node].start, self.positions[node].end
        yield Span(start.line, start.column + 1, end.line, end.column + 1)
        match node:
            case cst.Call(func=cst.Attribute(attr=method)):
                # A call in a chain over several lines starts at its method's name.
                name = self.positions[method].start
                if name.line != start.line:
                    yield Span(name.line, name.column + 1, end.line, end.column + 1)

    def _innermost_around(
        self, span: Span, kinds: tuple[type[cst.CSTNode], ...]
    ) -> cst.CSTNode | None:
        candidates = [
            node for node in self._of_kinds(kinds) if self._contains(node, span)
        ]
        # Nodes around the same position are nested, so the last to start is the
        # innermost.
        return max(reversed(candidates), key=self.start, default=None)

    def _of_kinds(self, kinds: tuple[type[cst.CSTNode], ...]) -> list[cst.CSTNode]:
        # A rule may have a thousand findings in a file, all at the same kinds of node.
        if kinds not in self._nodes_of_kinds:
            self._nodes_of_kinds[kinds] = [
                node for node in self.positions if isinstance(node, kinds)
            ]
        return self._nodes_of_kinds[kinds]

    def _contains(self, node: cst.CSTNode, span: Span) -> bool:
        end = self.positions[node].end
        start_of_span, end_of_span = (
            (span.line, span.column - 1),
            (span.end_line, span.end_column - 1),
        )
        return (
            self.start(node) <= start_of_span <= end_of_span <= (end.line, end.column)
        )

    def start(self, node: cst.CSTNode) -> tuple[int, int]:
        """The line and column that a node starts at."""
        start = self.positions[node].start
        return start.line, start.column


def _keeps_comments(edit: Edit) -> bool:
    """Whether every comment of the changed nodes is in their replacements too."""
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for node, replacement in edit.changes:
        before.update(_comments(node))
        match replacement:
            case Statements(body=body, before=lines_before, after=lines_after):
                for part in (*body, *lines_before, *lines_after):
                    after.update(_comments(part))
            case cst.CSTNode():
                after.update(_comments(replacement))
    return before <= after


def _comments(node: cst.CSTNode) -> list[str]:
    return [comment.value for comment in nodes_of_kind(node, cst.Comment)]


# --- from edits to the new text ---


def _without_overlap(edits: Sequence[Edit], file: ParsedFile) -> list[Edit]:
    """The edits, in order, that neither change nodes in or around those of an earlier
    edit nor bind its names.
    """
    changed: set[cst.CSTNode] = set()
    around_changed: set[cst.CSTNode] = set()
    bound_names: set[str] = set()
    separate: list[Edit] = []
    for edit in edits:
        nodes = {node for node, _ in edit.changes}
        ancestors = set().union(*map(file.ancestors, nodes))
        if (
            (nodes | ancestors) & changed
            or nodes & around_changed
            or bound_names.intersection(edit.names)
        ):
            continue
        bound_names.update(edit.names)
        changed |= nodes
        around_changed |= ancestors
        separate.append(edit)
    return separate


def _apply_edits(module: cst.Module, edits: Sequence[Edit]) -> cst.Module:
    """The module with these edits, none of which overlap, and the imports they need."""
    replacements: dict[cst.CSTNode, Any] = {}
    imports: set[str] = set()
    for edit in edits:
        replacements.update(edit.changes)
        imports.update(edit.imports)
    # One visit for all edits: a second would not know the nodes of the first.
    changed = module.visit(_Replacer(replacements))
    if imports:
        # Importing it takes as long as the rest of libcst, and few rewrites need it.
        from libcst.codemod import CodemodContext
        from libcst.codemod.visitors import AddImportsVisitor, ImportItem

        items = [ImportItem(name) for name in sorted(imports)]
        changed = AddImportsVisitor(CodemodContext(), items).transform_module(changed)
    return changed


class _Replacer(cst.CSTTransformer):
    """Replaces nodes by identity."""

    def __init__(self, replacements: dict[cst.CSTNode, Any]) -> None:
        super().__init__()
        self._replacements = replacements

    def on_visit(self, node: cst.CSTNode) -> bool:
        # A replacement refers to the original nodes, so nothing below it is visited.
        return node not in self._replacements

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        match self._replacements.get(original_node), updated_node:
            case Removed(), _:
                return cst.RemoveFromParent()
            case Statements(body=body, before=before, after=after), _:
                return cst.FlattenSentinel(
                    [_comment_mark(before), *body, _comment_mark(after)]
                )
            case cst.CSTNode() as replacement, _:
                return replacement
            case None, cst.IndentedBlock() | cst.Module():
                return _without_marks(updated_node)
            case None, cst.Call():
                return _without_last_comma(original_node, updated_node)
        return updated_node


# Comments belong to the statement after them, which may not exist any more when a
# statement is removed. Until the whole block is known, a marked `pass` carries them.
_MARK: Final = cst.Pass()


def _comment_mark(lines: Sequence[cst.EmptyLine]) -> cst.SimpleStatementLine:
    return cst.SimpleStatementLine([_MARK], leading_lines=list(lines))


def _is_mark(statement: cst.CSTNode) -> bool:
    match statement:
        case cst.SimpleStatementLine(body=[mark]):
            return mark is _MARK
    return False


def _without_marks(block: Any) -> Any:
    """The block with the lines of marks given to the next statement, and `pass` if no
    statement remains.
    """
    if not any(map(_is_mark, block.body)):
        return block
    body: list[Any] = []
    lines: list[cst.EmptyLine] = []
    for statement in block.body:
        if _is_mark(statement):
            lines += statement.leading_lines
            continue
        # Blank lines without a comment are dropped if the statement has its own.
        if lines and (_has_comment(lines) or not statement.leading_lines):
            statement = statement.with_changes(
                leading_lines=[*lines, *statement.leading_lines]
            )
        body.append(statement)
        lines = []
    if not _has_comment(lines):
        lines = []
    if not body and isinstance(block, cst.IndentedBlock):
        return block.with_changes(
            body=[cst.SimpleStatementLine([cst.Pass()], leading_lines=lines)]
        )
    return block.with_changes(body=body, footer=[*lines, *block.footer])


def _has_comment(lines: Sequence[cst.EmptyLine]) -> bool:
    return any(line.comment for line in lines)


def _without_last_comma(original: cst.Call, updated: cst.Call) -> cst.Call:
    """The call without a trailing comma that was not there before its last arguments
    were removed.
    """
    match updated.args:
        case [*first, last] if len(updated.args) < len(original.args):
            return updated.with_changes(
                args=[*first, last.with_changes(comma=original.args[-1].comma)]
            )
    return updated
