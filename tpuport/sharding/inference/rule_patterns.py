"""Regexes for weights of repeated blocks: numbers become a pattern where all blocks
were decided alike.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from tpuport.base.mappings import group_by
from tpuport.sharding.inference.weight_plan import WeightPlan

# A part of a dotted name that counts blocks, layers or experts.
_NUMBER = re.compile(r"\d+")


def patterns_of(decisions: Mapping[str, WeightPlan]) -> dict[str, list[WeightPlan]]:
    """A regex for each set of weights that share a decision and, but for numbers, a
    name.

    Args:
        decisions: by name; names of a tied weight have the same one.
    """
    # By identity: a tied weight is in `decisions` under each of its names.
    distinct = {id(decision): decision for decision in decisions.values()}.values()
    patterns: dict[str, list[WeightPlan]] = {}
    for members in _grouped(distinct, _template):
        for group, any_number in _divide(members):
            # Groups of two templates may have one pattern, if one of them is tied.
            patterns.setdefault(_pattern(group, any_number), []).extend(group)
    return patterns


def _template(decision: WeightPlan) -> tuple[str, ...]:
    """The names of a weight, whose numbers may be any."""
    return tuple(_generalize(name, _number_positions(name)) for name in decision.names)


def _number_positions(name: str) -> list[int]:
    """Which of the parts of a dotted name are numbers: [1] of "blocks.0.weight"."""
    return [
        index for index, part in enumerate(name.split(".")) if _NUMBER.fullmatch(part)
    ]


def _generalize(name: str, positions: Iterable[int]) -> str:
    """The regex for a name, with any number at these positions."""
    parts = list(map(re.escape, name.split(".")))
    for position in positions:
        parts[position] = r"\d+"
    return r"\.".join(parts)


def _is_uniform(members: Sequence[WeightPlan]) -> bool:
    return len({member.spec for member in members}) == 1


def _divide(members: list[WeightPlan]) -> Iterator[tuple[list[WeightPlan], bool]]:
    """Members of one template in groups of one decision each, and whether any number
    may stand for theirs.
    """
    if _is_uniform(members):
        yield members, True
        return
    # The last number that tells decisions apart: of the layers in a feed-forward,
    # before that of its block.
    for position in reversed(_number_positions(members[0].names[0])):
        by_number = _grouped(
            members,
            lambda member, position=position: member.names[0].split(".")[position],
        )
        if all(map(_is_uniform, by_number)):
            yield from zip(by_number, itertools.repeat(True))
            return
    # Blocks that differ by no single number: a pattern for further blocks would be a
    # guess.
    by_spec = _grouped(members, lambda member: member.spec)
    yield from zip(by_spec, itertools.repeat(False))


def _grouped(
    members: Iterable[WeightPlan], key: Callable[[WeightPlan], Hashable]
) -> list[list[WeightPlan]]:
    """The members in groups of one key each, in the order of the first of each
    group.
    """
    return list(group_by(members, key).values())


def _pattern(group: Sequence[WeightPlan], any_number: bool) -> str:
    """A regex that matches all names of the group, and with `any_number` those of
    further blocks.
    """
    # A dict keeps the order and drops repetitions. Names of a tied weight are
    # alternatives.
    patterns: dict[str, None] = {}
    for names in zip(*(member.names for member in group), strict=True):
        if any_number:
            patterns[_generalize(names[0], _varying_positions(names))] = None
        else:
            patterns |= dict.fromkeys(map(re.escape, names))
    if len(patterns) == 1:
        return next(iter(patterns))
    return f"(?:{'|'.join(patterns)})"


def _varying_positions(names: Sequence[str]) -> list[int]:
    """Where names of one template have different numbers. A number that they share may
    matter, and stays.
    """
    columns = list(zip(*(name.split(".") for name in names), strict=True))
    return [
        position
        for position in _number_positions(names[0])
        if len(set(columns[position])) > 1
    ]
