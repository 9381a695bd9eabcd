"""TPC013: weights that are put together on every device in each step."""

from collections.abc import Iterator
from typing import Final

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.kept import called, inputs_of, share_given, spec_of_share
from tpuport.topology.advice.origins import Origins
from tpuport.topology.advice.placement import SMALL, axes, pattern
from tpuport.topology.advice.remedies import BESIDE, as_code, as_json
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.traffic import collectives, sent, times
from tpuport.topology.advice.wording import several, size
from tpuport.topology.hlo import Instruction

# [B, K, T, D], counted from the end: those of all layers may lie in one array.
_ROWS: Final = 4


def check(evidence: Evidence) -> Iterator[Hit]:
    """Moves of what is computed from weights alone; the same weight of all layers is one finding."""
    moves = list(collectives(evidence, "all-gather", "all-to-all", "collective-permute"))
    if not moves:
        return
    origins = Origins(evidence)
    found: dict[str, list[tuple[Instruction, str]]] = {}
    for one in moves:
        if names := origins.weights(one):
            name = min(names)
            found.setdefault(pattern(name), []).append((one, name))
    for regex, made in found.items():
        moved = sent(one for one, _ in made)
        if moved >= SMALL:
            yield _hit(evidence, regex, made, moved)


def _hit(evidence: Evidence, regex: str, made: list[tuple[Instruction, str]], moved: int) -> Hit:
    name = made[0][1]
    over = "+".join(sorted(axes(evidence.weights[name]))) or "no axis"
    cache = _cache_by_rows(evidence, name)
    return Hit(
        f"{several(times(one for one, _ in made), made[0][0].operation.removesuffix('-start'))} a step of "
        f"weights ({size(moved)} on each device): {name} is sharded over {over}, and its product needs it whole"
        + (
            f", as {cache} is over the same devices by its rows, and so is what is computed with it"
            if cache
            else ""
        ),
        _remedy(regex, cache),
        moved,
        "bytes sent",
        None if evidence.program is None else evidence.program.source(made[0][0]),
    )


def _cache_by_rows(evidence: Evidence, name: str) -> str:
    """A cache whose rows lie over an axis that divides a weight; empty where there is none."""
    for one in evidence.returned:
        share = share_given(evidence, one)
        rows = len(one.shape) - _ROWS
        if rows >= 0 and share[rows] < one.shape[rows]:
            spec = spec_of_share(evidence, one.shape, share)
            if any(repr(axis) in spec for axis in axes(evidence.weights[name]) & evidence.model_axes.keys()):
                return f"{called(inputs_of(evidence), evidence.returned)} {list(one.shape)}, given as {spec},"
    return ""


def _remedy(regex: str, cache: str) -> str:
    if cache:
        return (
            "give the cache with its heads over the weights' axis, where its attention is done: for [B, K, T, D] "
            "NamedSharding(mesh, PartitionSpec('dp', 'tp')); rows are shared out over dp"
        )
    return (
        "shard it over 'tp' in a dimension that its product can use, or not at all: "
        f"rules.override({{{as_code(regex, ('tp', None))}}}); for --rules FILE, {{{as_json(regex, ('tp', None))}}} "
        f"{BESIDE}. Of two weights that follow each other, the first by its outputs and the second by its inputs"
    )


RULE = Rule(
    id="TPC013",
    name="weights-gathered",
    summary="weights that are put together on every device in each step",
    why="""A product whose activations are sharded along the batch, or along another axis than the weight's, needs
the whole weight, and gathers it in each step: the same bytes each time, over links that are several times slower
than HBM. Training shares weights out so (FSDP), where a step is long; a decode step is over before the weights have
come.""",
    measured="""Collectives in the compiled program whose operands are computed from weights alone, through loops
too, from 1 MiB a step. A cache whose rows lie over the weights' axis is named as the cause.""",
    before="""rules = ShardingRules({r".*\\.weight": PartitionSpec("dp", None)})""",
    after="""rules = ShardingRules.from_model(model)   # over tp, in the dimension that each product can use""",
    check=check,
)
