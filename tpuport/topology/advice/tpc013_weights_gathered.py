"""TPC013: weights that are put together on every device in each step."""

from collections.abc import Iterator
from typing import Final

from tpuport.base.mappings import group_by
from tpuport.base.plurals import count_noun
from tpuport.topology.advice.advice_rules import AdviceRule, Hit, format_bytes
from tpuport.topology.advice.cache_inputs import CacheInputs
from tpuport.topology.advice.data_movement import (
    MOVES,
    ProductCollective,
    count_executions,
    sent_bytes,
)
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.remedy_texts import (
    BESIDE_OTHER_RULES,
    write_json,
    write_python,
)
from tpuport.topology.advice.weight_placement import SMALL, layer_pattern, sharding_axes

# [B, K, T, D], counted from the end: those of all layers may be in one array.
_ROW_DIMENSION: Final = 4


def check(evidence: Evidence) -> Iterator[Hit]:
    """Moves of what is computed from weights alone; the same weight of all layers is
    one finding.
    """
    behind = {
        move: evidence.movement.weights_behind(move)
        for move in evidence.movement.collectives(*MOVES)
    }
    # A move of what several weights make is reported under the first by name.
    gathers = [
        ProductCollective(move, min(names)) for move, names in behind.items() if names
    ]
    for regex, moves in group_by(
        gathers, lambda move: layer_pattern(move.weight)
    ).items():
        if sent_bytes(move.instruction for move in moves) >= SMALL:
            yield _describe(evidence, regex, moves)


def _describe(evidence: Evidence, regex: str, moves: list[ProductCollective]) -> Hit:
    collectives = [move.instruction for move in moves]
    first, name = moves[0]
    axes = "+".join(sorted(sharding_axes(evidence.weights[name]))) or "no axis"
    cache = _cache_over_rows(evidence, name)
    cause = ""
    if cache:
        cause = f", as {cache} is divided over the same devices by its rows, and so is everything computed with it"
    sent = sent_bytes(collectives)
    return Hit(
        f"{count_noun(count_executions(collectives), first.kind)} a step of weights ({format_bytes(sent)} on each "
        f"device): {name} is sharded over {axes}, and its product needs it whole{cause}",
        _remedy(regex, cache),
        sent,
        "bytes sent",
        evidence.compiled.source(first),
    )


def _cache_over_rows(evidence: Evidence, name: str) -> str:
    """A cache whose rows are over an axis that divides a weight; empty if there is
    none.
    """
    # The compiler divides activations as the cache is, and then has to gather the
    # weights for them.
    inputs = CacheInputs(evidence)
    axes = sharding_axes(evidence.weights[name]) & evidence.model_axes.keys()
    for array in evidence.overwritten:
        share, rows = inputs.input_share(array), len(array.shape) - _ROW_DIMENSION
        spec = inputs.write_spec(array.shape, share)
        has_divided_rows = rows >= 0 and share[rows] != array.shape[rows]
        if has_divided_rows and any(repr(axis) in spec for axis in axes):
            return f"{inputs.joint_name(evidence.overwritten)} {list(array.shape)}, given as {spec},"
    return ""


def _remedy(regex: str, cache: str) -> str:
    if cache:
        return (
            "pass the cache with its heads over the weights' axis, where its attention runs: for [B, K, T, D], "
            "NamedSharding(mesh, PartitionSpec('dp', 'tp')); use dp to divide rows"
        )
    spec = ("tp", None)
    return (
        "shard it over 'tp' in a dimension that its product can use, or not at all: "
        f"rules.override({{{write_python(regex, spec)}}}); for --rules FILE, {{{write_json(regex, spec)}}} "
        f"{BESIDE_OTHER_RULES}. Where one weight feeds another, shard the first by its outputs and the second by its "
        "inputs"
    )


RULE = AdviceRule(
    id="TPC013",
    name="weights-gathered",
    summary="weights that every device gathers in each step",
    why="""If the activations of a product are sharded along the batch, or over a different axis than its weight, the
product needs the whole weight, and each step gathers the same bytes again, over links several times slower than HBM.
Training shards weights this way (FSDP) because its steps are long; a decode step could be finished before the weights
arrive.""",
    measured="""Collectives in the compiled program whose operands are computed from weights alone, including through
loops, from 1 MiB a step. If a cache is divided by its rows over the weights' axis, it is named as the cause.""",
    before="""mesh = tpuport.create_mesh(dp=4, devices=described("v6e:2x2").devices)
rows = NamedSharding(mesh, PartitionSpec("dp"))
x = jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16, sharding=rows)
rules = ShardingRules({r".*\\.weight": PartitionSpec("dp", None)})
compile_for(
    lambda: MLP(1024), {"x": x}, topology="v6e:2x2", mesh=mesh, rules=rules, dtype="bfloat16"
)""",
    after="""mesh = tpuport.create_mesh(tp=4, devices=described("v6e:2x2").devices)
x = jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16)
rules = ShardingRules({   # over tp, in the dimension that each product can use
    r"up\\.weight": PartitionSpec("tp", None), r"down\\.weight": PartitionSpec(None, "tp"),
})
compile_for(
    lambda: MLP(1024), {"x": x}, topology="v6e:2x2", mesh=mesh, rules=rules, dtype="bfloat16"
)""",
    check=check,
)
