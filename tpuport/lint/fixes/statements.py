"""Statements that go, or give way to their body, without taking comments along."""

from collections.abc import Callable
from typing import Any

import libcst as cst

from tpuport.lint.fixes.names import uses
from tpuport.lint.fixes.place import Place, is_simple
from tpuport.lint.fixes.rewrite import Edit, New, Statements


def removed(line: cst.SimpleStatementLine) -> Statements:
    """Nothing in the place of a line but the comments above it and behind it."""
    return Statements(after=(*line.leading_lines, *_own_line(line.trailing_whitespace)))


def remove_line(place: Place, node: cst.CSTNode) -> Edit | None:
    """The line whose only statement holds the node goes; None where other statements share it."""
    line = place.line(node)
    return None if line is None else Edit(((line, removed(line)),))


def unwrapped(statement: cst.With) -> Statements:
    """The body of a `with` in its place."""
    before = (*_comments(statement.leading_lines),)
    body = statement.body
    if isinstance(body, cst.SimpleStatementSuite):
        line = cst.SimpleStatementLine(
            body.body, leading_lines=statement.leading_lines, trailing_whitespace=body.trailing_whitespace
        )
        return Statements((line,))
    assert isinstance(body, cst.IndentedBlock)
    blank = () if before else tuple(statement.leading_lines)
    lines = (*blank, *before, *_own_line(body.header))
    return Statements(tuple(body.body), lines, tuple(body.footer))  # pyright: ignore[reportArgumentType]


def replaced(place: Place, call: cst.BaseExpression, new: cst.BaseExpression | None) -> Edit | None:
    """The expression becomes `new`; its statement goes where that would now do nothing.

    `x.cuda()` on a line of its own and `x = x.cuda()` do nothing once `.cuda()` has gone.
    """
    if new is None:
        return None
    line = place.line(call)
    above = place.parent(call)
    if line is not None and isinstance(above, cst.Expr) and is_simple(new):
        return Edit(((line, removed(line)),))
    if line is not None and isinstance(above, cst.Assign) and _assigns_itself(place, above, new):
        return Edit(((line, removed(line)),))
    kept = _with_parentheses(call, new)
    changes: tuple[tuple[cst.CSTNode, New], ...] = ((call, kept),)
    return Edit(changes)


def with_name(
    place: Place, node: cst.CSTNode, name: str, value: str, build: Callable[[str], cst.BaseExpression]
) -> Edit | None:
    """The expression becomes what `build` makes of a new name, which a line before gives to `value`.

    None where no line before is sure to run in the same scope, or where the expression may not be evaluated.
    """
    line, function = place.line(node), place.function(node)
    between = place.enclosing(node, *_OWN_TIME)
    if line is None or function is None or between is not function:
        return None
    while uses(function, name):
        name += "_"
    before = place.statement(f"{name} = {value}").with_changes(leading_lines=line.leading_lines)
    rest = line.deep_replace(node, build(name))
    assert isinstance(rest, cst.SimpleStatementLine)
    new = Statements((before, rest.with_changes(leading_lines=())))
    return Edit(((line, new),), names=(name.rstrip("_"),))


# Inside one of these a part of a line is evaluated at a time of its own, or never.
_OWN_TIME = (
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


def _assigns_itself(place: Place, statement: cst.Assign, new: cst.BaseExpression) -> bool:
    target = statement.targets[0].target
    return len(statement.targets) == 1 and is_simple(new) and place.code(target) == place.code(new)


def _with_parentheses(old: Any, new: Any) -> Any:
    """The new expression in the old one's parentheses, where it has none of its own."""
    if old.lpar and not new.lpar:
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)
    return new


def _comments(lines: Any) -> tuple[cst.EmptyLine, ...]:
    """The lines of a statement's head if there is a comment among them."""
    return tuple(lines) if any(line.comment for line in lines) else ()


def _own_line(space: cst.TrailingWhitespace) -> tuple[cst.EmptyLine, ...]:
    """A comment behind a statement as a line of its own."""
    return (cst.EmptyLine(comment=space.comment, newline=space.newline),) if space.comment else ()
