"""Ways to divide weights together, and the choice among them.

All weights that have one factor in a dimension are a candidate: they can be divided along it at once, and the arrays
between them are divided too. A candidate is free of "whole" transfers, after leaving out the weights that lead to
them; what it costs are its sums. The best ratio of weights to sums is chosen first: of a transformer that is Megatron's
pairs of columns and rows, since dividing the residual stream would need a sum in each norm and after each product.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from math import gcd, inf, prod
from typing import Final, NamedTuple

from tpuport.sharding.inference.factors import Dimension, Factor, leading_leaf, leaves
from tpuport.sharding.inference.operations import Value
from tpuport.sharding.inference.program import Program
from tpuport.sharding.inference.sharding_flow import Divided, Flow, Transfer, first_after, follow

# What a sum costs beside the time for its elements, as a share of a usual one: devices wait for each other.
_LATENCY: Final = 1 / 8
# Outside of blocks, weights are divided if a sum saves this share of what it saves in the blocks.
_LEAST_SHARE: Final = 1 / 2
_NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")


class Cut(NamedTuple):
    """The decision to divide a weight.

    Attributes:
        dimension: of the weight.
        units: into how many parts it may be divided at most, such as whole heads; None if its size decides.
        dealt: whether the program takes parts of this dimension, which are divided anew.
        candidate: that it belongs to.
    """

    dimension: int
    units: int | None
    dealt: bool
    candidate: Candidate


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """Weights that can be divided together.

    Attributes:
        factor: along which.
        seeds: the dimension of each weight.
        dealt: those of the weights of whose dimension the program takes parts.
        flow: what follows.
        refused: weights that have the factor and were left out, with the transfer that each would lead to.
    """

    factor: Factor
    seeds: dict[str, int]
    dealt: frozenset[str]
    flow: Flow
    refused: dict[str, Transfer]


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Candidates of repeated blocks, which are chosen or not together."""

    candidates: list[Candidate]
    saved: int
    cost: float
    in_blocks: bool

    @property
    def ratio(self) -> float:
        """Elements of weights that are divided, per element that is summed up."""
        return self.saved / self.cost


@dataclasses.dataclass
class Choice:
    """What was decided.

    Attributes:
        cuts: by weight.
        refused: of weights that stay whole, the transfers that would follow; by weight and dimension.
        rejected: candidates that were possible and did not pay.
    """

    cuts: dict[str, Cut]
    refused: dict[str, dict[int, Transfer]]
    rejected: list[Group]
    settled: dict[Value, Divided]
    chosen: list[Candidate]


def template(name: str) -> str:
    """The name with its numbers left out: the same for all blocks."""
    return _NUMBER.sub("*", name)


def choose(program: Program) -> Choice:
    """Decide which weights to divide, and along which dimension."""
    return _Chooser(program).choose()


class _Chooser:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.choice = Choice({}, {}, [], {}, [])
        self.wholes = _Wholes(program)
        # Elements of a usual sum, what a usual sum saves, and the least that one saves that was chosen in a block.
        self.usual = 1
        self.usual_ratio = inf
        self.least_ratio = 0.0

    def choose(self) -> Choice:
        candidates = list(self._candidates(self._weights_by_factor()))
        sums = sorted(
            transfer.elements
            for candidate in candidates
            for transfer in candidate.flow.kinds("sum")
            if self._is_paired(transfer)
        )
        if sums:
            self.usual = sums[len(sums) // 2]
        paired = sorted(group.ratio for group in self._groups(candidates) if self._ends_pairs(group))
        if paired:
            self.usual_ratio = paired[len(paired) // 2]
        # Blocks first: what is worth a sum outside of them depends on how many there are inside.
        for in_blocks in (True, False):
            candidates = self._choose_among(candidates, in_blocks=in_blocks)
        return self.choice

    def _choose_among(self, candidates: list[Candidate], *, in_blocks: bool) -> list[Candidate]:
        """Decide on the groups in blocks, or outside of them, the best first; the candidates that are left."""
        while True:
            groups = [group for group in self._groups(candidates) if group.in_blocks == in_blocks]
            if not groups:
                return candidates
            best = max(groups, key=lambda group: group.ratio)
            members = set(best.candidates)
            candidates = [candidate for candidate in candidates if candidate not in members]
            if not self._pays(best):
                self.choice.rejected.append(best)
                continue
            self._settle(best)
            candidates = list(self._renew(candidates, best))

    def _renew(self, candidates: Iterable[Candidate], group: Group) -> Iterator[Candidate]:
        """The candidates without the weights of this group, looked at again where its decision concerns them."""
        decided = {name for candidate in group.candidates for name in candidate.seeds}
        touched = {value for candidate in group.candidates for value in candidate.flow.divided}
        for candidate in candidates:
            if decided.isdisjoint(candidate.seeds) and touched.isdisjoint(candidate.flow.divided):
                yield candidate
                continue
            seeds = {name: dim for name, dim in candidate.seeds.items() if name not in self.choice.cuts}
            yield from self._candidates({candidate.factor: (seeds, candidate.dealt)})

    def _weights_by_factor(self) -> dict[Factor, tuple[dict[str, int], frozenset[str]]]:
        """The weights that have each factor at the head of a dimension, and those that have it inside a part."""
        seeds: defaultdict[Factor, dict[str, int]] = defaultdict(dict)
        dealt: defaultdict[Factor, set[str]] = defaultdict(set)
        for name, value in self.program.weights.items():
            for index, dimension in enumerate(value.dimensions):
                factor = leading_leaf(dimension)
                if factor is None:
                    continue
                seeds[factor].setdefault(name, index)
                for part in self.wholes.parts_of(factor):
                    part_factor = leading_leaf(part)
                    if part_factor is not None:
                        seeds[part_factor].setdefault(name, index)
                        dealt[part_factor].add(name)
        return {factor: (weights, frozenset(dealt[factor])) for factor, weights in seeds.items()}

    def _candidates(
        self, weights: Mapping[Factor, tuple[dict[str, int], frozenset[str]]]
    ) -> Iterator[Candidate]:
        for factor, (seeds, dealt) in weights.items():
            possible, refused = self._without_needs(seeds)
            for connected in _connected(possible):
                part = {name: seeds[name] for name in seeds if name in connected}
                flow = follow(self.program, part, self.choice.settled)
                yield Candidate(factor, part, dealt.intersection(part), flow, refused)

    def _without_needs(self, seeds: Mapping[str, int]) -> tuple[Flow, dict[str, Transfer]]:
        """What follows from dividing those of the weights that lead to no array that is needed whole; the others."""
        refused: dict[str, Transfer] = {}
        while True:
            remaining = {name: dimension for name, dimension in seeds.items() if name not in refused}
            flow = follow(self.program, remaining, self.choice.settled)
            blamed = {name: need for need in flow.kinds("whole") for name in need.weights}
            if not blamed:
                return flow, refused
            refused |= blamed
            for name, need in blamed.items():
                self.choice.refused.setdefault(name, {}).setdefault(seeds[name], need)

    def _groups(self, candidates: Iterable[Candidate]) -> list[Group]:
        members: defaultdict[frozenset[tuple[str, int]], list[Candidate]] = defaultdict(list)
        for candidate in candidates:
            key = frozenset((template(name), dimension) for name, dimension in candidate.seeds.items())
            members[key].append(candidate)
        return [self._group(key, items) for key, items in members.items()]

    def _group(self, key: frozenset[tuple[str, int]], candidates: list[Candidate]) -> Group:
        names = {name for candidate in candidates for name in candidate.seeds}
        saved = sum(self.program.weights[name].elements for name in names)
        cost = sum(map(self._cost, candidates))
        return Group(candidates, saved, cost, any("*" in name for name, _ in key))

    def _cost(self, candidate: Candidate) -> float:
        """In sums of the usual size. What is dealt anew is sent once, where a sum is sent and returned."""
        cost = 0.0
        for transfer in candidate.flow.transfers:
            size = transfer.elements / self.usual
            if transfer.kind == "deal":
                size /= 2
            cost += size + _LATENCY
        # A result of the program that stays divided is somebody's to collect.
        results = sum(value in candidate.flow.divided for value in self.program.outputs)
        return max(cost + results * _LATENCY, _LATENCY)

    def _pays(self, group: Group) -> bool:
        names = {name for candidate in group.candidates for name in candidate.seeds}
        if all(len(self.program.weights[name].shape) < 2 for name in names):
            return False
        if not group.in_blocks and self.least_ratio:
            return group.ratio >= self.least_ratio * _LEAST_SHARE
        # Few elements are summed up for modulation, which has no sequence: that pays without a pair.
        return self._ends_pairs(group) or group.ratio >= self.usual_ratio

    def _ends_pairs(self, group: Group) -> bool:
        """Whether each sum ends a pair of matrices."""
        sums = [transfer for candidate in group.candidates for transfer in candidate.flow.kinds("sum")]
        return bool(sums) and all(map(self._is_paired, sums))

    def _is_paired(self, transfer: Transfer) -> bool:
        """Whether the division of several matrices ends in one sum."""
        return sum(len(self.program.weights[name].shape) > 1 for name in transfer.weights) > 1

    def _settle(self, group: Group) -> None:
        if group.in_blocks and self._ends_pairs(group):
            self.least_ratio = min(self.least_ratio or inf, group.ratio)
        for candidate in group.candidates:
            self.choice.chosen.append(candidate)
            chain = self._chain(candidate)
            for name, dimension in candidate.seeds.items():
                units = self._units(self.program.weights[name].dimensions[dimension], chain)
                self.choice.cuts[name] = Cut(dimension, units, name in candidate.dealt, candidate)
            self.choice.settled |= candidate.flow.divided

    def _units(self, dimension: Dimension, chain: list[Factor]) -> int | None:
        """How many parts of a dimension the factors of a chain count; None if that is its size."""
        factors = list(leaves(dimension))
        counted = list(itertools.takewhile(chain.__contains__, factors))
        if counted:
            return None if len(counted) == len(factors) else prod(factor.size for factor in counted)
        # Taken apart by the program: whole heads of each part.
        parts = [part for part in self.wholes.parts_of(factors[0]) if leading_leaf(part) in chain]
        return gcd(*(self._units(part, chain) or 0 for part in parts)) or None

    def _chain(self, candidate: Candidate) -> list[Factor]:
        """The candidate's factor, and those that may be divided further after it.

        Query heads are groups within key/value heads: cutting between the groups of a head costs nothing more, as
        the keys of that head are then whole on several devices.
        """
        chain = [candidate.factor]
        sums = {transfer.operation for transfer in candidate.flow.kinds("sum")}
        while True:
            prefix = frozenset(chain)
            seeds: defaultdict[Factor, dict[str, int]] = defaultdict(dict)
            for name, dimension in candidate.seeds.items():
                factor = first_after(self.program.weights[name].dimensions[dimension], prefix)
                if factor is not None and name not in candidate.dealt:
                    seeds[factor][name] = dimension
            for factor, extended in seeds.items():
                flow = follow(self.program, extended, {}, prefix)
                costs_nothing = all(
                    transfer.kind == "sum" and transfer.operation in sums for transfer in flow.transfers
                )
                if costs_nothing and self._passes_joins(candidate.flow, flow):
                    chain.append(factor)
                    break
            else:
                return chain

    def _passes_joins(self, flow: Flow, extension: Flow) -> bool:
        """Whether an extension divides every product of two arrays which the flow divides.

        It tells groups of heads, which scores have too, from the features of a value head, which they have not.
        """
        for index in {index for value in flow.divided for index in self.program.users[value]}:
            operation = self.program.operations[index]
            joined = [value for value in operation.inputs if value in flow.divided]
            if operation.name != "dot_general" or len(joined) < 2:
                continue
            if not any(value in extension.divided for value in joined):
                return False
        return True


def _connected(flow: Flow) -> list[frozenset[str]]:
    """The weights of a flow in sets that have nothing to do with each other."""
    sets: list[frozenset[str]] = []
    together = {item.weights for item in flow.divided.values()} | {item.weights for item in flow.transfers}
    for weights in sorted(together, key=len, reverse=True):
        touching = [known for known in sets if not known.isdisjoint(weights)]
        sets = [known for known in sets if known.isdisjoint(weights)]
        sets.append(weights.union(*touching))
    return sets


class _Wholes:
    """The dimensions that are parts of others: a fused projection is taken apart, or results are joined."""

    def __init__(self, program: Program) -> None:
        self._parts: defaultdict[Factor, list[Dimension]] = defaultdict(list)
        for operation in program.operations:
            for axis, target in operation.dealt.items():
                source = operation.inputs[axis.input].dimensions[axis.dimension]
                for output in operation.outputs:
                    self._add(source, output.dimensions[target])

    def _add(self, one: Dimension, other: Dimension) -> None:
        part, whole = sorted((one, other), key=lambda dimension: prod(factor.size for factor in dimension))
        factor = leading_leaf(whole)
        if factor is not None:
            self._parts[factor].append(part)

    def parts_of(self, factor: Factor) -> list[Dimension]:
        """The parts of the dimensions that begin with a factor."""
        return self._parts.get(factor, [])
