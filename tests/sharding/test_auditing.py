"""The audit finds each fault, lets through what is allowed by name, and counts the bytes devices hold."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import PartitionSpec as P

from tpuport.errors import PortError
from tpuport.sharding import Rule, ShardingRules, audit


def shaped(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_all_faults_are_in_one_error(mesh_of):
    rules = ShardingRules({"odd": P("tp"), "norm": P(None, "tp"), "far": P("ep"), r"typo\..*": P("tp")})
    report = audit(rules, {"odd": shaped(6, 4), "norm": shaped(8), "far": shaped(8)}, mesh_of(tp=4))
    assert report.unmatched_rules == (r"typo\..*",)
    with pytest.raises(PortError) as caught:
        report.raise_on_errors()
    for text in (
        "odd (6, 4)", "dimension 0 is 6, which tp=4 does not divide", "norm (8,)", "has 2 entries",
        "far (8,)", "no axis 'ep'; it has dp, sp, tp", r"rule 'typo\\..*' matches no parameter",
        "dp=1 sp=1 tp=4",
    ):  # fmt: skip
        assert text in str(caught.value)


@pytest.mark.parametrize("allow", [("odd", "typo"), ("odd|even", "typo")])
def test_a_fault_is_allowed_by_parameter_or_by_pattern(mesh_of, allow):
    rules = ShardingRules({"odd|even": P("tp"), "typo": P()})
    parameters = {"odd": shaped(6), "even": shaped(8)}
    report = audit(rules, parameters, mesh_of(tp=4), allow=allow)
    report.raise_on_errors()
    assert report.bytes_per_device == 6 * 4 + 8 * 4 // 4
    assert rules.shardings(parameters, mesh_of(tp=4))["odd"].spec == P(None)


def test_allowing_one_weight_allows_no_other(mesh_of):
    report = audit(
        ShardingRules({"..": P("tp")}), {"aa": shaped(6), "bb": shaped(6)}, mesh_of(tp=4), allow=("aa",)
    )
    assert len(report.errors) == 1
    assert "bb" in report.errors[0]


def test_an_allowance_that_nothing_needed_is_noted(mesh_of):
    report = audit(ShardingRules({"a": P()}), {"a": shaped(6)}, mesh_of(tp=4), allow=("b",))
    assert any("'b'" in note for note in report.notes)


def test_axes_of_size_one_are_never_an_error(mesh_of):
    rules = ShardingRules([Rule("a", P(("dp", "tp"), "sp"), heads=3)])
    audit(rules, {"a": shaped(7, 5)}, mesh_of(tp=1)).raise_on_errors()


def test_cutting_through_a_head_is_a_note_and_the_weight_is_replicated(mesh_of):
    rules = ShardingRules([Rule("k", P("tp"), heads=2), Rule("sinks", P("tp"), heads=2)])
    report = audit(rules, {"k": shaped(16), "sinks": shaped(2)}, mesh_of(tp=4))
    report.raise_on_errors()
    assert all("2 heads" in note for note in report.notes)
    assert report.bytes_per_device == 64 + 8


def test_a_rule_that_others_hide_is_a_note(mesh_of):
    rules = ShardingRules({"a": P("tp")}).override({"a|b": P()})
    report = audit(rules, {"a": shaped(8)}, mesh_of(tp=4))
    report.raise_on_errors()
    assert "decides nothing" in report.notes[0]


def test_large_weights_without_a_rule_are_reported(mesh_of):
    parameters = {"large": shaped(1024, 256), "small": shaped(1023, 256)}
    assert audit(ShardingRules({}), parameters, mesh_of(tp=2)).large_unmatched == ("large",)
    assert audit(ShardingRules({}), parameters, mesh_of(tp=2), large_bytes=1 << 30).large_unmatched == ()


def test_tied_weights_count_once_and_must_agree(mesh_of):
    tied = shaped(8, 4)
    same = audit(ShardingRules({"a|b": P("tp")}), {"a": tied, "b": tied}, mesh_of(tp=4))
    assert (same.total_bytes, same.bytes_per_device) == (128, 32)
    differing = audit(ShardingRules({"a": P("tp"), "b": P()}), {"a": tied, "b": tied}, mesh_of(tp=4))
    with pytest.raises(PortError, match=r"b is tied to a(.|\n)*give both names one rule, r\"a\|b\""):
        differing.raise_on_errors()


@pytest.mark.parametrize(("name", "tp", "dp"), [("llama", 8, 1), ("llama", 2, 1), ("gpt_oss", 4, 2)])
def test_the_bytes_are_those_of_the_real_shards(tiny, mesh_of, name, tp, dp):
    model, mesh = tiny(name, on="meta", num_key_value_heads=4), mesh_of(tp=tp, dp=dp)
    rules, parameters = ShardingRules.from_model(model), dict(model.named_parameters())
    report = audit(rules, parameters, mesh)
    held_bytes = dict.fromkeys(mesh.devices.flat, 0)
    for key, sharding in rules.shardings(parameters, mesh).items():
        array = jax.device_put(jnp.zeros(tuple(parameters[key].shape), jnp.float32), sharding)
        for shard in array.addressable_shards:
            held_bytes[shard.device] += shard.data.nbytes
    assert set(held_bytes.values()) == {report.bytes_per_device}


@pytest.mark.parametrize("dtype", [torch.bfloat16, jnp.bfloat16, np.dtype("float16"), np.float16])
def test_dtypes_of_every_library_are_measured(mesh_of, dtype):
    class Described:
        shape = (4,)

    description = Described()
    description.dtype = dtype
    assert audit(ShardingRules({}), {"a": description}, mesh_of()).total_bytes == 8


def test_the_report_reads_as_a_table_and_as_plain_data(tiny, mesh_of):
    model = tiny("llama", on="meta")
    report = audit(ShardingRules.from_model(model), dict(model.named_parameters()), mesh_of(tp=8))
    lines = str(report).splitlines()
    assert lines[0].split()[:2] == ["rule", "weights"]
    assert any("lm_head" in line and "256x64" in line and "P('tp', None)" in line for line in lines)
    assert any(line.startswith("mesh dp=1 sp=1 tp=8: ") and "on each device" in line for line in lines)
    data = json.loads(json.dumps(report.to_dict()))
    assert data["mesh"] == {"dp": 1, "sp": 1, "tp": 8}
    assert sum(item["device_bytes"] for item in data["parameters"]) == data["bytes_per_device"]
