"""Ways to divide weights together.

All weights that have one factor at the head of a dimension are a candidate: they can be divided along it at once, and
the arrays between them are divided too. What leads to an array that is needed whole is left out.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import prod

from tpuport.sharding.inference.factors import Dimension, Factor, leading_leaf
from tpuport.sharding.inference.operations import Value
from tpuport.sharding.inference.program import Program
from tpuport.sharding.inference.sharding_flow import Divided, Flow, Transfer, follow


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """Weights that can be divided together.

    Attributes:
        seeds: the dimension of each weight.
        flow: what follows.
        is_heads: whether products are computed for each position of it apart, as for heads and experts.
    """

    seeds: dict[str, int]
    flow: Flow
    is_heads: bool

    @property
    def sums(self) -> list[Transfer]:
        """The all-reduces that follow."""
        return self.flow.kinds("sum")


class Candidates:
    """Finds the candidates of a program.

    Attributes:
        parts: of the dimensions that begin with a factor, those that the program takes from or joins into them: a
            fused projection, or results of several products for one.
        refused: the transfers for which weights were left out, by weight and dimension.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.parts = _parts(program)
        self.refused: defaultdict[str, dict[int, Transfer]] = defaultdict(dict)
        self._batch = {
            leading_leaf(operation.inputs[axis.input].dimensions[axis.dimension])
            for operation in program.operations
            for axis in operation.batch
        }

    def find_all(self) -> list[Candidate]:
        """The candidates of all weights."""
        links = _Links()
        for whole, parts in self.parts.items():
            for part in parts:
                links.join(whole, leading_leaf(part))
        seeds: defaultdict[Factor, dict[str, int]] = defaultdict(dict)
        for name, value in self.program.weights.items():
            for index, dimension in enumerate(value.dimensions):
                factor = leading_leaf(dimension)
                if factor is not None:
                    seeds[links.root(factor)].setdefault(name, index)
        return [candidate for group in seeds.values() for candidate in self.find(group, {})]

    def find(self, seeds: Mapping[str, int], settled: Mapping[Value, Divided]) -> Iterator[Candidate]:
        """The candidates among some weights, one for each set of weights that have to do with each other."""
        for connected in _connected(self._without_needs(seeds, settled)):
            part = {name: dimension for name, dimension in seeds.items() if name in connected}
            flow = follow(self.program, part, settled)
            yield Candidate(part, flow, any(map(self._is_batch, flow.divided.items())))

    def _is_batch(self, item: tuple[Value, Divided]) -> bool:
        value, divided = item
        return leading_leaf(value.dimensions[divided.dimension]) in self._batch

    def _without_needs(self, seeds: Mapping[str, int], settled: Mapping[Value, Divided]) -> Flow:
        """What follows from dividing those of the weights that lead to no array that is needed whole."""
        remaining = dict(seeds)
        while True:
            flow = follow(self.program, remaining, settled)
            blamed = {name: need for need in flow.kinds("whole") for name in need.weights}
            if not blamed:
                return flow
            for name, need in blamed.items():
                self.refused[name].setdefault(remaining.pop(name), need)


def _connected(flow: Flow) -> list[frozenset[str]]:
    """The weights of a flow in sets that have nothing to do with each other."""
    sets: list[frozenset[str]] = []
    together = {item.weights for item in flow.divided.values()} | {item.weights for item in flow.transfers}
    for weights in sorted(together, key=len, reverse=True):
        touching = list(itertools.filterfalse(weights.isdisjoint, sets))
        sets = [*filter(weights.isdisjoint, sets), weights.union(*touching)]
    return sets


class _Links:
    """Factors in sets that are joined step by step."""

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
    for operation in program.operations:
        for axis, target in operation.dealt.items():
            source = operation.inputs[axis.input].dimensions[axis.dimension]
            for output in operation.outputs:
                pair = source, output.dimensions[target]
                part, whole = sorted(pair, key=lambda dimension: prod(factor.size for factor in dimension))
                factor = leading_leaf(whole)
                if factor is not None:
                    parts[factor].append(part)
    return dict(parts)
