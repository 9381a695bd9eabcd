"""The map itself: matching, order, overriding, what a mesh can hold, and what is refused."""

import logging
import re

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from tpuport.errors import PortError
from tpuport.sharding import Rule, ShardingRules


def shaped(*shape):
    return jax.ShapeDtypeStruct(shape, np.float32)


def test_the_first_rule_that_matches_the_whole_name_decides():
    rules = ShardingRules({r"a\.weight": P("tp"), r".*\.weight": P(None, "tp"), "a": P("dp")})
    assert rules.spec("a.weight", (4, 4)) == P("tp", None)
    assert rules.spec("b.a.weight", (4, 4)) == P(None, "tp")
    assert rules.spec("a.weight.more", (4, 4)) == P(None, None)


names = st.from_regex(r"[a-c](\.[a-c]){0,2}", fullmatch=True)


@given(
    st.dictionaries(names.map(re.escape), st.sampled_from([P(), P("tp"), P("dp"), P(("dp", "tp"))])), names
)
def test_it_decides_as_a_walk_over_the_patterns_does(mapping, name):
    expected = next((spec for pattern, spec in mapping.items() if re.fullmatch(pattern, name)), P())
    assert ShardingRules(mapping).spec(name, (8, 8)) == P(*expected, *(None,) * (2 - len(expected)))


def test_overriding_leaves_the_first_rules_as_they_were_and_is_tried_before_them():
    base = ShardingRules({"a": P("tp"), "b": P("tp")})
    changed = base.override({"b": P(), ".": P("dp")})
    assert list(base) == ["a", "b"]
    assert list(changed) == ["b", ".", "a"]
    assert (changed.spec("a", (2,)), changed.spec("b", (2,))) == (P("dp"), P(None))
    assert base.override(changed)["b"] == P()
    assert base == ShardingRules({"a": P("tp"), "b": P("tp")}) != changed
    assert hash(base) == hash(ShardingRules(dict(base)))


def test_rules_cannot_be_changed():
    rules = ShardingRules({"a": P()})
    with pytest.raises(AttributeError, match="override"):
        rules._rules = ()
    with pytest.raises(TypeError):
        rules["a"] = P("tp")


def test_the_repr_shows_each_rule_on_a_line():
    assert repr(ShardingRules({r"a\.b": P(None, ("dp", "tp")), "c": P()})).splitlines() == [
        "ShardingRules({",
        r"    'a\\.b': P(None, ('dp', 'tp')),",
        "    'c'    : P(),",
        "})",
    ]
    assert repr(ShardingRules({})) == "ShardingRules({})"


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"layers.(": P()}, "not a regular expression"),
        ({"a": ("tp", None)}, "not a PartitionSpec"),
        ({"a": P("tp", "tp")}, "twice"),
        ({"a": P(P.UNCONSTRAINED)}, "not an entry"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused_and_named(mapping, message):
    with pytest.raises(PortError, match=message) as caught:
        ShardingRules(mapping)
    assert repr(next(iter(mapping))) in str(caught.value)


def test_a_spec_longer_than_the_shape_is_an_error_naming_both():
    with pytest.raises(PortError, match=r"norm\.weight") as caught:
        ShardingRules({r".*\.weight": P(None, "tp")}).spec("norm.weight", (8,))
    assert "(8,)" in str(caught.value)


def test_a_missing_pattern_is_a_key_error_as_in_any_mapping():
    with pytest.raises(KeyError):
        ShardingRules({"a": P()})["b"]


def test_shardings_place_every_parameter_and_pad_the_specs(mesh_of):
    mesh = mesh_of(tp=4, dp=2)
    placed = ShardingRules({"a": P("tp"), "b": P(None, ("dp", "tp"))}).shardings(
        {"b": shaped(3, 8), "a": shaped(4, 5), "c": shaped(7)}, mesh
    )
    assert list(placed) == ["b", "a", "c"]
    assert [sharding.spec for sharding in placed.values()] == [P(None, ("dp", "tp")), P("tp", None), P(None)]
    assert placed["b"].shard_shape((3, 8)) == (3, 1)


def test_what_the_mesh_cannot_hold_is_replicated_and_logged(mesh_of, caplog):
    rules = ShardingRules({"a": P("tp"), "b": P("ep"), "c": P(None, "tp")})
    with caplog.at_level(logging.WARNING, "tpuport"):
        placed = rules.shardings({"a": shaped(6), "b": shaped(8), "c": shaped(8)}, mesh_of(tp=4))
    assert [sharding.spec for sharding in placed.values()] == [P(None)] * 3
    for text in ("dimension 0 is 6, which tp=4 does not divide", "no axis 'ep'", "has 2 entries"):
        assert text in caplog.text


def test_an_axis_that_would_cut_a_head_is_given_up(mesh_of, caplog):
    rules = ShardingRules([Rule("k", P("tp", None), heads=2)])
    for tp, spec in ((2, P("tp", None)), (4, P(None, None))):
        assert rules.shardings({"k": shaped(16, 64)}, mesh_of(tp=tp))["k"].spec == spec
    assert "2 heads do not divide evenly over tp=4" in caplog.text
