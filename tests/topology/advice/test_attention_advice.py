"""Rules about attention, on calls that the dispatch really made."""

import dataclasses

import pytest
import torch

from tpuport.sharding import ShardingRules
from tpuport.topology.advice import advise
from tpuport.topology.advice.attention_scores import score_bytes


def test_a_dense_mask_says_what_it_costs_and_where_it_came_from(advice, models) -> None:
    inputs = {"x": models.meta(1, 1024, 512), "mask": models.meta(1, 1, 1024, 1024, dtype=torch.bool)}
    [finding] = advice(models.Attending, inputs, rules=models.rules(models.ATTENDING))
    assert finding.rule == "TPC003"
    assert "dense [1, 1, 1024, 1024] bool mask of 1 MiB in 1 attention call" in finding.message
    assert "without known structure" in finding.message
    assert "is_causal=True" in finding.remedy
    assert finding.cost == 1024 * 1024
    assert finding.source is not None
    assert finding.source.function == "Attending"


@pytest.mark.slow  # heads that do not divide, in test_sharding_advice.py, have no mask either
def test_no_mask_is_all_right(advice, models) -> None:
    findings = advice(
        models.Attending, {"x": models.meta(1, 1024, 512)}, rules=models.rules(models.ATTENDING)
    )
    assert findings == ()


@pytest.mark.slow
def test_a_short_dense_mask_is_all_right(advice, models) -> None:
    inputs = {"x": models.meta(1, 256, 512), "mask": models.meta(1, 1, 256, 256, dtype=torch.bool)}
    assert advice(models.Attending, inputs, rules=models.rules(models.ATTENDING)) == ()


@pytest.mark.slow  # scores by arithmetic, below, by the same rule; and `test_each_call_says_why` of attention
def test_a_head_that_the_kernel_cannot_serve_is_named(advice, models) -> None:
    build = lambda: models.Attending(heads=16, dim=16)  # noqa: E731
    findings = advice(build, {"x": models.meta(2, 1024, 256)}, rules=ShardingRules({}))
    [one] = [one for one in findings if one.rule == "TPC004"]
    assert "1024 x 1024 scores a head in XLA" in one.message
    assert "head dimension 16 is not in 32..256" in one.message
    assert one.remedy.startswith("a head dimension from 32 to 256")
    assert "of scores a device written to HBM and read again" in one.message
    # Nothing divides the heads, so each device has all of them: once written, and once read.
    assert one.cost == pytest.approx(2 * 4 * 2 * 16 * 1024 * 1024, rel=0.01)


@pytest.mark.slow  # `test_without_a_program_scores_are_arithmetic`, whose program has no scores
def test_scores_that_stay_on_the_chip_are_all_right(advice, models) -> None:
    options = {"rules": models.rules(models.ATTENDING), "attention": "xla"}
    assert advice(models.Attending, {"x": models.meta(1, 1024, 512)}, **options) == ()


@pytest.mark.slow
def test_what_was_asked_for_can_be_asked_for_otherwise(advice, models) -> None:
    options = {"rules": ShardingRules({}), "attention": "xla"}
    findings = advice(models.Attending, {"x": models.meta(8, 1024, 512)}, **options)
    [one] = [one for one in findings if one.rule == "TPC004"]
    assert "implementation='auto'" in one.remedy
    assert "--attention flash" in one.remedy


def test_without_a_program_scores_are_arithmetic(programs) -> None:
    from tpuport.attention.call_report import Call

    shape = (1, 32, 8192, 64)
    call = Call(
        "a.py:1", "", "torch", shape, shape, shape, "bfloat16", "xla", "head dimension 8", "none", "", ""
    )
    mesh = programs(tp=4)
    evidence = mesh.evidence(lambda weights, x: x + 1, {}, mesh.array((8, 128)))
    report = dataclasses.replace(evidence.report, attention=((call, 1),))
    [finding] = advise(dataclasses.replace(evidence, report=report, program=None))
    assert finding.rule == "TPC004"
    assert "by arithmetic" in finding.message
    assert finding.cost == 2 * 4 * 32 * 8192 * 8192 / 4
    assert advise(dataclasses.replace(evidence, report=report)) == (), "the program has no scores"


@pytest.mark.slow
def test_scores_that_the_model_makes_itself(advice, models) -> None:
    class Eager(models.Attending):
        def attend(self, q, k, v, mask):
            return torch.softmax(q @ k.transpose(2, 3), -1) @ v

    rules = models.rules(models.ATTENDING)
    [finding] = advice(Eager, {"x": models.meta(32, 1024, 512)}, rules=rules)
    assert finding.rule == "TPC004"
    assert "multiplies queries and keys itself: 1024 x 1024" in finding.message
    assert advice(Eager, {"x": models.meta(1, 1024, 512)}, rules=rules) == (), "they stay in VMEM"


@pytest.mark.parametrize(("batch", "heads", "queries", "keys"), [(1, 1, 1024, 1024), (2, 8, 2048, 1024)])
def test_bytes_of_scores_are_those_of_a_float32_tensor(batch, heads, queries, keys) -> None:
    from tpuport.attention.call_report import Call

    shape = (batch, heads, queries, 64), (batch, heads, keys, 64)
    call = Call("a.py:1", "", "torch", shape[0], shape[1], shape[1], "bfloat16", "xla", "", "none", "", "")
    assert score_bytes(call) == torch.empty(batch, heads, queries, keys, device="meta").nbytes
