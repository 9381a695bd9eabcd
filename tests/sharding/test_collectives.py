"""What a sharded model communicates, counted in the compiled program, and that it computes what torch does.

Megatron's optimum is two all-reduces a layer over tp, after attention and after the feed-forward. The
embedding, cut over the vocabulary, adds one. The logits stay cut over the vocabulary: whoever reduces them
pays for that.
"""

import numpy as np
import pytest
import torch
from jax.sharding import PartitionSpec as P

from tpuport.sharding import ShardingRules

PREFILL, DECODE = 12, 1


@pytest.fixture
def measured(tiny, mesh_of, compiled):
    """Operands of collectives in a layer and outside, from models of two depths checked against torch."""

    def measure(name, length, tp=8, dp=1, override=None, depths=(1, 2), **options):
        counts = []
        for layers in depths:
            depth = {"n_layer": layers} if name == "gpt2" else {"num_hidden_layers": layers}
            model, mesh = tiny(name, **depth, **options), mesh_of(tp=tp, dp=dp)
            tokens = torch.randint(3, 256, (2, length), generator=torch.Generator().manual_seed(length))
            rules = ShardingRules.from_model(model)
            result = compiled(model, mesh, tokens, rules.override(override) if override else rules)
            with torch.no_grad():
                expected = model(tokens, use_cache=False).logits.numpy()
            np.testing.assert_allclose(result.logits, expected, atol=2e-6)
            counts.append(result.operands)
        few, many = depths
        kinds = set(counts[0]) | set(counts[1])
        layer = {kind: (counts[1][kind] - counts[0][kind]) / (many - few) for kind in kinds}
        outside = {kind: counts[0][kind] - few * layer[kind] for kind in kinds}
        return layer, {kind: count for kind, count in outside.items() if count}

    return measure


@pytest.mark.slow  # a layer whose inferred rules are the published ones, in inference/test_published_plans.py
@pytest.mark.parametrize("length", [PREFILL, DECODE])
def test_a_llama_layer_costs_two_all_reduces_and_nothing_else(measured, length):
    assert measured("llama", length, depths=(2, 4)) == ({"all-reduce": 2}, {"all-reduce": 1})


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("qwen3_moe", DECODE),
        pytest.param("qwen3_moe", PREFILL, marks=slow),
        pytest.param("mixtral", DECODE, marks=slow),
        pytest.param("mixtral", PREFILL, marks=slow),
        pytest.param("gpt_oss", DECODE, marks=slow),
        pytest.param("gpt_oss", PREFILL, marks=slow),
    ],
)
def test_a_layer_of_experts_costs_no_more(measured, name, length):
    assert measured(name, length) == ({"all-reduce": 2}, {"all-reduce": 1})


@pytest.mark.slow  # a layer over dp and tp in inference/test_published_plans.py
@pytest.mark.parametrize(("tp", "dp"), [(4, 2), (2, 1)])
def test_the_same_beside_data_parallelism(measured, tp, dp):
    assert measured("llama", PREFILL, tp=tp, dp=dp) == ({"all-reduce": 2}, {"all-reduce": 1})


@pytest.mark.parametrize(
    ("name", "heads"),
    [("llama", 2), pytest.param("gemma3_text", 1, marks=slow), pytest.param("qwen3_moe", 4, marks=slow)],
)
def test_fewer_key_value_heads_than_devices_cost_nothing_more(measured, name, heads):
    assert measured(name, PREFILL, num_key_value_heads=heads) == ({"all-reduce": 2}, {"all-reduce": 1})


@slow
def test_cutting_through_heads_computes_the_same_at_a_price(measured):
    layer, _ = measured(
        "llama", PREFILL, num_key_value_heads=2, override={r".*\.[kv]_proj\.weight": P("tp", None)}
    )
    assert layer["all-reduce"] == 2
    assert layer["all-gather"] > 0


@slow
def test_too_few_query_heads_replicate_attention_and_save_its_all_reduce(measured):
    options = {"num_attention_heads": 4, "num_key_value_heads": 2}
    assert measured("llama", PREFILL, **options) == ({"all-reduce": 1}, {"all-reduce": 1})


@slow
def test_an_embedding_cut_over_its_width_would_cost_gathers_in_every_norm(measured):
    layer, _ = measured("llama", PREFILL, override={r".*embed_tokens\.weight": P(None, "tp")})
    assert layer["all-gather"] >= 2


@pytest.mark.slow  # the layers above
def test_tied_embeddings_cost_no_more(measured):
    assert measured("gemma3_text", PREFILL, tie_word_embeddings=True) == (
        {"all-reduce": 2},
        {"all-reduce": 1},
    )


@slow
def test_gpt2_pays_for_its_feed_forward_alone(measured):
    assert measured("gpt2", PREFILL) == ({"all-reduce": 1}, {"all-reduce": 1})


@slow
def test_shared_experts_add_one_operand_to_a_combined_all_reduce(measured):
    assert measured("deepseek_v2", PREFILL) == ({"all-reduce": 3}, {"all-reduce": 1})


def test_fused_projections_are_right_and_move_activations_beside(measured):
    """Phi-3 has query, key and value in one matrix, gate and up in one: cut evenly, they are dealt anew."""
    layer, outside = measured("phi3", PREFILL)
    assert layer == {"all-reduce": 2, "collective-permute": 13}
    assert outside == {"all-reduce": 1}


@slow
def test_experts_that_devices_do_not_divide_can_be_cut_inside(measured):
    """Six experts on four devices: the rule is the user's, the result right, and activations move."""
    inside = {r".*gate_up_proj": P(None, "tp", None), r".*\.experts\.down_proj": P(None, None, "tp")}
    layer, _ = measured("mixtral", PREFILL, tp=4, num_local_experts=6, override=inside)
    assert layer["all-reduce"] == 2
