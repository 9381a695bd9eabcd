"""Collectives that put keys and values together: those of a cache, and new ones on their way into it."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.moves import Moves
from tpuport.topology.advice.origins import Origins
from tpuport.topology.advice.traffic import collectives
from tpuport.topology.advice.wording import several
from tpuport.topology.hlo import Instruction

# An all-reduce adds up what devices have computed, and moves nothing that one of them holds.
KINDS: Final = ("all-gather", "all-to-all", "collective-permute")


class Gathered(NamedTuple):
    """Collectives of a step: `whole` of what the cache holds, `new` of what is written into it."""

    whole: tuple[Instruction, ...] = ()
    new: tuple[Instruction, ...] = ()


def gathered(evidence: Evidence) -> Gathered:
    """Those of arguments that come back overwritten or longer. A prefill has no such, as it makes its cache."""
    made = tuple(collectives(evidence, *KINDS))
    if evidence.program is None or not made or not evidence.returned:
        return Gathered()
    program, moves = evidence.program, Moves(evidence.program)
    arrays = moves.from_arguments({one.argument for one in evidence.returned})
    whole = tuple(
        one for one in made if any((each.computation, each.name) in arrays for each in program.operands(one))
    )
    way, origins = {id(one) for one in moves.way_to(moves.written_into(arrays))}, Origins(evidence)
    # A product of few rows may be elementwise too; weights that are gathered for it have a rule of their own.
    new = (one for one in made if id(one) in way and one not in whole and not origins.weights(one))
    return Gathered(whole, tuple(new))


def in_words(made: Iterable[Instruction]) -> str:
    """As in "2 all-gathers, 4 all-to-alls and 1 collective-permute"."""
    counts: Counter[str] = Counter()
    for one in made:
        counts[one.operation.removesuffix("-start")] += one.times
    words = [several(counts[kind], kind) for kind in KINDS if counts[kind]]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
