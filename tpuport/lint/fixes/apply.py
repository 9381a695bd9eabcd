"""Edits put into a syntax tree, without losing comments."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import libcst as cst
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import AddImportsVisitor, ImportItem

from tpuport.lint.fixes.names import walk
from tpuport.lint.fixes.rewrite import Edit, Removed, Statements

_MARK = cst.Pass()
_Parents = Mapping[cst.CSTNode, cst.CSTNode]


def without_overlap(edits: Sequence[Edit], parents: _Parents) -> list[Edit]:
    """The edits, in order, that touch nothing that one before them touches."""
    taken: set[int] = set()  # nodes that change
    above: set[int] = set()  # nodes that hold one of these
    named: set[str] = set()
    chosen = []
    for edit in edits:
        nodes = [node for node, _ in edit.changes]
        lines = {id(node): _ancestors(node, parents) for node in nodes}
        if any(id(n) in taken or id(n) in above or not taken.isdisjoint(lines[id(n)]) for n in nodes):
            continue
        if not named.isdisjoint(edit.names):
            continue
        named.update(edit.names)
        chosen.append(edit)
        taken.update(lines)
        above.update(*lines.values())
    return chosen


def _ancestors(node: cst.CSTNode, parents: _Parents) -> set[int]:
    found = set()
    above = parents.get(node)
    while above is not None:
        found.add(id(above))
        above = parents.get(above)
    return found


def keeps_comments(edit: Edit, module: cst.Module) -> bool:
    """Whether every comment in what changes is still there afterwards."""
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for node, new in edit.changes:
        before.update(_comments(node))
        if isinstance(new, Statements):
            for part in (*new.body, *new.before, *new.after):
                after.update(_comments(part))
        elif isinstance(new, cst.CSTNode):
            after.update(_comments(new))
    return before <= after


def _comments(node: cst.CSTNode) -> list[str]:
    return [part.value for part in walk(node) if isinstance(part, cst.Comment)]


def apply(module: cst.Module, edits: Sequence[Edit]) -> cst.Module:
    """The module with these edits, none of which overlap, and the imports they need."""
    changed = module.visit(_Applier({id(node): new for edit in edits for node, new in edit.changes}))
    wanted = sorted({name for edit in edits for name in edit.imports})
    if wanted:
        items = [ImportItem(name) for name in wanted]
        changed = AddImportsVisitor(CodemodContext(), items).transform_module(changed)
    return changed


class _Applier(cst.CSTTransformer):
    def __init__(self, new: dict[int, Any]) -> None:
        super().__init__()
        self._new = new

    def on_visit(self, node: cst.CSTNode) -> bool:
        return id(node) not in self._new

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        new = self._new.get(id(original_node))
        if isinstance(new, Removed):
            return cst.RemoveFromParent()
        if isinstance(new, Statements):
            marks = [_mark(new.before)] * bool(new.before), [_mark(new.after)]
            return cst.FlattenSentinel([*marks[0], *new.body, *marks[1]])
        if new is not None:
            return new
        if isinstance(updated_node, cst.IndentedBlock | cst.Module):
            return _settled(updated_node)
        if isinstance(updated_node, cst.Call):
            return _without_last_comma(original_node, updated_node)
        return updated_node


def _mark(lines: Sequence[cst.EmptyLine]) -> cst.SimpleStatementLine:
    """Stands in a block for comment lines, until the statement that follows takes them."""
    return cst.SimpleStatementLine([_MARK], leading_lines=list(lines))


def _is_mark(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and statement.body[0] is _MARK


def _settled(block: Any) -> Any:
    """The block with marks taken up by what follows them, and `pass` where nothing is left."""
    if not any(_is_mark(statement) for statement in block.body):
        return block
    body: list[Any] = []
    waiting: list[cst.EmptyLine] = []
    for statement in block.body:
        if _is_mark(statement):
            waiting += statement.leading_lines
            continue
        if waiting and (_has_comment(waiting) or not statement.leading_lines):
            statement = statement.with_changes(leading_lines=[*waiting, *statement.leading_lines])
        body.append(statement)
        waiting = []
    waiting = waiting if _has_comment(waiting) else []
    if isinstance(block, cst.Module):
        return block.with_changes(body=body, footer=[*waiting, *block.footer])
    if not body:
        body, waiting = [cst.SimpleStatementLine([cst.Pass()], leading_lines=waiting)], []
    return block.with_changes(body=body, footer=[*waiting, *block.footer])


def _has_comment(lines: Sequence[cst.EmptyLine]) -> bool:
    return any(line.comment for line in lines)


def _without_last_comma(original: cst.Call, updated: cst.Call) -> cst.Call:
    """No comma is left behind by a last argument that went, where there was none before."""
    before, after = original.args, updated.args
    if not after or len(after) == len(before):
        return updated
    return updated.with_changes(args=[*after[:-1], after[-1].with_changes(comma=before[-1].comma)])
