"""Rules derived from whole models: what they match, how they cut it, and what is said about the rest."""

import logging

import pytest
import torch
from diffusers import FluxTransformer2DModel
from jax.sharding import PartitionSpec as P

from tpuport.errors import PortError
from tpuport.sharding import ShardingRules, audit
from tpuport.sharding.plans import tensor_parallel_plan


def specs(model):
    rules = ShardingRules.from_model(model)
    return {
        name: rules.spec(name, value.shape) for name, value in model.named_parameters(remove_duplicate=False)
    }


def test_llama_is_cut_as_megatron_cuts_it(tiny):
    actual = specs(tiny("llama", on="meta", attention_bias=True))
    layer = "model.layers.1."
    for name in ("q", "k", "v"):
        assert actual[f"{layer}self_attn.{name}_proj.weight"] == P("tp", None)
        assert actual[f"{layer}self_attn.{name}_proj.bias"] == P("tp")
    assert actual[f"{layer}self_attn.o_proj.weight"] == P(None, "tp")
    assert actual[f"{layer}self_attn.o_proj.bias"] == P(None)
    assert actual[f"{layer}mlp.gate_proj.weight"] == actual[f"{layer}mlp.up_proj.weight"] == P("tp", None)
    assert actual[f"{layer}mlp.down_proj.weight"] == P(None, "tp")
    assert actual["model.embed_tokens.weight"] == actual["lm_head.weight"] == P("tp", None)
    assert actual[f"{layer}input_layernorm.weight"] == P(None)


def test_the_bare_base_model_has_the_same_rules_without_the_prefix(tiny):
    model = tiny("llama", on="meta")
    head = {
        name.removeprefix("model."): spec for name, spec in specs(model).items() if name.startswith("model.")
    }
    assert specs(model.model) == head


@pytest.mark.parametrize(
    "name", ["llama", "phi3", "mixtral", "qwen3_moe", "gpt_oss", "gemma3_text", "deepseek_v2", "gpt2"]
)
def test_every_derived_rule_matches_and_fits_with_parameters_named_once(tiny, mesh_of, name):
    model = tiny(name, on="meta")
    report = audit(ShardingRules.from_model(model), dict(model.named_parameters()), mesh_of(tp=8))
    report.raise_on_errors()
    assert not report.unmatched_rules
    assert not report.large_unmatched
    # GPT-2's fused query, key and value stay whole: a third of its layers.
    assert report.bytes_per_device < report.total_bytes * (0.6 if name == "gpt2" else 0.5)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v2"])
def test_experts_are_shared_out_whole(tiny, name):
    actual = {key: spec for key, spec in specs(tiny(name, on="meta")).items() if ".experts." in key}
    assert actual
    assert all(spec[0] == "tp" and not any(spec[1:]) for spec in actual.values())


def test_tied_weights_take_one_rule(tiny):
    model = tiny("gemma3_text", on="meta", tie_word_embeddings=True)
    rules = ShardingRules.from_model(model)
    assert rules.rule("lm_head.weight") is rules.rule("model.embed_tokens.weight")
    assert rules.spec("lm_head.weight", (256, 64)) == P("tp", None)


@pytest.mark.parametrize("vocabulary", [257, 258])
@pytest.mark.parametrize("tied", [True, False])
def test_a_vocabulary_that_the_mesh_does_not_divide_is_replicated_and_said(
    tiny, mesh_of, caplog, vocabulary, tied
):
    model = tiny("llama", on="meta", vocab_size=vocabulary, tie_word_embeddings=tied)
    rules, mesh = ShardingRules.from_model(model), mesh_of(tp=4)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    audit(rules, parameters, mesh).raise_on_errors()
    assert not caplog.text
    placed = rules.shardings(parameters, mesh)
    assert placed["model.embed_tokens.weight"].spec == placed["lm_head.weight"].spec == P(None, None)
    bytes_each = f"{vocabulary * 64 * 4 / 1000:.2f} kB on each device"
    assert [record.message.count(bytes_each) for record in caplog.records] == [1] * (1 if tied else 2)
    assert caplog.text.count(f"dimension 0 is {vocabulary}, which tp=4 does not divide") == len(
        caplog.records
    )
    assert "lm_head" in caplog.text
    assert "embed_tokens" in caplog.text


def test_a_rule_of_the_users_own_for_the_vocabulary_stays_strict(tiny, mesh_of):
    model = tiny("llama", on="meta", vocab_size=258, tie_word_embeddings=False)
    rules = ShardingRules.from_model(model).override({r"lm_head\.weight": P("tp", None)})
    with pytest.raises(PortError, match=r"lm_head(.|\n)*dimension 0 is 258") as raised:
        audit(rules, dict(model.named_parameters()), mesh_of(tp=4)).raise_on_errors()
    assert "embed_tokens" not in str(raised.value)
    report = audit(rules, dict(model.named_parameters()), mesh_of(tp=4), allow="lm_head.weight")
    report.raise_on_errors()
    assert sum("258" in note for note in report.notes) == 2


@pytest.mark.parametrize(
    ("name", "options", "heads"),
    [
        ("llama", {"num_key_value_heads": 2}, {"q_proj": 8, "k_proj": 2, "v_proj": 2, "o_proj": 8}),
        ("gpt_oss", {"num_key_value_heads": 4}, {"q_proj": 8, "k_proj": 4, "v_proj": 4, "o_proj": 8}),
        ("deepseek_v2", {}, {"q_b_proj": 8, "kv_b_proj": 8, "o_proj": 8}),
    ],
)
def test_attention_weights_know_their_heads(tiny, name, options, heads):
    rules = ShardingRules.from_model(tiny(name, on="meta", **options))
    assert {key: rules.rule(f"model.layers.0.self_attn.{key}.weight").heads for key in heads} == heads
    assert all(rule.heads is None for rule in rules.rules if "self_attn" not in rule.pattern)


def test_gpt2_keeps_its_matrices_transposed(tiny):
    actual = specs(tiny("gpt2", on="meta"))
    assert actual["transformer.h.0.mlp.c_fc.weight"] == P(None, "tp")
    assert actual["transformer.h.0.mlp.c_fc.bias"] == P("tp")
    assert actual["transformer.h.0.mlp.c_proj.weight"] == P("tp", None)
    assert actual["transformer.h.0.attn.c_attn.weight"] == P(None, None)


def test_an_embedding_may_be_a_parameter(tiny, monkeypatch):
    # As Perceiver's, which is not a module.
    model = tiny("llama", on="meta")
    expected = specs(model)
    monkeypatch.setattr(model, "get_input_embeddings", lambda: model.lm_head.weight)
    assert specs(model) == expected


def test_a_plan_entry_that_matches_nothing_is_logged_and_makes_no_rule(tiny, caplog):
    with caplog.at_level(logging.INFO, "tpuport"):
        rules = ShardingRules.from_model(tiny("qwen3_moe", on="meta"))
    assert "'model.layers.*.mlp.gate_proj' matches no weight" in caplog.text
    assert not any(rule.pattern.endswith(r"mlp\.gate_proj\.weight") for rule in rules.rules)


def test_a_model_without_a_plan_is_replicated_with_a_warning(caplog):
    assert len(ShardingRules.from_model(torch.nn.Linear(4, 4))) == 0
    assert "Linear has no tensor-parallel plan" in caplog.text


def test_what_is_not_a_module_is_refused():
    with pytest.raises(PortError, match="dict"):
        ShardingRules.from_model({})


def test_an_unknown_style_in_a_models_plan_is_an_error(tiny):
    model = tiny("llama", on="meta")
    model._tp_plan = {**tensor_parallel_plan(model), "model.norm": "spiral"}
    with pytest.raises(PortError, match="spiral"):
        ShardingRules.from_model(model)


def test_a_diffusion_transformer_is_cut_by_its_own_plan(mesh_of):
    with torch.device("meta"):
        model = FluxTransformer2DModel(
            in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=4,
            joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
        )  # fmt: skip
    actual = specs(model)
    assert actual["transformer_blocks.0.attn.to_q.weight"] == P("tp", None)
    assert actual["transformer_blocks.0.attn.to_out.0.weight"] == P(None, "tp")
    assert actual["transformer_blocks.0.ff.net.2.bias"] == P(None)
    assert actual["single_transformer_blocks.0.proj_out.weight"] == P(None, "tp")
    audit(ShardingRules.from_model(model), dict(model.named_parameters()), mesh_of(tp=4)).raise_on_errors()
