"""Splits worth trying, against every factorization, and their ranking."""

import dataclasses
import itertools
import math
import re
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.remedy_texts import propose_even_heads
from tpuport.topology.advice.weight_placement import UndividedHeads
from tpuport.topology.mesh_splits import (
    Facts,
    Split,
    SplitOutcome,
    outcome_of,
    rank,
    split_reasons,
    suitable_splits,
    untried_reasons,
)

DEVICES = st.sampled_from([1, 2, 4, 8, 12, 16, 32, 64])
HEADS = st.none() | st.integers(1, 64)


def test_llama_2_7b_decoding_one_row_has_tp_only() -> None:
    assert list(suitable_splits(8, Facts(heads=32, kv_heads=32, batch=1))) == [(1, 1, 8)]


def test_rows_and_heads_are_shared_out_fewest_axes_first() -> None:
    assert list(suitable_splits(8, Facts(heads=32, kv_heads=8, batch=32))) == [
        (1, 1, 8),
        (8, 1, 1),
        (2, 1, 4),
        (4, 1, 2),
    ]


def test_key_value_heads_may_be_repeated_where_that_comes_out_even() -> None:
    assert Split(1, 1, 16) in suitable_splits(16, Facts(heads=64, kv_heads=8, batch=1))
    assert Split(1, 1, 8) in suitable_splits(8, Facts(heads=8, kv_heads=1, batch=1))
    reasons = split_reasons(4, Facts(heads=24, kv_heads=3))
    assert reasons[Split(1, 1, 4)] == "tp=4 neither divides 3 key/value heads nor is a multiple of them"


def test_a_video_transformer_has_its_tokens_shared_out() -> None:
    found = list(suitable_splits(8, Facts(heads=16, sequences=(48_000,))))
    assert found == [(1, 1, 8), (1, 8, 1), (1, 2, 4), (1, 4, 2)]
    reasons = split_reasons(8, Facts(heads=16, sequences=(48_001,)))
    assert reasons[1, 8, 1] == "sp=8 does not divide 48001 tokens"
    assert reasons[2, 4, 1] == "dp=2 does not divide a batch of 1; sp=4 does not divide 48001 tokens"
    assert list(split_reasons(2, Facts(heads=4)).values()) == [
        "", "dp=2 does not divide a batch of 1",
        "sp=2 has no sequence to divide: there is no attention",
    ]  # fmt: skip


def test_where_nothing_comes_out_even_there_are_still_some_to_try() -> None:
    """All over tp, and what TPC007 proposes in its place for a fuller batch."""
    assert all(split_reasons(8, Facts(heads=6, batch=3)).values())
    assert list(suitable_splits(8, Facts(heads=6, batch=3))) == [(1, 1, 8), (4, 1, 2)]
    assert list(suitable_splits(8, Facts(heads=5, batch=3))) == [(1, 1, 8), (8, 1, 1)]


def test_a_prompt_may_be_shared_out_by_its_queries() -> None:
    """Six heads, two of keys and values, one row: tp=4 is uneven, and there all the same; dp has no rows."""
    prompt = Facts(heads=6, kv_heads=2, sequences=(256,), divides_blocks=False)
    assert list(suitable_splits(4, prompt)) == [(1, 1, 4), (1, 4, 1), (1, 2, 2)]
    assert list(suitable_splits(4, dataclasses.replace(prompt, sequences=(257,)))) == [(1, 1, 4), (2, 1, 2)]
    token = split_reasons(2, dataclasses.replace(prompt, sequences=(1,)))
    assert token[1, 2, 1] == "sp=2 has no sequence to divide: a row is one token"


def test_sp_is_not_tried_beside_dp_where_dp_alone_has_the_rows() -> None:
    facts = Facts(heads=8, batch=4, sequences=(256,), divides_blocks=False)
    reasons = split_reasons(8, facts)
    assert reasons[Split(2, 2, 2)] == "sp=2 beside dp=2 sends what dp=4 need not"
    assert reasons[Split(4, 2, 1)] == reasons[Split(1, 4, 2)] == ""
    assert split_reasons(8, dataclasses.replace(facts, divides_blocks=True))[Split(2, 2, 2)] == ""


@settings(deadline=None)
@given(
    st.sampled_from([2, 4, 8, 12, 16]), st.integers(1, 12), st.integers(1, 12), st.integers(1, 16),
    st.sampled_from(["prefill", "decode"]),
)  # fmt: skip
def test_what_tpc007_proposes_is_tried(devices: int, kv: int, group: int, batch: int, task: str) -> None:
    """For the evidence at hand: what it proposes "and a batch of" other rows is of another program."""
    evidence = object.__new__(Evidence)
    report = SimpleNamespace(memory=SimpleNamespace(capacity=1 << 34), task=task, attention=())
    vars(evidence).update(
        report=report, inputs={"batch": batch}, mesh=SimpleNamespace(size=devices), model_axes={"tp": devices},
        weights={}, cache=(), model=None,
    )  # fmt: skip
    said = propose_even_heads(evidence, UndividedHeads("tp", devices, kv * group, kv, 64))
    facts = Facts(kv * group, kv, batch, (256 * 3,) if task == "prefill" else (1,), divides_blocks=False)
    tried = suitable_splits(devices, facts)
    for axis, rest, tp in re.findall(r"--(dp|sp) (\d+) --tp (\d+)", said):
        other_rows = axis == "dp" and "a batch of a multiple" in said
        split = (int(rest), 1, int(tp)) if axis == "dp" else (1, int(rest), int(tp))
        assert other_rows or split in tried, said


def test_splits_that_are_left_out_are_told_once_for_each_reason() -> None:
    told = [
        SplitOutcome(split, tried=not reason, why=reason).to_dict("llama", "v5e:2x2")
        for split, reason in split_reasons(4, Facts(heads=6, kv_heads=2, sequences=(1,))).items()
    ]
    assert untried_reasons(told) == {
        "llama on v5e:2x2": "tp=4 (does not divide 6 heads); dp=4, dp=2 (does not divide a batch of 1); "
        "sp=4, sp=2 (has no sequence to divide: a row is one token)"
    }
    assert untried_reasons([{**told[0], "tried": True}]) == {}


@settings(deadline=None)
@given(DEVICES, HEADS, HEADS, st.integers(1, 64), st.lists(st.integers(1, 4096), max_size=2).map(tuple))
def test_splits_are_exactly_the_factorizations_that_divide(
    devices: int, heads: int | None, kv_heads: int | None, batch: int, lengths: tuple[int, ...]
) -> None:
    facts = Facts(heads, kv_heads, batch, lengths)
    reasons = split_reasons(devices, facts)
    sides = [size for size in range(1, devices + 1) if devices % size == 0]
    triples = [triple for triple in itertools.product(sides, repeat=3) if math.prod(triple) == devices]
    assert sorted(reasons) == sorted(triples)
    shared = heads if kv_heads is None else kv_heads
    for (dp, sp, tp), reason in reasons.items():
        even = heads is None or (heads % tp == 0 and (not shared or shared % tp == 0 or tp % shared == 0))
        cut = sp == 1 or (lengths != () and math.gcd(*lengths) % sp == 0)
        assert (reason == "") == ((even or tp == 1) and batch % dp == 0 and cut)
    suitable = suitable_splits(devices, facts)
    even_splits = {split for split, reason in reasons.items() if not reason}
    assert even_splits <= set(suitable)
    assert Split(1, 1, devices) in suitable
    assert len(suitable) <= max(len(even_splits) + 1, 2)
    assert [split.axes for split in suitable] == sorted(split.axes for split in suitable)


ESTIMATE = {"seconds": 0.25, "binds": "memory", "unit": "tokens", "units": 3.0}


def report(seconds: float, used: int | None, fits: bool = True, message: str = "") -> dict:
    return {
        "fits": fits,
        "memory": {"used": used, "capacity": 16 << 30},
        "estimate": ESTIMATE if fits else None,
        "profile": {"seconds": seconds} if fits else None,
        "failure": {"message": message} if message else None,
    }


def test_an_outcome_says_why_it_does_not_fit() -> None:
    split = Split(1, 1, 8)
    assert outcome_of(split, report(0.75, 7)) == SplitOutcome(
        split,
        fits=True,
        used=7,
        capacity=16 << 30,
        seconds=0.75,
        roofline=0.25,
        unit="tokens",
        units_per_second=4.0,
        binds="memory",
    )
    assert (
        outcome_of(split, report(0, 20 << 30, False)).why == "needs 20.00 GiB a device, which has 16.00 GiB"
    )
    assert outcome_of(split, report(0, None, False)).why == "needs more a device, which has 16.00 GiB"
    assert outcome_of(split, report(0, None, False, "too large")).why == "too large"


def test_splits_are_ranked_by_the_time_of_their_schedules_and_not_by_the_roofline() -> None:
    """The figures of a prompt of Llama-3-8B's layers over four chips, in ms: all have the same roofline."""
    seconds = {Split(1, 1, 4): 13.75, Split(4, 1, 1): 9.65, Split(2, 1, 2): 12.34}
    outcomes = [outcome_of(split, report(time, 1)) for split, time in seconds.items()]
    assert [str(outcome.split) for outcome in rank(outcomes)] == ["dp=4", "dp=2 tp=2", "tp=4"]
    assert [outcome.seconds for outcome in rank(outcomes)] == [9.65, 12.34, 13.75]


OUTCOMES = st.lists(
    st.builds(
        lambda dp, fits, seconds, used: SplitOutcome(
            Split(dp, 1, 1), fits=fits, seconds=seconds if fits else None, used=used
        ),
        st.integers(1, 64), st.booleans(), st.floats(0, 10), st.none() | st.integers(0, 1 << 40),
    )
)  # fmt: skip


@settings(deadline=None)
@given(OUTCOMES, st.randoms(use_true_random=False))
def test_the_ranking_is_by_seconds_then_memory_and_does_not_depend_on_the_order(outcomes, random) -> None:
    found = rank(outcomes)
    assert sorted(map(repr, found)) == sorted(map(repr, outcomes))
    fitting = [one for one in found if one.fits]
    assert list(found[: len(fitting)]) == fitting
    big = 1 << 60
    keys = [(one.seconds, big if one.used is None else one.used) for one in fitting]
    assert keys == sorted(keys)
    needs = [big if one.used is None else one.used for one in found[len(fitting) :]]
    assert needs == sorted(needs)
    shuffled = list(outcomes)
    random.shuffle(shuffled)
    assert rank(shuffled) == found


@pytest.mark.parametrize(
    ("split", "text"),
    [(Split(1, 1, 8), "tp=8"), (Split(2, 2, 2), "dp=2 sp=2 tp=2"), (Split(1, 1, 1), "one device")],
)
def test_a_split_reads_as_options_do(split: Split, text: str) -> None:
    assert str(split) == text
