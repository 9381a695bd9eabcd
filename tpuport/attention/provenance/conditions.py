"""A mask taken apart: conditions that must all hold for a pair to be visible, and
numbers added to the scores.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tpuport.attention.provenance.graph import Node
from tpuport.attention.provenance.primitives import (
    distinct_operands,
    has_only,
    is_elementwise,
    operand_combinations,
    possible_values,
)
from tpuport.attention.provenance.rewriting import simplify


@dataclass(frozen=True)
class Condition:
    """That the elements of `node` are among `allowed`. If nothing is allowed, it never
    holds.
    """

    node: Node
    allowed: frozenset[Any]


class AdditiveMask(NamedTuple):
    """A mask that is added to the scores.

    Attributes:
        conditions: of visibility.
        addends: what is added to the scores of visible pairs, one node at most. It is
            of the mask's own dtype, and its lowest finite number and -inf hide too.
    """

    conditions: list[Condition]
    addends: list[Node]


def find_conditions(node: Node, allowed: Iterable[Any]) -> list[Condition]:
    """The conditions that together say that an element is among `allowed`; none if it
    always is.

    An operation is taken apart if the operands for which it gives what is allowed are
    all combinations of some values of each: `a & b` is True for a True with b True,
    while `a | b` is not taken apart.
    """
    pending = [Condition(node, frozenset(allowed))]
    seen: set[Condition] = set()
    conditions: list[Condition] = []
    while pending:
        condition = pending.pop()
        if condition in seen:
            continue
        seen.add(condition)
        condition = Condition(simplify(condition.node), condition.allowed)
        if has_only(condition.node, condition.allowed.__contains__):
            continue
        parts = _split_condition(condition)
        pending += parts
        if not parts:
            conditions.append(condition)
    return conditions


def _split_condition(condition: Condition) -> list[Condition]:
    """Conditions on the operands that together mean the same; empty if there are
    none.
    """
    node = condition.node
    good = [
        operands
        for operands, result in operand_combinations(node)
        if result in condition.allowed
    ]
    allowed = list(map(frozenset, zip(*good, strict=True)))
    # Otherwise some combination of values that are allowed each is not allowed
    # together, as in `a | b`.
    if len(good) != math.prod(map(len, allowed)):
        return []
    return list(map(Condition, distinct_operands(node), allowed))


def lowest_number(dtype: Any) -> float:
    """The lowest finite number of a float dtype: it and -inf hide."""
    return float(jnp.finfo(dtype).min)


def split_additive_mask(node: Node) -> AdditiveMask:
    """An additive mask as conditions and what is added."""
    conditions: list[Condition] = []
    lowest = lowest_number(node.dtype)
    while True:
        node = simplify(node)
        values = _added_values(node, lowest)
        if values.only_hide:
            # What is visible gets nothing added, so that no addend remains.
            return AdditiveMask(conditions + find_conditions(node, values.visible), [])
        step = _split_selection(node, lowest) or _split_sum(node, lowest)
        # Another dtype has another lowest number.
        if step is None or step.addends[0].dtype != node.dtype:
            return AdditiveMask(conditions, [node])
        conditions += step.conditions
        node = step.addends[0]


def _split_selection(node: Node, lowest: float) -> AdditiveMask | None:
    """`where(condition, rest, hidden)`, either way round."""
    if (
        node.name != "select_n"
        or len(node.operands) != 3
        or node.operands[0].dtype != np.bool_
    ):
        return None
    condition, if_false, if_true = node.operands
    for hidden, visible, allowed in (
        (if_false, if_true, True),
        (if_true, if_false, False),
    ):
        always_hides = not _added_values(hidden, lowest).visible
        # The rest is taken apart further, so it must have an element for each of the
        # scores.
        if always_hides and visible.shape == node.shape:
            return AdditiveMask(find_conditions(condition, [allowed]), [visible])
    return None


def _split_sum(node: Node, lowest: float) -> AdditiveMask | None:
    """A mask of 0 and hidden, added to something else."""
    if node.name != "add" or not is_elementwise(node):
        return None
    for mask, addend in (node.operands, node.operands[::-1]):
        values = _added_values(mask, lowest)
        if (
            addend.shape == node.shape
            and values.only_hide
            and _stays_hidden(values.hiding, addend, lowest)
        ):
            return AdditiveMask(find_conditions(mask, values.visible), [addend])
    return None


class _AddedValues(NamedTuple):
    """The values that a node adds to the scores of visible pairs, and those that hide a
    pair.
    """

    visible: list[Any]
    hiding: list[Any]

    @property
    def only_hide(self) -> bool:
        """Whether visible pairs get nothing added."""
        return not any(self.visible)


def _added_values(node: Node, lowest: float) -> _AddedValues:
    # NaN stands for values that are not known: it does not hide, and is not 0.
    values = possible_values(node) or (math.nan,)
    visible = [value for value in values if not value <= lowest]
    return _AddedValues(visible, [value for value in values if value <= lowest])


def _stays_hidden(hiding: list[Any], addend: Node, lowest: float) -> bool:
    """Whether each of the hiding values still hides when the addend is added to it."""
    # Nothing known is more than the greatest number. To -inf it adds nothing, from the
    # lowest number it makes 0.
    sums = np.add.outer(hiding, possible_values(addend) or (-lowest,))
    # A sum that is NaN, inf - inf, is not visible either.
    return not (sums > lowest).any()
