"""Whatever the evidence, the rules answer, in one order, without a crash."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from tpuport.attention.call_report import Call
from tpuport.topology.advice import CacheArray, Evidence, advise, all_advice_rules
from tpuport.topology.compile_report import Collective, Costs, Memory, Report

SIZES = st.sampled_from([1, 2, 3, 8, 64, 257, 1024, 4096])
DTYPES = st.sampled_from(["bfloat16", "float32", "int32", "float16"])


MESHES = [
    jax.make_mesh(sizes, names)
    for sizes in ((1, 1, 1), (2, 1, 4), (1, 2, 4), (1, 1, 8), (8, 1, 1), (2, 2, 2))
    for names in (("dp", "sp", "tp"), ("dp", "sp", "model"))
]


def scores(x):
    """Attention written out, three times."""
    return jax.lax.scan(lambda y, _: (jax.nn.softmax(y @ y.swapaxes(1, 2)) @ y, None), x, None, 3)[0]


TRACED = [
    jax.make_jaxpr(scores)(jax.ShapeDtypeStruct((2, size, 64), dtype))
    for size in (8, 1024)
    for dtype in (jnp.float32, jnp.bfloat16)
]


def several(draw):
    return range(draw(st.integers(0, 3)))


def array(draw, mesh):
    shape = tuple(draw(st.lists(SIZES, max_size=4)))
    free, entries = list(mesh.axis_names), []
    for extent in shape:
        axis = draw(st.none() | st.sampled_from(free)) if free else None
        axis = axis if axis and extent % mesh.shape[axis] == 0 else None
        entries.append(axis)
        free = [one for one in free if one != axis]
    sharding = NamedSharding(mesh, PartitionSpec(*entries))
    return jax.ShapeDtypeStruct(shape, jnp.dtype(draw(DTYPES)), sharding=sharding)


def call(draw):
    heads, queries, keys = draw(SIZES), draw(SIZES), draw(SIZES)
    query, key = (1, heads, queries, 64), (1, draw(SIZES), keys, 64)
    mask = draw(
        st.sampled_from(["none", "causal", f"dense [1, 1, {queries}, {keys}] bool", "dense [1] float32"])
    )
    place = draw(st.sampled_from(["a.py:3", "", "nowhere", "x:y"]))
    return Call(
        place, "Attention", "torch", query, key, key, "bfloat16", draw(st.sampled_from(["flash", "xla"])),
        draw(st.sampled_from(["", "head dimension 16 is not in 32..256"])), mask,
        draw(st.sampled_from(["", "over sp=2"])), "",
    )  # fmt: skip


def module(weights) -> torch.nn.Module:
    """A model that owns some of the weights: an embedding, and a head that it names."""
    model = torch.nn.Module()
    for name, weight in weights.items():
        owner, _, leaf = name.rpartition(".")
        if len(weight.shape) == 2 and leaf == "weight" and "." not in owner:
            child = torch.nn.Embedding(*weight.shape, device="meta")
            model.add_module(owner, child)
            model.get_output_embeddings = lambda child=child: child
    return model


def evidence(draw):
    """Drawn in the test's body: the type checker draws random numbers of its own, which no strategy may."""
    mesh = draw(st.sampled_from(MESHES))
    names = st.sampled_from(
        ["embed", "layers.0.up.weight", "layers.1.up.weight", "head", "a'b", "", "0.w", "x.y.7"]
    )
    arrays = {name: array(draw, mesh) for name in draw(st.sets(names, max_size=5))}
    weights = {name + ".weight" * (name in ("embed", "head")): one for name, one in arrays.items()}
    number = st.integers(0, 1 << 40)
    used = st.none() | number
    memory = Memory(draw(st.integers(1, 1 << 40)), *[draw(number) for _ in range(6)], draw(used))
    cost = st.floats(0, 1e15, allow_nan=False)
    costs = Costs(*[draw(cost) for _ in range(4)]) if draw(st.booleans()) else None
    axes = st.sampled_from([(), ("tp",), ("dp", "sp"), ("sp",)])
    sent = [
        Collective("all-reduce", draw(axes), 4, draw(st.integers(1, 99)), draw(number)) for _ in several(draw)
    ]
    task = draw(st.sampled_from(["forward", "prefill", "decode"]))
    report = Report(
        topology="v6e:2x4", generation="v6e", devices=mesh.size, mesh=dict(mesh.shape), model="M", parameters=1,
        weight_bytes=1, dtypes={}, task=task, inputs={},
        memory=memory, costs=costs, collectives=tuple(sent),
        attention=tuple((call(draw), draw(st.integers(1, 40))) for _ in several(draw)), buffers=(),
        estimate=None, advice=(), failure=None, scanned=(), effort=None, versions={},
    )  # fmt: skip
    value = st.one_of(
        st.none(), st.integers(), st.floats(allow_nan=False), st.booleans(), st.text(max_size=3),
        st.just(torch.empty(3, 5, dtype=torch.float64, device="meta")), st.just(torch.empty((), device="meta")),
        st.just({"timestep": 3, "more": [1.5, (2, None)]}),
    )  # fmt: skip
    keys = st.sampled_from(["batch", "length", "timestep", "x", "['", ""])
    inputs = draw(st.dictionaries(keys, value))
    if task != "forward":
        # The fields of a task, which are counts.
        inputs = {"batch": draw(st.integers(1, 100)), "length": draw(st.integers(1, 1 << 20))}
    cache = tuple(
        CacheArray(
            tuple(one.shape), str(one.dtype), draw(st.sampled_from([one.sharding, None])), draw(st.booleans())
        )
        for one in (array(draw, mesh) for _ in several(draw))
    )
    return Evidence(
        report=report, program=None, weights=weights, mesh=mesh, model=module(weights),
        jaxpr=draw(st.none() | st.sampled_from(TRACED)), cache=cache, inputs=inputs,
    )  # fmt: skip


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_evidence_gets_an_answer_in_one_order(data) -> None:
    case = evidence(data.draw)
    hits = advise(case)
    assert advise(dataclasses.replace(case)) == hits
    known = {rule.id: rule.name for rule in all_advice_rules()}
    weight = {"bytes": 1.0, "bytes sent": 4.0, "flops": 1 / 256}
    costs = [hit.cost * weight[hit.unit] for hit in hits]
    assert costs == sorted(costs, reverse=True)
    for one in hits:
        assert known[one.rule] == one.name
        assert one.cost >= 0
        assert one.message
        assert not one.message.endswith(".")
        assert one.remedy
        assert not one.remedy.endswith(".")


@pytest.fixture(scope="module")
def complete(programs) -> Evidence:
    """Evidence of a program whose weight is whole on every device."""
    mesh = programs(tp=4)
    weights = {"a.weight": mesh.array((1024, 1024))}
    return mesh.evidence(lambda weights, x: x @ weights["a.weight"], weights, mesh.array((8, 1024)))


@pytest.mark.parametrize("missing", ["program", "jaxpr", "costs"])
def test_what_is_missing_is_not_missed(complete, missing) -> None:
    evidence = complete
    if missing == "costs":
        evidence = dataclasses.replace(evidence, report=dataclasses.replace(evidence.report, costs=None))
    else:
        evidence = dataclasses.replace(evidence, **{missing: None})
    assert [one.rule for one in advise(evidence)] == ["TPC002"]
