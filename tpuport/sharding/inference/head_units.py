"""Into how many parts a divided dimension may be divided at most: whole heads, and
whole groups of them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from math import gcd

from tpuport.sharding.inference.candidates import Candidate
from tpuport.sharding.inference.factors import (
    Dimension,
    Factor,
    leading_leaf,
    leaves,
    size_of,
)
from tpuport.sharding.inference.sharding_flow import (
    Flow,
    first_after,
    follow,
    leading_factors,
)
from tpuport.sharding.inference.traced_program import Program


def units(
    dimension: Dimension,
    chain: frozenset[Factor],
    parts: Mapping[Factor, list[Dimension]],
) -> int | None:
    """How many parts of a dimension the factors of a chain count; None if that is its
    size.

    Args:
        parts: of dimensions by their leading factor. A fused projection has whole heads
            of each of its parts.
    """
    factors = list(leaves(dimension))
    inside = [part for part in parts.get(factors[0], ()) if leading_leaf(part) in chain]
    if inside:
        # A part that could be divided anywhere still has to have as many features as
        # devices.
        return gcd(*(units(part, chain, parts) or size_of(part) for part in inside))
    # The first factor that is not in the chain is inside of a unit, as head_dim is
    # inside of a head.
    counted = list(itertools.takewhile(chain.__contains__, factors))
    if len(counted) == len(factors):
        return None
    return size_of(counted)


def find_chain(program: Program, candidate: Candidate) -> frozenset[Factor]:
    """The factors that a candidate divides, and those that may be divided further after
    them.

    Query heads are groups within key/value heads: cutting between the groups of a head
    costs nothing more, as the keys of that head are then whole on several devices.
    """
    chain = leading_factors(candidate.flow.divided)
    # Step by step: the next factor comes right after those that are in the chain
    # already.
    while (extension := _extend(program, candidate, chain)) is not None:
        chain |= {extension}
    return chain


def _extend(
    program: Program, candidate: Candidate, chain: frozenset[Factor]
) -> Factor | None:
    """A factor after those of the chain whose division costs nothing that theirs does
    not cost already.
    """
    seeds: defaultdict[Factor, dict[str, int]] = defaultdict(dict)
    for name, dimension in candidate.seeds.items():
        factor = first_after(program.weights[name].dimensions[dimension], chain)
        if factor is not None:
            seeds[factor][name] = dimension
    # An all-reduce over more devices is still one; anything else that the extension
    # needs would come on top.
    paid = {(transfer.operation, "sum") for transfer in candidate.sums}
    for factor, extended in seeds.items():
        extension = follow(program, extended, {}, chain)
        transfers = {
            (transfer.operation, transfer.kind) for transfer in extension.transfers
        }
        if transfers <= paid and _passes_products(program, candidate, extension):
            return factor
    return None


def _passes_products(program: Program, candidate: Candidate, extension: Flow) -> bool:
    """Whether an extension divides every product of an array which the candidate
    divides, weights' own left out.

    It tells groups of heads, which scores have too, from the features of a value head,
    which they have not.
    """
    divided = candidate.flow.divided.keys()
    products = [
        user for user in program.users_of(divided) if user.name == "dot_general"
    ]
    operands = divided & set(
        itertools.chain.from_iterable(product.inputs for product in products)
    )
    # A weight itself counts as cheap, since no operation makes it.
    computed = {value for value in operands if not program.is_cheap(value)}
    decisive = [
        product for product in products if not computed.isdisjoint(product.inputs)
    ]
    if candidate.is_heads and not decisive:
        # What makes these heads is not divided, so that nothing is known about what is
        # inside of them.
        return False
    return not any(
        extension.divided.keys().isdisjoint(product.inputs) for product in decisive
    )
