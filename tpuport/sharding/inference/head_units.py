"""Into how many parts a divided dimension may be divided at most: whole heads, and whole groups of them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import gcd, prod

from tpuport.sharding.inference.candidates import Candidate
from tpuport.sharding.inference.factors import Dimension, Factor, leading_leaf, leaves
from tpuport.sharding.inference.program import Program
from tpuport.sharding.inference.sharding_flow import Flow, first_after, follow


def units(
    dimension: Dimension, chain: frozenset[Factor], parts: Mapping[Factor, list[Dimension]]
) -> int | None:
    """How many parts of a dimension the factors of a chain count; None if that is its size.

    Args:
        parts: of dimensions by their leading factor. A fused projection has whole heads of each of its parts.
    """
    factors = list(leaves(dimension))
    inside = [part for part in parts.get(factors[0], ()) if leading_leaf(part) in chain]
    if inside:
        # A part that could be divided anywhere still has to have as many features as devices.
        return gcd(*(units(part, chain, parts) or _size(part) for part in inside))
    counted = list(itertools.takewhile(chain.__contains__, factors))
    if len(counted) == len(factors):
        return None
    return prod(factor.size for factor in counted)


def _size(dimension: Dimension) -> int:
    return prod(factor.size for factor in dimension)


def find_chain(program: Program, candidate: Candidate) -> frozenset[Factor]:
    """The factors that a candidate divides, and those that may be divided further after them.

    Query heads are groups within key/value heads: cutting between the groups of a head costs nothing more, as the keys
    of that head are then whole on several devices.
    """
    chain = frozenset(_leading(candidate))
    while True:
        extension = _extend(program, candidate, chain)
        if extension is None:
            return chain
        chain |= {extension}


def _leading(candidate: Candidate) -> Iterator[Factor]:
    for value, divided in candidate.flow.divided.items():
        factor = leading_leaf(value.dimensions[divided.dimension])
        if factor is not None:
            yield factor


def _extend(program: Program, candidate: Candidate, chain: frozenset[Factor]) -> Factor | None:
    """A factor after those of the chain whose division costs nothing that theirs does not cost already."""
    seeds: defaultdict[Factor, dict[str, int]] = defaultdict(dict)
    for name, dimension in candidate.seeds.items():
        factor = first_after(program.weights[name].dimensions[dimension], chain)
        if factor is not None:
            seeds[factor][name] = dimension
    sums = {transfer.operation for transfer in candidate.sums}
    for factor, extended in seeds.items():
        flow = follow(program, extended, {}, chain)
        costs_nothing = all(
            transfer.kind == "sum" and transfer.operation in sums for transfer in flow.transfers
        )
        if costs_nothing and _passes_products(program, candidate, flow):
            return factor
    return None


def _passes_products(program: Program, candidate: Candidate, extension: Flow) -> bool:
    """Whether an extension divides every product of an array which the candidate divides, weights' own left out.

    It tells groups of heads, which scores have too, from the features of a value head, which they have not.
    """
    divided = candidate.flow.divided
    passed = []
    for index in {index for value in divided for index in program.users[value]}:
        operation = program.operations[index]
        computed = [value for value in operation.inputs if value in divided and not program.is_cheap(value)]
        if operation.name == "dot_general" and computed:
            passed.append(not extension.divided.keys().isdisjoint(operation.inputs))
    # Heads without such a product: what makes them is not divided, so that nothing is known.
    return all(passed) and bool(passed or not candidate.is_heads)
