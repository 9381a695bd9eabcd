"""Ways to divide weights together.

All weights that have one factor at the head of a dimension are a candidate: they can be
divided along it at once, and the arrays between them are divided too. What leads to an
array that is needed whole is left out.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tpuport.sharding.inference.factors import Dimension, Factor, leading_leaf, size_of
from tpuport.sharding.inference.operations import Operation, Value
from tpuport.sharding.inference.sharding_flow import (
    Divided,
    Flow,
    Transfer,
    follow,
    leading_factors,
)
from tpuport.sharding.inference.traced_program import Program


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """Weights that can be divided together.

    Attributes:
        seeds: the dimension of each weight that is divided, by name.
        flow: which other arrays are then divided, and what devices have to send.
        is_heads: whether a product is computed for each position of what is divided
            apart, as for heads and experts.
    """

    seeds: dict[str, int]
    flow: Flow
    is_heads: bool

    @property
    def sums(self) -> list[Transfer]:
        """The all-reduces that dividing the weights takes."""
        return self.flow.kinds("sum")


class Candidates:
    """Finds the candidates of a program.

    Attributes:
        parts: the dimensions that the program takes from a whole one, as from a fused
            projection, or joins into one; by the leading factor of the whole dimension.
        refused: the transfers for which weights were left out, by weight and dimension.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.parts = _parts(program)
        self.refused: defaultdict[str, dict[int, Transfer]] = defaultdict(dict)
        self._batch = _batch_factors(program)

    def find_all(self) -> list[Candidate]:
        """The candidates of all weights."""
        links = _Links()
        # A fused projection is divided with what is taken from it, although the sizes,
        # and so the factors, differ.
        for whole, parts in self.parts.items():
            for part in parts:
                links.join(whole, leading_leaf(part))
        seeds: defaultdict[Factor, dict[str, int]] = defaultdict(dict)
        for name, index, factor in self._leading_factors():
            # A square matrix may have one factor twice; a weight is divided along one
            # dimension only, the first.
            seeds[links.root(factor)].setdefault(name, index)
        groups = [self.find(group, settled={}) for group in seeds.values()]
        return list(itertools.chain.from_iterable(groups))

    def _leading_factors(self) -> Iterator[tuple[str, int, Factor]]:
        """(weight, index of the dimension, its leading factor) of every dimension that
        can be divided.
        """
        for name, value in self.program.used_weights().items():
            for index, dimension in enumerate(value.dimensions):
                factor = leading_leaf(dimension)
                if factor is not None:
                    yield name, index, factor

    def find(
        self, seeds: Mapping[str, int], settled: Mapping[Value, Divided]
    ) -> Iterator[Candidate]:
        """The candidates among some weights, one for each set of weights that meet in
        an operation.

        Args:
            seeds: the dimension of each weight.
            settled: arrays that are divided already, because of weights that were
                decided on before.
        """
        for connected in _connected(self._without_needs(seeds, settled)):
            members = {name: seeds[name] for name in seeds if name in connected}
            flow = follow(self.program, members, settled)
            yield Candidate(members, flow, is_heads=self._divides_batch(flow))

    def _divides_batch(self, flow: Flow) -> bool:
        """Whether arrays are divided along a dimension for each position of which some
        product is computed apart.
        """
        # An output projection may take heads and the features of a feed-forward, one
        # after the other.
        return any(
            not self._parts_of(factor).isdisjoint(self._batch)
            for factor in leading_factors(flow.divided)
        )

    def is_of_heads(self, dimension: Dimension) -> bool:
        """Whether a product is computed for each position of a dimension apart, or of
        each of its parts.
        """
        factor = leading_leaf(dimension)
        return factor is not None and self._parts_of(factor) <= self._batch

    def _parts_of(self, factor: Factor) -> set[Factor | None]:
        """The leading factors of the parts of a dimension; its own if it has no
        parts.
        """
        parts = self.parts.get(factor)
        return {factor} if parts is None else set(map(leading_leaf, parts))

    def _without_needs(
        self, seeds: Mapping[str, int], settled: Mapping[Value, Divided]
    ) -> Flow:
        """What follows from dividing those of the weights that lead to no array that is
        needed whole.
        """
        remaining = dict(seeds)
        flow = follow(self.program, remaining, settled)
        # Repeated, since inputs that agreed on a division may disagree once a weight is
        # left out.
        while needs := _needs(flow):
            for name, need in needs.items():
                self.refused[name].setdefault(remaining.pop(name), need)
            flow = follow(self.program, remaining, settled)
        return flow


def _batch_factors(program: Program) -> set[Factor | None]:
    """The leading factors of the dimensions along which products are computed apart."""
    factors: set[Factor | None] = set()
    for operation in program.operations:
        factors.update(
            leading_leaf(operation.dimension(axis)) for axis in operation.batch
        )
    return factors


def _needs(flow: Flow) -> dict[str, Transfer]:
    """For each weight that leads to an array that is needed whole, the last operation
    that needs it.
    """
    needs: dict[str, Transfer] = {}
    for need in flow.kinds("whole"):
        needs |= dict.fromkeys(need.weights, need)
    return needs


def _connected(flow: Flow) -> list[frozenset[str]]:
    """The weights of a flow in sets that have nothing to do with each other."""
    sets: list[frozenset[str]] = []
    together = {entry.weights for entry in (*flow.divided.values(), *flow.transfers)}
    # The largest first, which most of the others are then part of.
    for weights in sorted(together, key=len, reverse=True):
        touching = list(itertools.filterfalse(weights.isdisjoint, sets))
        sets = [*filter(weights.isdisjoint, sets), weights.union(*touching)]
    return sets


class _Links:
    """Factors in sets that are joined step by step.

    Unlike `unify`, this leaves the factors themselves apart: a part of a dimension is
    not the whole dimension.
    """

    def __init__(self) -> None:
        self._parents: dict[Factor, Factor] = {}

    def root(self, factor: Factor) -> Factor:
        while factor in self._parents:
            factor = self._parents[factor]
        return factor

    def join(self, first: Factor, second: Factor | None) -> None:
        if second is not None and self.root(first) is not self.root(second):
            self._parents[self.root(first)] = self.root(second)


def _parts(program: Program) -> dict[Factor, list[Dimension]]:
    """The parts of dimensions, by the leading factor of the whole dimension."""
    parts: defaultdict[Factor, list[Dimension]] = defaultdict(list)
    for part, whole in itertools.chain.from_iterable(
        map(dealt_pairs, program.operations)
    ):
        factor = leading_leaf(whole)
        if factor is not None:
            parts[factor].append(part)
    return dict(parts)


def dealt_pairs(operation: Operation) -> Iterator[tuple[Dimension, Dimension]]:
    """(part, whole dimension) of what an operation takes from its inputs or joins."""
    for axis, target in operation.dealt.items():
        source = operation.dimension(axis)
        for output in operation.outputs:
            # A slice or a split makes the smaller one, a concatenation the larger one.
            part, whole = sorted((source, output.dimensions[target]), key=size_of)
            yield part, whole
