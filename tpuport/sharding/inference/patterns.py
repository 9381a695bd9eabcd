"""Regexes for weights of repeated blocks: numbers become a pattern where all blocks were decided alike."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jax.sharding import PartitionSpec

from tpuport.sharding.inference.weight_plan import WeightPlan

_PART = re.compile(r"\d+")


def patterns_of(decisions: Mapping[str, WeightPlan]) -> dict[str, list[WeightPlan]]:
    """A regex for each set of weights that share a decision and, but for numbers, a name.

    Args:
        decisions: by name; names of a tied weight have the same one.
    """
    by_template: defaultdict[tuple[str, ...], list[WeightPlan]] = defaultdict(list)
    for decision in {id(item): item for item in decisions.values()}.values():
        by_template[tuple(_generalize(name, _number_positions(name)) for name in decision.names)].append(
            decision
        )
    patterns: dict[str, list[WeightPlan]] = {}
    for members in by_template.values():
        for group, any_number in _divide(members):
            patterns.setdefault(_pattern(group, any_number), []).extend(group)
    return patterns


def _number_positions(name: str) -> list[int]:
    return [index for index, part in enumerate(name.split(".")) if _PART.fullmatch(part)]


def _generalize(name: str, positions: Iterable[int]) -> str:
    """The regex for a name, with any number at these positions."""
    parts = [re.escape(part) for part in name.split(".")]
    for position in positions:
        parts[position] = r"\d+"
    return r"\.".join(parts)


def _is_uniform(members: Sequence[WeightPlan]) -> bool:
    return len({member.spec for member in members}) == 1


def _divide(members: list[WeightPlan]) -> Iterator[tuple[list[WeightPlan], bool]]:
    """Members of one template in groups of one decision each, and whether any number may stand for theirs."""
    if _is_uniform(members):
        yield members, True
        return
    # The last number that tells decisions apart: of the layers in a feed-forward, before that of its block.
    for position in reversed(_number_positions(members[0].names[0])):
        by_number: defaultdict[str, list[WeightPlan]] = defaultdict(list)
        for member in members:
            by_number[member.names[0].split(".")[position]].append(member)
        if all(map(_is_uniform, by_number.values())):
            for group in by_number.values():
                yield group, True
            return
    by_spec: defaultdict[PartitionSpec, list[WeightPlan]] = defaultdict(list)
    for member in members:
        by_spec[member.spec].append(member)
    for group in by_spec.values():
        yield group, False


def _pattern(group: Sequence[WeightPlan], any_number: bool) -> str:
    """A regex that matches all names of the group, and with `any_number` those of further blocks."""
    patterns: dict[str, None] = {}
    for index in range(len(group[0].names)):
        names = [member.names[index] for member in group]
        parts = [name.split(".") for name in names]
        varying = [at for at in _number_positions(names[0]) if len({part[at] for part in parts}) > 1]
        if any_number:
            patterns[_generalize(names[0], varying)] = None
        else:
            patterns |= dict.fromkeys(map(re.escape, names))
    if len(patterns) == 1:
        return next(iter(patterns))
    return f"(?:{'|'.join(patterns)})"
