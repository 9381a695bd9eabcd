"""The choice among candidates.

What a candidate costs are its sums. The best ratio of weights to sums is chosen first:
of a transformer that is Megatron's pairs of columns and rows, since dividing the
residual stream would need a sum in each norm and after each product. Candidates of
repeated blocks are chosen or not together.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Final

from tpuport.base.mappings import group_by, without
from tpuport.sharding.inference.candidates import Candidate, Candidates, dealt_pairs
from tpuport.sharding.inference.factors import Dimension, Factor, leading_leaf
from tpuport.sharding.inference.head_units import find_chain, units
from tpuport.sharding.inference.operations import Value
from tpuport.sharding.inference.sharding_flow import Divided, Transfer
from tpuport.sharding.inference.traced_program import Program

# What a sum costs beside the time for its elements, as a share of a usual one: devices
# wait for each other. Like the other shares here, it was chosen so that the plans of
# `benchmarks.inferred_plans` are as good as published ones.
_LATENCY: Final = 1 / 8
# How many parts a pair may deal anew: of fused projections there are up to 6, of heads
# taken one by one many more.
_MOST_DEALT: Final = 12
# A pair that is not of heads is divided if its sums save this share of what those of
# heads save: not the two small matrices in a norm.
_LEAST_PAIR: Final = 1 / 6
# What a result of the program costs that stays divided, since somebody may have to
# collect it.
_RESULT: Final = 1 / 2
# Outside of blocks, weights are divided if this share is saved of what a sum saves in
# blocks, at the same cost. Of a vocabulary, which users expect to be divided, less is
# enough.
_LEAST_SHARE: Final = 1 / 2
_LEAST_VOCABULARY: Final = 1 / 8
# A part of a dotted name that is a number, as in "blocks.0.weight", and not the digit
# in "conv1.weight".
_NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclasses.dataclass(frozen=True)
class Cut:
    """The decision to divide a weight.

    Attributes:
        dimension: the index of the weight's dimension that is divided.
        units: into how many parts it may be divided at most, such as whole heads; None
            if its size decides.
        is_dealt: whether the program takes parts of this dimension, or joins parts to
            it, which are then divided anew.
        is_heads: whether a product is computed for each position of this dimension
            apart, as for heads and experts.
        candidate: the weights that are divided together with this one.
    """

    dimension: int
    units: int | None
    is_dealt: bool
    is_heads: bool
    candidate: Candidate


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Candidates that differ in the numbers of their blocks only.

    Attributes:
        candidates: one for each block, or a single one.
        names: the weights of all candidates.
        saved: elements of their weights, tied ones counted once.
        cost: what devices have to send, in sums of the usual size.
        in_blocks: whether the name of a weight has a number in it.
    """

    candidates: list[Candidate]
    names: frozenset[str]
    saved: int
    cost: float
    in_blocks: bool

    @property
    def sums(self) -> list[Transfer]:
        """The all-reduces of all candidates."""
        return _all_sums(self.candidates)

    @property
    def ratio(self) -> float:
        """Elements of weights that are divided, for each sum of the usual size."""
        return self.saved / self.cost


@dataclasses.dataclass
class Choice:
    """What was decided.

    Attributes:
        cuts: the weights that are divided, by name.
        refused: of weights that could not be divided along a dimension, the transfers
            that would follow.
        rejected: candidates that were possible and did not pay.
        settled: the arrays that are divided.
        parts: the dimensions that are taken from others or joined, by the leading
            factor of the whole dimension.
    """

    cuts: dict[str, Cut]
    refused: dict[str, dict[int, Transfer]]
    rejected: list[Candidate]
    settled: dict[Value, Divided]
    parts: Mapping[Factor, list[Dimension]]


def template(name: str) -> str:
    """The name with its numbers left out: the same for all blocks."""
    return _NUMBER.sub("*", name)


def choose(program: Program) -> Choice:
    """Decide which weights to divide, and along which dimension."""
    return _Chooser(program).choose()


class _Chooser:
    """One choice.

    Attributes:
        usual: elements of a usual sum, [batch, length, width] in a transformer.
        usual_ratio: elements of weights that a usual sum saves.
        heads_ratio: elements of weights that a usual sum saves where heads or experts
            are divided, at the least; 0 without any.
        least_ratio: the least that a usual sum saves among those chosen in blocks; 0 if
            none was chosen.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.candidates = Candidates(program)
        self.choice = Choice({}, self.candidates.refused, [], {}, self.candidates.parts)
        # In a model without pairs, nothing is worth a sum.
        self.usual = 1.0
        self.usual_ratio = inf
        self.heads_ratio = 0.0
        self.least_ratio = 0.0

    def choose(self) -> Choice:
        candidates = self.candidates.find_all()
        self.usual = self._usual_sum(candidates)
        pairs = list(filter(self._ends_pairs, self._groups(candidates)))
        self.usual_ratio = _middle((group.ratio for group in pairs), inf)
        of_heads = [group.ratio for group in pairs if group.candidates[0].is_heads]
        self.heads_ratio = min(of_heads, default=0.0)
        # Blocks first: what is worth a sum outside of them depends on what one saves
        # inside.
        for in_blocks in (True, False):
            candidates = self._choose_among(candidates, in_blocks=in_blocks)
        return self.choice

    def _usual_sum(self, candidates: list[Candidate]) -> float:
        """Elements of the sum after attention or experts; of a model without them, of a
        sum that ends a pair.
        """
        of_heads = _all_sums(
            candidate for candidate in candidates if candidate.is_heads
        )
        if of_heads:
            return float(max(transfer.elements for transfer in of_heads))
        paired = filter(self._is_paired, _all_sums(candidates))
        return _middle([float(transfer.elements) for transfer in paired], 1.0)

    def _elements(self, names: Iterable[str]) -> int:
        return sum(self.program.weights[name].elements for name in names)

    def _choose_among(
        self, candidates: list[Candidate], *, in_blocks: bool
    ) -> list[Candidate]:
        """Decide on the groups in blocks, or outside of them, the best first; the
        candidates that are left.
        """
        while True:
            groups = [
                group
                for group in self._groups(candidates)
                if group.in_blocks == in_blocks
            ]
            if not groups:
                return candidates
            best = max(groups, key=self._preference)
            # Candidates compare by identity, so that `remove` takes out exactly these.
            for candidate in best.candidates:
                candidates.remove(candidate)
            if self._pays(best):
                self._settle(best)
                candidates = list(self._renew(candidates, best))
            else:
                self.choice.rejected += best.candidates

    def _preference(self, group: Group) -> tuple[bool, bool, float]:
        """The greatest is chosen first: heads, since dividing them divides the work of
        attention too; then pairs.
        """
        return group.candidates[0].is_heads, self._ends_pairs(group), group.ratio

    def _renew(
        self, candidates: Iterable[Candidate], group: Group
    ) -> Iterator[Candidate]:
        """The candidates without the weights of this group, looked at again where its
        decision concerns them.
        """
        decided = group.names
        touched = set().union(
            *(candidate.flow.divided for candidate in group.candidates)
        )
        for candidate in candidates:
            # To share an array is enough: it cannot be divided along a second
            # dimension.
            is_concerned = not (
                decided.isdisjoint(candidate.seeds)
                and touched.isdisjoint(candidate.flow.divided)
            )
            if not is_concerned:
                yield candidate
                continue
            remaining = without(candidate.seeds, decided)
            yield from self.candidates.find(remaining, self.choice.settled)

    def _groups(self, candidates: Iterable[Candidate]) -> list[Group]:
        def key(candidate: Candidate) -> frozenset[tuple[str, int]]:
            return frozenset(
                (template(name), dimension)
                for name, dimension in candidate.seeds.items()
            )

        return list(map(self._group, group_by(candidates, key).values()))

    def _group(self, candidates: list[Candidate]) -> Group:
        names = frozenset().union(*(candidate.seeds for candidate in candidates))
        saved = self._elements(names)
        cost = sum(map(self._cost, candidates))
        return Group(
            candidates, names, saved, cost, in_blocks=any(map(_NUMBER.search, names))
        )

    def _cost(self, candidate: Candidate) -> float:
        """What devices have to send, in sums of the usual size."""
        sent = 0.0
        for transfer in candidate.flow.transfers:
            size = transfer.elements / self.usual
            if transfer.kind == "deal":
                # What is dealt anew is sent once, where a sum is sent and returned.
                size /= 2
            sent += size + _LATENCY
        results = sum(value in candidate.flow.divided for value in self.program.outputs)
        # At least something, as the ratio divides by it.
        return max(sent + results * _RESULT, _LATENCY)

    def _pays(self, group: Group) -> bool:
        """Whether to divide the weights of a group."""
        if not any(map(self._is_matrix, group.names)):
            # Biases and norms alone are too small for any transfer.
            return False
        if self._ends_pairs(group):
            is_worth_a_sum = group.ratio >= self.heads_ratio * _LEAST_PAIR
            deals = (
                len(candidate.flow.kinds("deal")) for candidate in group.candidates
            )
            return is_worth_a_sum and all(count <= _MOST_DEALT for count in deals)
        if group.in_blocks or not self.least_ratio:
            # Few elements are summed up for modulation, which has no sequence: that
            # pays without a pair.
            return group.ratio >= self.usual_ratio
        if not group.sums:
            # The head, say, whose result stays divided.
            return group.ratio >= self.least_ratio * _LEAST_SHARE
        if not all(map(self._looks_up_input, group.sums)):
            return False
        return group.ratio >= self.least_ratio * _LEAST_VOCABULARY

    def _looks_up_input(self, transfer: Transfer) -> bool:
        """Whether a sum is of rows that are looked up by an input, such as tokens;
        positions are not inputs.
        """
        operation = transfer.operation
        return operation.name == "gather" and self.program.depends_on_input(
            operation.inputs[1]
        )

    def _ends_pairs(self, group: Group) -> bool:
        """Whether sums end pairs of matrices; other sums have to be small, such as
        those of a norm over all heads.
        """
        return all(map(self._ends_pair, group.candidates))

    def _ends_pair(self, candidate: Candidate) -> bool:
        # The sum after attention or experts ends a pair even if nothing but its last
        # matrix could be divided.
        if candidate.is_heads:
            return bool(candidate.sums)
        pairs = list(filter(self._is_paired, candidate.sums))
        if not pairs:
            return False
        others = set(candidate.sums).difference(pairs)
        return all(transfer.elements <= self.usual * _LATENCY for transfer in others)

    def _is_paired(self, transfer: Transfer) -> bool:
        """Whether the division of several matrices ends in one sum, that of the divided
        rows of one of them.

        What two activations sum up are scores, such as those of a sparse attention's
        indexer: more elements than its weights are worth.
        """
        if sum(map(self._is_matrix, transfer.weights)) <= 1:
            return False
        return any(
            self.program.weight_of(value) in transfer.weights
            for value in transfer.operation.inputs
        )

    def _is_matrix(self, name: str) -> bool:
        return len(self.program.weights[name].shape) > 1

    def _settle(self, group: Group) -> None:
        """Divide the weights of a group."""
        if group.in_blocks:
            self._note_ratio(group)
        for candidate in group.candidates:
            chain = find_chain(self.program, candidate)
            dealt = _dealt_factors(candidate)
            for name, dimension in candidate.seeds.items():
                divided = self.program.weights[name].dimensions[dimension]
                self.choice.cuts[name] = Cut(
                    dimension,
                    units(divided, chain, self.candidates.parts),
                    # Of the weights around a deal, only one that has the whole
                    # dimension could be several weights.
                    is_dealt=leading_leaf(divided) in dealt,
                    is_heads=self.candidates.is_of_heads(divided),
                    candidate=candidate,
                )
            self.choice.settled |= candidate.flow.divided

    def _note_ratio(self, group: Group) -> None:
        """Note what a sum saves, if the group has sums of the usual size."""
        pairs = filter(self._is_paired, group.sums)
        largest = max((transfer.elements for transfer in pairs), default=0)
        # Half of the usual size still counts; the vectors of modulation, which have no
        # sequence, do not.
        if 2 * largest >= self.usual:
            cost = sum(
                transfer.elements / self.usual + _LATENCY for transfer in group.sums
            )
            self.least_ratio = min(self.least_ratio or inf, group.saved / cost)


def _dealt_factors(candidate: Candidate) -> set[Factor | None]:
    """The leading factors of the whole dimensions whose parts are dealt anew."""
    operations = [transfer.operation for transfer in candidate.flow.kinds("deal")]
    pairs = itertools.chain.from_iterable(map(dealt_pairs, operations))
    return {leading_leaf(whole) for _, whole in pairs}


def _all_sums(candidates: Iterable[Candidate]) -> list[Transfer]:
    return list(
        itertools.chain.from_iterable(candidate.sums for candidate in candidates)
    )


def _middle(numbers: Iterable[float], default: float) -> float:
    """The median, or the larger of two."""
    ordered = sorted(numbers)
    if not ordered:
        return default
    return ordered[len(ordered) // 2]
