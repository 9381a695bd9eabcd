"""TPC021: a projection of several in one weight, shared out so that its parts are cut."""

from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.gathered import KINDS, in_words
from tpuport.topology.advice.moves import Moves
from tpuport.topology.advice.placement import axes, pattern
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.traffic import collectives, made_for, sent
from tpuport.topology.advice.wording import several, size
from tpuport.topology.compile_report import Source
from tpuport.topology.hlo import Instruction

# What taking a product apart is made of; a collective for a product or for a sum has another reason.
_TAKING_APART: Final = frozenset(
    "broadcast_in_dim concatenate dynamic_slice gather reshape slice split squeeze transpose".split()
)


def check(evidence: Evidence) -> Iterator[Hit]:
    """Moves between a product with a weight and the parts of it; those that the same lines take apart are one."""
    by_weight: dict[str, list[tuple[Instruction, str]]] = {}
    for one, name in cut(evidence):
        by_weight.setdefault(pattern(name), []).append((one, name))
    found: dict[frozenset[Source | None], list[tuple[Instruction, str]]] = {}
    for made in by_weight.values():
        places = (evidence.program.source(one) if evidence.program else None for one, _ in made)
        found.setdefault(frozenset(places), []).extend(made)
    for made in found.values():
        yield _hit(evidence, [name for _, name in made], [one for one, _ in made])


def cut(evidence: Evidence) -> list[tuple[Instruction, str]]:
    """Collectives that take a product with a fused weight apart, and the weight's name."""
    made = [one for one in collectives(evidence, *KINDS) if made_for(one) in _TAKING_APART]
    fused = evidence.products.fused if made and evidence.model_axes else {}
    if evidence.program is None or not fused:
        return []
    moves = Moves(evidence.program)
    found = ((one, fused.keys() & moves.weights_of_products(one)) for one in made)
    return [(one, min(names)) for one, names in found if names]


def _hit(evidence: Evidence, names: list[str], made: list[Instruction]) -> Hit:
    name, others = names[0], len(set(names)) - 1
    like = f" and {several(others, 'other')}" if others else ""
    parts, over = evidence.products.fused[name], "+".join(sorted(axes(evidence.weights[name])))
    shared = f"shared out over {over} as one" if over else "shared out as one by the compiler"
    largest = max(made, key=lambda one: sent([one]))
    return Hit(
        f"{in_words(made)} a step ({size(sent(made))} on each device) between the product with {name}{like} "
        f"and the {parts} parts that are taken of it, as its outputs are {shared}, and a device has some of one "
        "part and others of another",
        _remedy(evidence, name, parts),
        sent(made),
        "bytes sent",
        None if evidence.program is None else evidence.program.source(largest),
    )


def _remedy(evidence: Evidence, name: str, parts: int) -> str:
    owner = name.rpartition(".")[0] or name
    axis = next(iter(sorted(axes(evidence.weights[name]) & evidence.model_axes.keys())), "tp")
    return (
        f"a Linear layer for each part, over {axis} by its outputs (PartitionSpec({axis!r}, None)). Where the model's "
        f"code is to stay as it is, put a module of {parts} in the place of {owner} whose forward is "
        "torch.cat([part(x) for part in self.parts], -1): the compiler undoes that, and the parts' weights are the "
        "rows in their order. Of heads, a view as [.., heads, 3, head_dim] with the rows in that order does it too; "
        "the weight whole, PartitionSpec(), does not, where what follows is shared out"
    )


RULE = Rule(
    id="TPC021",
    name="fused-weight-cut",
    summary="a projection of several in one weight, shared out so that its parts are cut",
    why="""The rows of query, key and value, or of gate and up, lie behind each other in one weight. Shared out by its
outputs, the first of two devices has all of the gate and the second all of the up, and what they make has to be sent
around before the one is multiplied with the other. A Phi-3 of two layers had 29 collectives a step on four devices,
and has 7 with a layer for each part; left whole, the weights were larger and the collectives were the same, since the
weight that follows shares out what it reads.""",
    measured="""All-gathers, all-to-alls and permutations in the compiled program that were made for taking an array
apart, and whose operand comes from a product with a weight of whose outputs the traced program takes two parts or
more.""",
    before="""query, key, value = self.qkv(x).chunk(3, -1)         # qkv.weight over tp by its outputs""",
    after="""query, key, value = self.q(x), self.k(x), self.v(x)  # each over tp by its outputs""",
    check=check,
)
