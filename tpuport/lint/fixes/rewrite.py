"""What a rewrite says: which nodes of a file become what."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import libcst as cst

if TYPE_CHECKING:
    from tpuport.lint.fixes.place import Place


@dataclasses.dataclass(frozen=True, slots=True)
class Statements:
    """What a statement becomes: several statements, or none.

    Attributes:
        body: the new statements, in order.
        before, after: comment lines that stay, ahead of and behind them.
    """

    body: tuple[cst.BaseStatement, ...] = ()
    before: tuple[cst.EmptyLine, ...] = ()
    after: tuple[cst.EmptyLine, ...] = ()


class Removed:
    """A decorator, an argument or an item of a `with` that goes."""


REMOVED = Removed()
New = cst.CSTNode | Statements | Removed


@dataclasses.dataclass(frozen=True, slots=True)
class Edit:
    """One rewrite of one place.

    Attributes:
        changes: each node that changes, with what it becomes. None of them holds another.
        unsafe: results may change at this place, whatever the rule's other places are like.
        imports: modules that the new text names and that the file must import.
        names: names that the new text gives to something; two edits of one pass do not bring the same.
    """

    changes: tuple[tuple[cst.CSTNode, New], ...]
    unsafe: bool = False
    imports: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Rewrite:
    """The rewrite of one rule.

    Attributes:
        rule: the rule's id.
        nodes: syntax that the finding may stand on; anything else at its place is left alone.
        function: from the node and its surroundings to the edit, or None where the shape is not the expected one.
        within: the finding's node may be any part of the wanted one: the smallest enclosing one is taken.
    """

    rule: str
    nodes: tuple[type[cst.CSTNode], ...]
    function: "Callable[[cst.CSTNode, Place], Edit | None]"
    within: bool = False
