"""What a rewrite returns: an `Edit` that says which nodes of a file become what, and
the usual ways to build one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import libcst as cst

from tpuport.lint.fixes.site import Site
from tpuport.lint.fixes.syntax import is_simple, name_uses, require


@dataclasses.dataclass(frozen=True, slots=True)
class Statements:
    """What a statement becomes: several statements, or none.

    Attributes:
        body: the new statements, in order.
        before, after: comment lines that stay, before and after them.
    """

    body: tuple[cst.BaseStatement, ...] = ()
    before: tuple[cst.EmptyLine, ...] = ()
    after: tuple[cst.EmptyLine, ...] = ()


class Removed:
    """What a decorator, an argument or an item of a `with` becomes if it is removed."""


REMOVED: Final = Removed()
Replacement = cst.CSTNode | Statements | Removed


@dataclasses.dataclass(frozen=True, slots=True)
class Edit:
    """The rewrite of one finding.

    Attributes:
        changes: each node that changes, with its replacement. None of them contains
            another.
        unsafe: results may change here, even if the rule's rewrites are safe otherwise.
        imports: modules that the new text needs and that the file must import.
        names: names that the new text binds; two edits of one pass do not bind the
            same.
    """

    changes: tuple[tuple[cst.CSTNode, Replacement], ...]
    unsafe: bool = False
    imports: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Rewrite:
    """The rewrite of one rule.

    Attributes:
        rule: the rule's id.
        nodes: kinds of syntax that the finding may be on; anything else at its position
            is left alone.
        function: from the node and its surroundings to the edit. If the code is not of
            the expected shape, it returns None or raises `CannotRewriteError`.
        within: the finding may be on any part of such a node; the innermost one around
            it is taken.
        reads_whole_file: the function looks at other functions and classes of the file
            than the one around the node.
    """

    rule: str
    nodes: tuple[type[cst.CSTNode], ...]
    function: Callable[[Any, Site], Edit | None]
    within: bool = False
    reads_whole_file: bool = False


def replace_node(
    node: cst.CSTNode,
    replacement: Replacement,
    *,
    unsafe: bool = False,
    imports: tuple[str, ...] = (),
) -> Edit:
    """The edit of a single node."""
    return Edit(((node, replacement),), unsafe, imports)


def mark_unsafe(edit: Edit, condition: bool = True) -> Edit:
    """The edit, as an unsafe one if the condition holds."""
    return dataclasses.replace(edit, unsafe=edit.unsafe or condition)


def remove_line(site: Site, node: cst.CSTNode) -> Edit:
    """Remove the line whose only statement contains the node.

    Raises:
        CannotRewriteError: other statements share the line.
    """
    line = require(site.statement_line(node))
    return replace_node(line, _only_comments(line))


def _only_comments(line: cst.SimpleStatementLine) -> Statements:
    """No statement in the place of a line, but the comments before and behind it."""
    return Statements(
        after=(*line.leading_lines, *_comment_line(line.trailing_whitespace))
    )


def replace_expression(
    site: Site, old: cst.BaseExpression, new: cst.BaseExpression
) -> Edit:
    """Replace an expression; its statement is removed if it would no longer do
    anything.

    `x.cuda()` on a line of its own and `x = x.cuda()` do nothing without `.cuda()`.
    """
    line = site.statement_line(old)
    if (
        line is not None
        and is_simple(new)
        and _does_nothing(site, site.parent(old), new)
    ):
        return replace_node(line, _only_comments(line))
    # Without the old parentheses an expression over several lines would end at the
    # first.
    if old.lpar and not new.lpar:
        new = new.with_changes(lpar=old.lpar, rpar=old.rpar)
    return replace_node(old, new)


def _does_nothing(
    site: Site, statement: cst.CSTNode | None, value: cst.BaseExpression
) -> bool:
    """Whether a statement with this simple value does nothing."""
    match statement:
        case cst.Expr():
            return True
        case cst.Assign(targets=[cst.AssignTarget(target=target)]):
            return site.code(target) == site.code(value)
    return False


def introduce_name(
    site: Site,
    node: cst.CSTNode,
    name: str,
    value: str,
    build: Callable[[str], cst.BaseExpression],
) -> Edit | None:
    """Bind a new name on a line before, and replace the expression by one that uses the
    name.

    Args:
        site: the finding.
        node: the expression.
        name: the new name; underscores are added until it is free.
        value: text of the name's value.
        build: from the final name to the new expression.

    Returns:
        None if no line before is sure to run in the same scope, or if the expression
        may not be evaluated.
    """
    line = site.statement_line(node)
    function = site.enclosing_function(node)
    is_evaluated_with_line = site.enclosing(node, *_EVALUATED_SEPARATELY) is function
    if (
        line is None
        or not isinstance(function, cst.FunctionDef)
        or not is_evaluated_with_line
    ):
        return None
    # A nested function may use the name too, so all uses count.
    free_name = unused_name(function, name)
    before = site.statement(f"{free_name} = {value}").with_changes(
        leading_lines=line.leading_lines
    )
    changed: Any = line.deep_replace(node, build(free_name))
    statements = Statements((before, changed.with_changes(leading_lines=())))
    return Edit(((line, statements),), names=(name,))


def unused_name(function: cst.CSTNode, name: str) -> str:
    """The name, with underscores at its end if the function uses it already."""
    while name_uses(function, name):
        name += "_"
    return name


# A part of a line that is inside one of these is evaluated later, several times, or
# never. A function or class is among them because the search for one of these must not
# leave the function.
_EVALUATED_SEPARATELY: Final = (
    cst.ListComp,
    cst.SetComp,
    cst.DictComp,
    cst.GeneratorExp,
    cst.IfExp,
    cst.BooleanOperation,
    cst.Lambda,
    cst.FunctionDef,
    cst.ClassDef,
    cst.Assert,
)


def _comment_line(space: cst.TrailingWhitespace) -> tuple[cst.EmptyLine, ...]:
    """A comment behind a statement, as a line of its own; none if there is no
    comment.
    """
    if space.comment is None:
        return ()
    return (cst.EmptyLine(comment=space.comment, newline=space.newline),)
