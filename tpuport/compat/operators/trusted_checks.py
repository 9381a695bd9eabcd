"""Checks that models of libraries make of values while they are traced: `assert`, and
`if` with nothing but a `raise`.

A program has no values to check, and a look at them would be its whole cost: each call
would wait for the device, and other values would compile another program. What is
checked is taken for right, as it is where transformers itself traces a model. A program
that checks its indices (`index_checks`) makes these checks, too.
"""

import ast
import contextlib
import functools
import linecache
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch
from jax.core import Tracer

from tpuport.base.temporary import temporary_attributes
from tpuport.compat import index_checks
from tpuport.compat.convert import as_jax, is_ported
from tpuport.compat.declarations import Method
from tpuport.compat.user_frames import is_of_model_library

logger = logging.getLogger("tpuport")

# Called with the check's text, and a tensor of bools that are to be true.
Collect = Callable[[str, torch.Tensor], None]


class _Thread(threading.local):
    """Whose checks this thread takes for right."""

    of: Literal["nobody", "libraries", "all"] = "nobody"
    collect: Collect | None = None


_thread = _Thread()


def checks_trusted(
    of: Literal["libraries", "all"] = "all", collect: Collect | None = None
) -> contextlib.AbstractContextManager[None]:
    """In the block, checks of traced values hold.

    Args:
        of: whose checks: of all code, or of libraries of models alone.
        collect: is told what holds if they do; None for that of the block around it.
    """
    collect = collect or _thread.collect
    return temporary_attributes(_thread, of=of, collect=collect)


class _Place(NamedTuple):
    """Where code is, as Python's compiler notes it of each instruction."""

    line: int
    end_line: int
    column: int
    end_column: int


class _Condition(NamedTuple):
    """A part of a check that Python asks for its truth.

    Attributes:
        node: its code.
        needed: what it is taken for, with which nothing is raised.
        is_decisive: whether the check fails if it is not; for `a` of `assert a or b`
            this is up to `b`.
    """

    node: ast.expr
    needed: bool
    is_decisive: bool


class _Check(NamedTuple):
    """A statement that raises or does nothing."""

    statement: ast.Assert | ast.If
    conditions: tuple[_Condition, ...]


def _bool(tensor: Any) -> bool:
    """`bool(tensor)`, in a check what it has to be."""
    answer = _decide(tensor, sys._getframe(1))
    return torch.Tensor.__bool__(tensor) if answer is None else answer


def _item(tensor: Any) -> Any:
    """`tensor.item()`; in a comparison of a check the tensor itself, which can be
    compared too.
    """
    if _is_operand(tensor, sys._getframe(1)):
        return tensor
    return torch.Tensor.item(tensor)


def _decide(tensor: torch.Tensor, frame: FrameType) -> bool | None:
    """Traced. The truth of a tensor that a line asks for in a check; None where it is
    no check, or the tensor has values.
    """
    found = _check_around(tensor, frame)
    if found is None:
        return None
    check, place = found
    asked = [
        condition
        for condition in check.conditions
        if place == _place_of_question(condition.node, check.statement)
    ]
    if len({condition.needed for condition in asked}) != 1:
        return None
    answer = asked[0].needed
    is_decisive = all(condition.is_decisive for condition in asked)
    if is_decisive:
        _let_program_check(tensor.bool() == answer, check.statement)
    is_made = is_decisive and (_thread.collect or index_checks.is_checking())
    if not is_made and not is_of_model_library(frame):
        _warn(ast.unparse(check.statement.test), frame.f_code.co_filename, place.line)
    return answer


@functools.cache
def _warn(text: str, file: str, line: int) -> None:
    """Say once that a check of the user's own code is not made."""
    logger.warning(
        "%s, line %d: the check %s is left out, because a program has no values while it is traced; make it before "
        "the call",
        file,
        line,
        text,
    )


def _let_program_check(holds: torch.Tensor, statement: ast.Assert | ast.If) -> None:
    """Traced. Tell whoever collects checks of this one, and the host if the program
    checks its indices.
    """
    text = ast.unparse(statement.test)
    if _thread.collect is not None:
        _thread.collect(text, holds)
    is_assert = isinstance(statement, ast.Assert)
    kind = AssertionError if is_assert else ValueError
    message = f"{text} is {'not ' if is_assert else ''}true"
    has_failed = ~as_jax(holds)
    index_checks.require(has_failed, has_failed, kind, message.replace("{index}", ""))


def _is_operand(tensor: torch.Tensor, frame: FrameType) -> bool:
    """Whether a line takes a number from the tensor to compare it in a check."""
    found = _check_around(tensor, frame)
    if found is None:
        return False
    check, place = found
    for condition in check.conditions:
        node = condition.node
        operands = [node]
        if isinstance(node, ast.Compare) and len(node.comparators) == 1:
            operands = [node.left, *node.comparators]
        if place in map(_place_of, operands):
            return True
    return False


def _place_of_question(node: ast.expr, statement: ast.stmt) -> _Place:
    """Where Python is when it asks for the truth of a condition."""
    # Before 3.12 only a comparison has a place of its own.
    is_precise = sys.version_info >= (3, 12) or isinstance(node, ast.Compare)
    return _place_of(node if is_precise or _is_call_of_bool(node) else statement)


def _is_call_of_bool(node: ast.expr) -> bool:
    """Whether code asks by itself, `bool(tensor)`."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "bool"


def _check_around(
    tensor: torch.Tensor, frame: FrameType
) -> tuple[_Check, _Place] | None:
    """The check that a frame is in, and the part of it that runs."""
    is_trusted = _thread.of == "all" or (
        _thread.of == "libraries" and is_of_model_library(frame)
    )
    if not (is_trusted and is_ported(tensor) and isinstance(as_jax(tensor), Tracer)):
        return None
    place = _place_in(frame)
    if place is None:
        return None
    for check in _checks_of(frame.f_code.co_filename):
        first, last = check.statement.lineno, check.statement.test.end_lineno
        if first <= place.line <= (last or first):
            return check, place
    return None


def _place_in(frame: FrameType) -> _Place | None:
    places = list(frame.f_code.co_positions())
    place = places[frame.f_lasti // 2]
    return None if None in place else _from_positions(*place)


def _from_positions(
    line: int | None, end_line: int | None, column: int | None, end_column: int | None
) -> _Place:
    return _Place(line or 0, end_line or 0, column or 0, end_column or 0)


def _place_of(node: ast.AST) -> _Place:
    return _from_positions(
        *(
            getattr(node, name)
            for name in ("lineno", "end_lineno", "col_offset", "end_col_offset")
        )
    )


@functools.lru_cache(maxsize=64)
def _checks_of(file: str) -> tuple[_Check, ...]:
    """The checks in a file; none if its source is not known."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(_find_checks(tree))


def _find_checks(tree: ast.AST) -> Iterator[_Check]:
    pending = [tree]
    while pending:
        node = pending.pop()
        children = ast.iter_child_nodes(node)
        if isinstance(node, ast.Try) and node.handlers:
            # What its body raises is handled: another way to branch.
            children = (*node.handlers, *node.orelse, *node.finalbody)
        pending.extend(children)
        match node:
            case ast.Assert():
                yield _Check(node, tuple(_conditions(node.test, needed=True)))
            case ast.If(body=[ast.Raise()]):
                yield _Check(node, tuple(_conditions(node.test, needed=False)))


def _conditions(
    node: ast.expr, *, needed: bool, is_decisive: bool = True
) -> Iterator[_Condition]:
    """What Python asks for its truth, in the order in which it does."""
    match node:
        case ast.UnaryOp(op=ast.Not()):
            yield from _conditions(
                node.operand, needed=not needed, is_decisive=is_decisive
            )
        case ast.BoolOp(op=operator, values=[*others, last]):
            # One that suffices ends the question: what is asked afterwards is of no
            # tensor, so that only the last one decides.
            are_all_needed = isinstance(operator, ast.And) == needed
            for value in others:
                yield from _conditions(
                    value, needed=needed, is_decisive=is_decisive and are_all_needed
                )
            yield from _conditions(last, needed=needed, is_decisive=is_decisive)
        case ast.Compare(ops=operators) if any(map(_asks_for_members, operators)):
            # Asks for each comparison with an element, in the same place.
            return
        case ast.Compare(ops=[_, _, *_]):
            # Of `a < b < c`, one that is false suffices.
            yield _Condition(node, needed, is_decisive and needed)
        case _:
            yield _Condition(node, needed, is_decisive)


def _asks_for_members(operator: ast.cmpop) -> bool:
    return isinstance(operator, (ast.In, ast.NotIn))


LOWERINGS = ()
METHODS = (
    Method("Tensor", "__bool__", _bool, "stops a trace at a check"),
    Method("Tensor", "item", _item, "stops a trace at a check"),
)
