"""Scores of attention: when they are worth a kernel, where a program keeps them, and
the masks on them.
"""

import itertools
from collections.abc import Callable, Collection, Iterator
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from jax.extend.core import Jaxpr

import tpuport.attention
from tpuport.attention.call_report import Call
from tpuport.attention.xla_attention import block_size
from tpuport.base.mappings import group_by
from tpuport.compat.jaxprs import (
    Equation,
    Producer,
    callee,
    lookup,
    producers,
    source_frames,
    sub_jaxprs,
)
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.hlo import HBM, Array
from tpuport.topology.hlo.memory_traffic import stores_arrays

# At this length one head's scores in float32 are 4 MiB: 32 heads of them fill a v5e's
# VMEM (128 MiB), so that scores which no kernel keeps on the chip go through HBM.
LONG: Final = 1024

# Calls of tpuport's own attention say themselves where scores are computed, and its
# softmax is meant to be in float32.
_ATTENTION: Final = str(Path(tpuport.attention.__file__).parent)
_FLOATS: Final = ("f32", "bf16", "f16")
# Comparisons of positions, joined. The values of anything else may be whatever they
# like.
_READABLE: Final = frozenset(
    "add and broadcast_in_dim convert_element_type copy eq expand_dims ge gt iota le lt mul ne neg not or reshape "
    "select_n slice squeeze stop_gradient sub transpose".split()
)
_SPREADING: Final = frozenset(
    "broadcast_in_dim convert_element_type copy expand_dims not reshape".split()
)


class Scores(NamedTuple):
    """The scores of a call: `outer` heads of all rows, each of `queries` x `keys`."""

    outer: int
    queries: int
    keys: int


class CallCount(NamedTuple):
    """An attention call, and how often a step makes it."""

    call: Call
    times: int


def group_long_calls(
    evidence: Evidence, key: Callable[[Call], Any]
) -> list[list[CallCount]]:
    """The calls with many queries and many keys, those of one line with the same `key`
    together.
    """
    counts = itertools.starmap(CallCount, evidence.report.attention)
    # The scores of short calls stay on the chip in XLA too.
    long = [
        count for count in counts if min(count.call.query[2], count.call.key[2]) >= LONG
    ]
    return list(
        group_by(long, lambda count: (count.call.site, key(count.call))).values()
    )


def call_scores(call: Call) -> Scores:
    """What a call computes."""
    return Scores(call.query[0] * call.query[1], call.query[2], call.key[2])


def score_bytes(call: Call) -> int:
    """Bytes of all scores of a call, in float32."""
    return 4 * prod(call_scores(call))


def is_own_attention(equation: Equation) -> bool:
    """Whether an equation was traced in tpuport's attention."""
    return any(file.startswith(_ATTENTION) for file, _, _ in source_frames(equation))


def count_score_traffic(
    evidence: Evidence, scores: Collection[Scores], dtypes: Collection[str] = _FLOATS
) -> float:
    """Bytes of scores that a device writes to HBM and reads again in a step, by the
    compiled program.

    Args:
        evidence: has a program.
        scores: of all devices; the program may have a device's share of them, in blocks
            of queries.
        dtypes: that scores may have, as HLO writes them.
    """
    shares = set().union(*(_device_shares(evidence, whole) for whole in scores))
    total = 0.0
    for instruction in filter(stores_arrays, evidence.compiled.instructions):
        for array in instruction.results:
            is_candidate = array.space == HBM and array.dtype in dtypes
            if is_candidate and any(_is_share(array, share) for share in shares):
                # Written by one instruction, read by another.
                total += 2 * array.tiled_nbytes * instruction.times
    return total


def _device_shares(evidence: Evidence, whole: Scores) -> set[Scores]:
    """What a device may have of the scores at a time."""
    sizes = tuple(evidence.axis_sizes.values())
    # Any of the axes may divide rows and heads, together or alone.
    subsets = (itertools.combinations(sizes, count) for count in range(len(sizes) + 1))
    parts = map(prod, itertools.chain.from_iterable(subsets))
    outers = {whole.outer // count for count in parts if whole.outer % count == 0}
    query_counts = (whole.queries, whole.queries // evidence.axis_sizes.get("sp", 1))
    shares = set()
    for outer, queries in itertools.product(outers, query_counts):
        # tpuport's attention in XLA has a block of queries at a time.
        block = block_size(queries, outer * whole.keys)
        shares |= {Scores(outer, queries, whole.keys), Scores(outer, block, whole.keys)}
    return shares


def _is_share(array: Array, scores: Scores) -> bool:
    """Whether an array may be these scores; the compiler puts heads and queries in any
    number of dimensions.
    """
    if array.size != prod(scores) or scores.keys not in array.dims:
        return False
    # The dimension of keys is one of its own; with equal lengths either may be taken
    # for it.
    others = list(array.dims)
    others.remove(scores.keys)
    return any(length % scores.queries == 0 for length in others)


def find_unreadable_mask(jaxpr: Jaxpr, queries: int, keys: int) -> str | None:
    """The type, [.., Q, T] and a dtype, of a mask on scores that is not made by
    comparing positions.

    Args:
        jaxpr: of the program; nested ones are looked into.
        queries: rows of the scores.
        keys: columns of the scores.

    Returns:
        None if no mask is found, or all are made by comparing positions.
    """
    return next(_MaskReader((queries, keys)).unreadable_masks(jaxpr), None)


class _MaskReader:
    """Looks at scores whose last two dimensions are `matrix`. Arguments of nested
    jaxprs are their operands.
    """

    def __init__(self, matrix: tuple[int, int]) -> None:
        self._matrix = matrix
        # Variables of nested jaxprs are other variables, so that one table has those of
        # all jaxprs.
        self._makers: dict[Any, Producer] = {}
        self._operands: dict[Any, Any] = {}

    def unreadable_masks(self, jaxpr: Jaxpr) -> Iterator[str]:
        """The types of the masks on scores in a jaxpr, and in those nested in it, that
        cannot be read.
        """
        self._makers |= producers(jaxpr)
        for equation in jaxpr.eqns:
            mask = self._mask_of(equation)
            if mask is not None and not self._is_readable(mask):
                yield f"{list(mask.aval.shape)} {mask.aval.dtype}"
            # The call of `jnp.where` is the selection, so that what is in it would
            # count twice.
            if _selects(equation):
                continue
            for part in sub_jaxprs(equation):
                self._operands |= dict(
                    zip(part.jaxpr.invars, part.operands, strict=False)
                )
                yield from self.unreadable_masks(part.jaxpr)

    def _mask_of(self, equation: Equation) -> Any:
        """What says who sees whom, before it was spread over heads and rows; None if
        the equation masks nothing.
        """
        if _selects(equation):
            return self._smallest_matrix(equation, equation.invars[:1])
        if equation.primitive.name != "add":
            return None
        mask = self._smallest_matrix(equation, equation.invars)
        # Both operands of a sum may be scores, which have all rows and heads; a mask
        # most often has fewer.
        if mask is None or mask.aval.size == equation.outvars[0].aval.size:
            return None
        return mask

    def _smallest_matrix(self, equation: Equation, operands: list[Any]) -> Any:
        """Of the operands of an equation that makes scores, the smallest before it was
        spread, [.., Q, T].
        """
        if _matrix_of(equation.outvars[0]) != self._matrix:
            return None
        sources = map(self._skip_spreading, operands)
        matrices = [
            variable for variable in sources if _matrix_of(variable) == self._matrix
        ]
        return min(matrices, key=lambda variable: variable.aval.size, default=None)

    def _skip_spreading(self, variable: Any) -> Any:
        """What a variable was before it was spread over heads and rows, or
        converted.
        """
        variable = self._outer(variable)
        while (maker := lookup(self._makers, variable)) is not None:
            source = maker.equation.invars[0]
            if (
                maker.equation.primitive.name not in _SPREADING
                or _matrix_of(source) != self._matrix
            ):
                break
            variable = self._outer(source)
        return variable

    def _is_readable(self, mask: Any) -> bool:
        """Whether all that it is made of are comparisons of positions, or of what an
        argument numbers.
        """
        waiting, visited = [mask], set()
        while waiting:
            variable = self._outer(waiting.pop())
            # A single number is readable, whatever it is. Literals cannot be hashed.
            if not variable.aval.shape or id(variable) in visited:
                continue
            visited.add(id(variable))
            maker = lookup(self._makers, variable)
            if maker is not None and _is_readable_equation(maker.equation):
                waiting += maker.equation.invars
            # An argument [.., Q, T] is a mask that was made elsewhere; a smaller one
            # numbers segments.
            elif maker is not None or _matrix_of(variable) == self._matrix:
                return False
        return True

    def _outer(self, variable: Any) -> Any:
        """The variable outside of all nested jaxprs that a variable is."""
        while (operand := lookup(self._operands, variable)) is not None:
            variable = operand
        return variable


def _selects(equation: Equation) -> bool:
    """Whether it is `jnp.where`, which is a nested call."""
    return (
        equation.primitive.name == "select_n" or equation.params.get("name") == "_where"
    )


def _is_readable_equation(equation: Equation) -> bool:
    """Whether an equation, or all equations of a call, can be read."""
    called = callee(equation)
    if called is None:
        return equation.primitive.name in _READABLE
    return all(map(_is_readable_equation, called.jaxpr.eqns))


def _matrix_of(variable: Any) -> tuple[int, ...]:
    """The last two dimensions of a variable; fewer if it has fewer."""
    return tuple(variable.aval.shape)[-2:]
