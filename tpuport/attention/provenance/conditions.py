"""A mask taken apart: conditions that must all hold for a pair to be visible, and numbers added to the scores."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from tpuport.attention.provenance.graph import Node
from tpuport.attention.provenance.operations import is_elementwise
from tpuport.attention.provenance.rewriting import simplify
from tpuport.attention.provenance.values import combinations, distinct, values


@dataclass(frozen=True)
class Condition:
    """That the elements of `node` are among `wanted`. No value wanted: it never holds."""

    node: Node
    wanted: frozenset[Any]


def conditions(node: Node, wanted: Any) -> list[Condition]:
    """The conditions that together say that an element is among `wanted`; none: it always is.

    An operation is taken apart where the values of its operands for which it gives what is wanted are all
    combinations of some values of each: `a & b` is True for a True with b True, `a | b` is not taken apart.
    """
    pending, seen, found = [(node, frozenset(wanted))], set(), []
    while pending:
        entry = pending.pop()
        if entry in seen:
            continue
        seen.add(entry)
        at, wanted = simplify(entry[0]), entry[1]
        possible = values(at)
        if possible is not None and set(possible) <= wanted:
            continue
        parts = _taken_apart(at, wanted)
        if parts is None:
            found.append(Condition(at, wanted))
        pending += parts or []
    return found


def _taken_apart(node: Node, wanted: frozenset[Any]) -> list[tuple[Node, frozenset[Any]]] | None:
    results = combinations(node) if is_elementwise(node) else None
    if results is None:
        return None
    good = [choice for choice, result in results if result in wanted]
    sides = [frozenset(side) for side in zip(*good, strict=True)]
    if len(good) != np.prod([len(side) for side in sides], initial=1) or not good:
        return None
    return list(zip(distinct(node), sides, strict=True))


def lowest(dtype: Any) -> float:
    """The lowest finite number of a float dtype: it and -inf hide."""
    return float(jnp.finfo(dtype).min)


def addends(node: Node) -> tuple[list[Condition], list[Node]]:
    """An additive mask as (conditions of visibility, what is added to the scores of what is visible).

    What is added, one node at most, is of the mask's own dtype; its lowest finite number and -inf hide too.
    """
    found: list[Condition] = []
    low = lowest(node.dtype)
    while True:
        node = simplify(node)
        possible = values(node)
        if possible is not None:
            visible = [value for value in possible if value > low]
            if not any(visible):
                return found + conditions(node, visible), []
        step = _selection(node, low) or _sum(node, low)
        if step is None or step[1].dtype != node.dtype:
            return found, [node]
        found, node = found + step[0], step[1]


def _hides(node: Node, low: float) -> bool:
    possible = values(node)
    return possible is not None and all(value <= low for value in possible)


def _selection(node: Node, low: float) -> tuple[list[Condition], Node] | None:
    """`where(condition, rest, hidden)`, either way round."""
    if node.name != "select_n" or len(node.operands) != 3 or node.operands[0].dtype != np.bool_:
        return None
    chooser, when_false, when_true = node.operands
    for hidden, rest, wanted in ((when_false, when_true, True), (when_true, when_false, False)):
        if _hides(hidden, low) and rest.shape == node.shape:
            return conditions(chooser, [wanted]), rest
    return None


def _sum(node: Node, low: float) -> tuple[list[Condition], Node] | None:
    """A mask of 0 and hidden added to a rest."""
    if node.name != "add" or not is_elementwise(node):
        return None
    for mask, rest in (node.operands, node.operands[::-1]):
        if rest.shape == node.shape and _adds_nothing(mask, rest, low):
            possible = values(mask) or ()
            return conditions(mask, [value for value in possible if value > low]), rest
    return None


def _adds_nothing(mask: Node, rest: Node, low: float) -> bool:
    """Whether `mask + rest` is `rest` where `mask` is visible, and hidden where it is hidden, after rounding."""
    possible, others = values(mask), values(rest)
    if possible is None or any(value for value in possible if value > low):
        return False
    hiding = [value for value in possible if value <= low]
    if others is None:
        return all(np.isneginf(value) for value in hiding)
    return all(not (value + other > low) for value in hiding for other in others)
