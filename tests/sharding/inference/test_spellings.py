"""One architecture in many spellings has one plan: two all-reduces a block, and what torch computes."""

import collections

import jax
import numpy as np
import pytest
import torch
from torch import nn

import tpuport
from benchmarks.inferred_plans import measure
from tests.sharding.inference import spellings
from tests.sharding.inference.spellings import (
    ATTENTION,
    GROUPED,
    Attention,
    BatchedExperts,
    Block,
    Conv1D,
    Cross,
    EinsumWeights,
    ExpertLoop,
    FeedForward,
    Fused,
    Gated,
    Multihead,
    ParallelBlock,
    PointwiseConvolutions,
    sdpa,
)
from tpuport.sharding import ShardingRules, infer_plan

INPUT = torch.randn(2, 16, spellings.WIDTH, generator=torch.Generator().manual_seed(0))


def stack(*blocks):
    torch.manual_seed(0)
    return nn.Sequential(*blocks).eval().requires_grad_(False)


def decisions(model):
    """The spec and the number of heads of each weight."""
    plan = infer_plan(model, INPUT)
    return {weight.names: (weight.spec, weight.heads) for weight in plan.weights}


def collectives(model):
    """Of a model's program over eight devices, and that it computes what torch computes."""
    expected = model(INPUT)
    rules = ShardingRules.infer(model, INPUT)
    cost = measure(model, {"input": INPUT}, rules, dp=2, tp=4)
    tpuport.port(model, mesh=tpuport.create_mesh(dp=2, tp=4, devices=jax.devices()[:8]), rules=rules)
    actual = np.asarray(tpuport.compile(model)(INPUT))
    np.testing.assert_allclose(actual, expected, atol=3e-5 * float(expected.abs().max()))
    return cost.collectives


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_has_the_plan_of_scaled_dot_product_attention(name):
    plain = decisions(stack(Block(Attention(sdpa), FeedForward())))
    assert decisions(stack(Block(Attention(ATTENTION[name]), FeedForward()))) == plain
    assert plain["0.attention.q.weight",] == (jax.sharding.PartitionSpec("tp", None), 8)


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_attention_has_the_plan_of_scaled_dot_product_attention(name):
    plain = decisions(stack(Block(Attention(spellings.grouped_by_sdpa, kv_heads=4), FeedForward())))
    assert decisions(stack(Block(Attention(GROUPED[name], kv_heads=4), FeedForward()))) == plain
    assert plain["0.attention.q.weight",][1] == 8
    assert plain["0.attention.k.weight",][1] == 4


@pytest.mark.slow  # the plans of the other spellings
def test_attention_that_joins_heads_with_the_batch_costs_one_all_reduce():
    """All spellings one after the other, so that one program is compiled."""
    spelled = ("bmm", "bmm_with_mask", "baddbmm", "heads_first")
    blocks = [Block(Attention(ATTENTION[name]), nn.Identity()) for name in spelled]
    blocks.append(Block(Multihead(need_weights=True), nn.Identity()))
    assert collectives(stack(*blocks)) == {"all-reduce": len(blocks)}


@pytest.mark.slow
def test_attention_costs_one_all_reduce_however_it_is_written():
    blocks = [Block(Attention(attend), FeedForward()) for attend in ATTENTION.values()]
    blocks += [Block(Attention(attend, kv_heads=4), FeedForward()) for attend in GROUPED.values()]
    assert collectives(stack(*blocks)) == {"all-reduce": 2 * len(blocks)}


@pytest.mark.slow
def test_layers_cost_one_all_reduce_however_they_are_written():
    blocks = [
        Block(Fused(spellings.viewed_by_heads), FeedForward()),
        Block(Fused(spellings.chunked_by_heads), FeedForward(activation=torch.relu)),
        Block(Fused(spellings.viewed_by_parts), FeedForward()),
        Block(EinsumWeights(), FeedForward(Conv1D)),
        Block(Multihead(need_weights=True), PointwiseConvolutions()),
        Block(Multihead(need_weights=False), Gated()),
        Block(Cross(spellings.bmm), FeedForward()),
        Block(Attention(spellings.bmm), FeedForward(activation=torch.square)),
    ]
    assert collectives(stack(*blocks)) == {"all-reduce": 2 * len(blocks)}


def test_every_layer_is_divided_but_what_is_stacked_by_parts():
    blocks = [
        Block(Fused(spellings.viewed_by_heads), FeedForward()),
        Block(EinsumWeights(), FeedForward(Conv1D)),
        Block(Cross(spellings.bmm), PointwiseConvolutions()),
        Block(Fused(spellings.viewed_by_parts), Gated()),
    ]
    plan = infer_plan(stack(*blocks), INPUT)
    whole = [weight.names for weight in plan.weights if len(weight.shape) > 1 and not any(weight.spec)]
    assert whole == [("3.attention.qkv.weight",)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "moves"),
    [
        (lambda: Block(Fused(spellings.chunked), FeedForward()), {"collective-permute": 7}),
        (lambda: Block(Attention(sdpa), Gated(is_fused=True)), {"collective-permute": 4}),
    ],
    ids=["attention", "feed-forward"],
)
def test_a_projection_that_is_cut_into_parts_costs_permutes_beside_its_two_all_reduces(block, moves):
    assert collectives(stack(block(), block())) == collections.Counter(
        {"all-reduce": 4}
    ) + collections.Counter({kind: 2 * count for kind, count in moves.items()})


@pytest.mark.slow
def test_parallel_layers_are_added_up_before_they_are_summed_up():
    """One all-reduce for both, or one for each where the compiler does not see it."""
    blocks = [ParallelBlock(Attention(spellings.bmm), FeedForward()) for _ in range(2)]
    [(kind, count)] = collectives(stack(*blocks)).items()
    assert kind == "all-reduce"
    assert count <= 4


@pytest.mark.slow
def test_each_expert_of_a_loop_is_a_pair():
    assert collectives(stack(Block(Attention(sdpa), ExpertLoop(experts=4)))) == {"all-reduce": 5}


@pytest.mark.parametrize("by_bmm", [True, False])
def test_batched_experts_are_divided_whole(by_bmm):
    plan = decisions(stack(Block(Attention(sdpa), BatchedExperts(by_bmm=by_bmm))))
    for name in ("0.feed_forward.up", "0.feed_forward.down"):
        assert tuple(plan[name,][0]) == ("tp", None, None)


def test_a_projection_of_joined_parts_says_that_they_are_dealt_anew():
    plan = infer_plan(stack(spellings.JoinedOutput()), INPUT)
    reasons = {weight.names[0]: weight.reason for weight in plan.weights}
    assert reasons["0.out.weight"].startswith("sums up 192 features, one all-reduce; holds several parts")
    assert reasons["0.up.weight"].startswith("128 features")
    assert reasons["0.q.weight"].startswith("8 heads")


def test_a_stacked_part_of_a_projection_is_named_in_the_reason():
    plan = infer_plan(stack(spellings.JoinedBoth()), INPUT)
    [inward, outward] = [weight for weight in plan.weights if len(weight.shape) > 1]
    assert "has a part of 192 that is 3 x 8 x 8, where only the 8 could be divided" in inward.reason
    assert tuple(outward.spec) == (None, "tp")


def test_heads_that_are_put_on_the_batch_one_by_one_stay_whole():
    """To deal them anew would cost dozens of transfers."""
    attention = Attention(spellings.split_and_concatenated)
    plan = infer_plan(stack(Block(attention, FeedForward())), INPUT)
    reasons = {weight.names[0]: weight.reason for weight in plan.weights}
    assert reasons["0.attention.q.weight"].startswith("whole")
    assert not reasons["0.feed_forward.up.weight"].startswith("whole")
