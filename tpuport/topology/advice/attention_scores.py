"""Scores of attention: when they are worth a kernel, where a program keeps them, and the masks on them."""

import itertools
from collections.abc import Collection, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from jax.extend.core import Jaxpr, Literal

import tpuport.attention
from tpuport.attention.call_report import Call
from tpuport.attention.xla_attention import block_size
from tpuport.jaxprs import Equation, callee, producers, source_frames, sub_jaxprs
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.hlo import HBM, Array
from tpuport.topology.hlo.memory_traffic import stores_arrays

# At this length one head's scores in float32 are 4 MiB: 32 heads of them fill a v5e's VMEM (128 MiB), so that scores
# which no kernel keeps on the chip go through HBM.
LONG: Final = 1024

# Calls of tpuport's own attention say themselves where scores are computed, and its softmax is meant to be in float32.
_ATTENTION: Final = str(Path(tpuport.attention.__file__).parent)
_FLOATS: Final = ("f32", "bf16", "f16")
# Comparisons of positions, joined. The values of anything else may be whatever they like.
_READABLE: Final = frozenset(
    "add and broadcast_in_dim convert_element_type copy eq expand_dims ge gt iota le lt mul ne neg not or reshape "
    "select_n slice squeeze stop_gradient sub transpose".split()
)
_SPREADING: Final = frozenset("broadcast_in_dim convert_element_type copy expand_dims not reshape".split())


class Scores(NamedTuple):
    """The scores of a call: `outer` heads of all rows, each of `queries` x `keys`."""

    outer: int
    queries: int
    keys: int


def is_long(call: Call) -> bool:
    """Whether a call has many queries and many keys."""
    return len(call.query) == 4 and len(call.key) == 4 and min(call.query[2], call.key[2]) >= LONG


def call_scores(call: Call) -> Scores:
    """What a call computes."""
    return Scores(call.query[0] * call.query[1], call.query[2], call.key[2])


def score_bytes(call: Call) -> int:
    """Bytes of all scores of a call, in float32."""
    return 4 * prod(call_scores(call))


def is_own_attention(equation: Equation) -> bool:
    """Whether an equation was traced in tpuport's attention."""
    return any(file.startswith(_ATTENTION) for file, _, _ in source_frames(equation))


def count_score_traffic(evidence: Evidence, scores: Collection[Scores], *, only_float32: bool) -> float:
    """Bytes of scores that a device writes to HBM and reads again in a step, by the compiled program.

    Args:
        evidence: has a program.
        scores: of all devices; the program may have a device's share of them, in blocks of queries.
        only_float32: whether scores are known to be in float32, as in tpuport's attention.
    """
    shares = {share for whole in scores for share in _device_shares(evidence, whole)}
    dtypes = ("f32",) if only_float32 else _FLOATS
    total = 0.0
    for instruction in evidence.compiled.instructions:
        if not stores_arrays(instruction):
            continue
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
    subsets = (subset for count in range(len(sizes) + 1) for subset in itertools.combinations(sizes, count))
    outers = {whole.outer // prod(subset) for subset in subsets if whole.outer % prod(subset) == 0}
    shares = set()
    for outer in outers:
        for queries in (whole.queries, whole.queries // evidence.axis_sizes.get("sp", 1)):
            # tpuport's attention in XLA has a block of queries at a time.
            block = block_size(queries, outer * whole.keys)
            shares |= {Scores(outer, queries, whole.keys), Scores(outer, block, whole.keys)}
    return shares


def _is_share(array: Array, scores: Scores) -> bool:
    """Whether an array may be these scores; the compiler puts heads and queries in any number of dimensions."""
    if array.size != prod(scores) or scores.keys not in array.dims:
        return False
    # The dimension of keys is one of its own; with equal lengths either may be taken for it.
    others = list(array.dims)
    others.remove(scores.keys)
    return any(length % scores.queries == 0 for length in others)


def find_unreadable_mask(jaxpr: Jaxpr, queries: int, keys: int) -> str | None:
    """The type, [.., Q, T] and a dtype, of a mask on scores that is not made by comparing positions.

    Args:
        jaxpr: of the program; nested ones are looked into.
        queries: rows of the scores.
        keys: columns of the scores.

    Returns:
        None if no mask is found, or all are made by comparing positions.
    """
    return next(_MaskReader((queries, keys)).unreadable_masks(jaxpr), None)


class _MaskReader:
    """Looks at scores whose last two dimensions are `matrix`. Arguments of nested jaxprs are their operands."""

    def __init__(self, matrix: tuple[int, int]) -> None:
        self._matrix = matrix
        self._makers: dict[Any, Equation] = {}
        self._operands: dict[Any, Any] = {}

    def unreadable_masks(self, jaxpr: Jaxpr) -> Iterator[str]:
        """The types of the masks on scores in a jaxpr, and in those nested in it, that cannot be read."""
        makers: Mapping[Any, Any] = producers(jaxpr)
        # Variables of nested jaxprs are other variables, so that one table has all of them.
        self._makers |= {variable: producer.equation for variable, producer in makers.items()}
        for equation in jaxpr.eqns:
            mask = self._mask_of(equation)
            if mask is not None and not self._is_readable(mask):
                yield f"{list(mask.aval.shape)} {mask.aval.dtype}"
            # The call of `jnp.where` is the selection, so that what is in it would count twice.
            parts = () if _selects(equation) else sub_jaxprs(equation)
            for part in parts:
                self._operands |= dict(zip(part.jaxpr.invars, part.operands, strict=False))
                yield from self.unreadable_masks(part.jaxpr)

    def _mask_of(self, equation: Equation) -> Any:
        """What says who sees whom, before it was spread over heads and rows; None if the equation masks nothing."""
        is_added = equation.primitive.name == "add"
        masks = is_added or _selects(equation)
        if not masks or _matrix_of(equation.outvars[0]) != self._matrix:
            return None
        operands = equation.invars if is_added else equation.invars[:1]
        spread = [self._skip_spreading(operand) for operand in operands]
        matrices = [variable for variable in spread if _matrix_of(variable) == self._matrix]
        if not matrices:
            return None
        # Scores have all rows and heads; a mask most often has fewer.
        smallest = min(matrices, key=lambda variable: variable.aval.size)
        # Both operands of a sum may be scores.
        is_scores = is_added and smallest.aval.size == equation.outvars[0].aval.size
        return None if is_scores else smallest

    def _skip_spreading(self, variable: Any) -> Any:
        while True:
            variable = self._outer(variable)
            maker = self._maker(variable)
            if maker is None or maker.primitive.name not in _SPREADING:
                return variable
            if _matrix_of(maker.invars[0]) != self._matrix:
                return variable
            variable = maker.invars[0]

    def _is_readable(self, mask: Any) -> bool:
        """Whether all that it is made of are comparisons of positions, or of what an argument numbers."""
        waiting, visited = [mask], set()
        while waiting:
            variable = self._outer(waiting.pop())
            if isinstance(variable, Literal) or variable in visited or not variable.aval.shape:
                continue
            visited.add(variable)
            maker = self._maker(variable)
            if maker is not None and _is_readable_equation(maker):
                waiting += maker.invars
            # An argument [.., Q, T] is a mask that was made elsewhere; a smaller one numbers segments.
            elif maker is not None or _matrix_of(variable) == self._matrix:
                return False
        return True

    def _outer(self, variable: Any) -> Any:
        while not isinstance(variable, Literal) and variable in self._operands:
            variable = self._operands[variable]
        return variable

    def _maker(self, variable: Any) -> Equation | None:
        return None if isinstance(variable, Literal) else self._makers.get(variable)


def _selects(equation: Equation) -> bool:
    """Whether it is `jnp.where`, which is a nested call."""
    return equation.primitive.name == "select_n" or equation.params.get("name") == "_where"


def _is_readable_equation(equation: Equation) -> bool:
    """Whether an equation, or all equations of a call, can be read."""
    called = callee(equation)
    if called is None:
        return equation.primitive.name in _READABLE
    return all(map(_is_readable_equation, called.jaxpr.eqns))


def _matrix_of(variable: Any) -> tuple[int, ...]:
    """The last two dimensions of a variable; empty if it has fewer."""
    shape = tuple(variable.aval.shape)
    return shape[-2:] if len(shape) > 1 else ()
