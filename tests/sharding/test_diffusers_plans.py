"""Rules for diffusers models: every transformer class, what is cut how, and what it costs and computes on a mesh."""

import logging
import re
import warnings
from collections import Counter
from math import prod

import jax
import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKL,
    HunyuanVideo15Transformer3DModel,
    LTXVideoTransformer3DModel,
    QwenImageTransformer2DModel,
)
from jax.sharding import PartitionSpec as P

import tpuport
from benchmarks import tiny_diffusers
from tpuport.sharding import ShardingRules, audit
from tpuport.sharding.diffusers_plans import diffusers_plan
from tpuport.sharding.sequence import hidden_spec, text_spec, transformer_blocks

CLASSES = [
    name for name, value in tiny_diffusers.candidates().items() if ".models.transformers." in value.__module__
]
NO_SIZES = {
    "DreamLiteTransformer2DModel", "EasyAnimateTransformer3DModel", "LuminaNextDiT2DModel", "OmniGenTransformer2DModel",
    "WanAnimateTransformer3DModel",
}  # fmt: skip
TINY15 = {
    "in_channels": 9, "out_channels": 4, "num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2,
    "num_refiner_layers": 1, "mlp_ratio": 2.0, "text_embed_dim": 24, "text_embed_2_dim": 12, "image_embed_dim": 20,
    "rope_axes_dim": (4, 6, 6), "target_size": 16, "task_type": "t2v",
}  # fmt: skip


def on_meta(name):
    """A tiny model of the class, without values; what the class warns of is its own affair."""
    entry = tiny_diffusers.TABLE.get(name, tiny_diffusers.Small())
    model_class = tiny_diffusers.candidates()[name]
    options = {} if entry.config.get("only") else tiny_diffusers.shrink(model_class)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model_class(**options | {key: value for key, value in entry.config.items() if key != "only"})


def hunyuan15(on="meta", **options):
    with torch.device(on):
        return HunyuanVideo15Transformer3DModel(**TINY15 | options)


def specs(model):
    rules = ShardingRules.from_model(model)
    return {name: rules.spec(name, value.shape) for name, value in model.named_parameters()}


def test_the_list_of_classes_is_the_whole_library():
    assert len(CLASSES) >= 60


COMMON = ("FluxTransformer2DModel", "HunyuanVideo15Transformer3DModel", "HiDreamImageTransformer2DModel",
    "Kandinsky5Transformer3DModel", "MochiTransformer3DModel", "PRXTransformer2DModel", "QwenImage21Transformer2DModel",
    "WanTransformer3DModel", "ZImageTransformer2DModel")  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in COMMON else pytest.mark.slow)
        for name in sorted(set(CLASSES) - NO_SIZES)
    ],
)
def test_every_transformer_has_rules_that_its_weights_and_a_mesh_fit(name, mesh_of):
    model = on_meta(name)
    plan = diffusers_plan(model)
    attends = any(hasattr(module, "to_q") or hasattr(module, "to_query") for module in model.modules())
    assert bool(plan) or not attends
    report = audit(ShardingRules.from_model(model), dict(model.named_parameters()), mesh_of(tp=2))
    assert report.errors == ()
    if plan:
        assert report.bytes_per_device < report.total_bytes


def test_both_streams_are_cut_as_megatron_cuts_them_and_modulation_by_rows():
    actual = specs(hunyuan15())
    block = "transformer_blocks.1."
    for name in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj"):
        assert actual[f"{block}attn.{name}.weight"] == P("tp", None)
        assert actual[f"{block}attn.{name}.bias"] == P("tp")
    for name in ("attn.to_out.0", "attn.to_add_out", "ff.net.2", "ff_context.net.2", "norm1.linear"):
        assert actual[f"{block}{name}.weight"] == P(None, "tp")
        assert actual[f"{block}{name}.bias"] == P(None)
    for name in ("ff.net.0.proj", "ff_context.net.0.proj"):
        assert actual[f"{block}{name}.weight"] == P("tp", None)
    assert actual[f"{block}norm1_context.linear.weight"] == P(None, "tp")
    refiner = "context_embedder.token_refiner.refiner_blocks.0."
    assert actual[f"{refiner}attn.to_q.weight"] == P("tp", None)
    for name in ("x_embedder.proj", "proj_out", "norm_out.linear", "image_embedder.linear_1"):
        assert not any(actual[f"{name}.weight"])


@pytest.mark.slow
def test_modulation_is_a_third_of_a_hunyuan_video_15_and_nearly_all_of_it_is_shared_out(mesh_of):
    with torch.device("meta"):
        model = HunyuanVideo15Transformer3DModel()
    parameters = dict(model.named_parameters())
    modulation = sum(
        prod(value.shape) for name, value in parameters.items() if re.search(r"norm1\w*\.linear", name)
    )
    assert modulation / sum(map(torch.numel, parameters.values())) == pytest.approx(1 / 3, abs=0.01)
    report = audit(ShardingRules.from_model(model), parameters, mesh_of(tp=8))
    assert report.errors == ()
    assert report.bytes_per_device < report.total_bytes / 8 * 1.06


def test_heads_that_tp_does_not_divide_stay_whole_and_that_is_said(mesh_of, caplog):
    model = hunyuan15(num_attention_heads=3)
    parameters, mesh = dict(model.named_parameters()), mesh_of(tp=2)
    rules = ShardingRules.from_model(model)
    report = audit(rules, parameters, mesh)
    assert report.errors == ()
    placed = rules.shardings(parameters, mesh)
    assert "3 heads do not divide evenly over tp=2" in caplog.text
    assert not any(placed["transformer_blocks.0.attn.to_q.weight"].spec)
    assert not any(placed["transformer_blocks.0.attn.to_add_out.weight"].spec)
    assert placed["transformer_blocks.0.ff.net.0.proj.weight"].spec == P("tp", None)


def test_fewer_key_heads_are_counted_as_such():
    rules = ShardingRules.from_model(on_meta("Lumina2Transformer2DModel"))
    assert rules.rule("layers.0.attn.to_q.weight").heads == 2
    assert rules.rule("layers.0.attn.to_k.weight").heads == 1
    assert rules.rule("layers.0.feed_forward.linear_1.weight").heads is None


def test_a_class_with_a_plan_keeps_it_and_gets_its_modulation_shared_out():
    model = on_meta("QwenImageTransformer2DModel")
    plan = diffusers_plan(model)
    assert plan is not None
    own = QwenImageTransformer2DModel._tp_plan
    assert {key: plan[key] for key in own} == own
    assert set(plan) - set(own) == {
        "transformer_blocks.*.img_mod.1", "transformer_blocks.*.txt_mod.1",
    }  # fmt: skip


def test_fused_projections_stay_whole_and_that_is_said(caplog):
    with caplog.at_level(logging.INFO, "tpuport"):
        actual = specs(on_meta("JoyImageEditTransformer3DModel"))
    assert "img_attn_qkv" in caplog.text
    assert not any(actual["double_blocks.0.attn.img_attn_qkv.weight"])
    assert actual["double_blocks.0.img_mlp.net.0.proj.weight"] == P("tp", None)


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), AutoencoderKL()])
def test_there_is_no_plan_for_what_has_no_blocks(model):
    assert diffusers_plan(model) is None


def test_the_blocks_are_those_of_the_video():
    model = hunyuan15()
    assert transformer_blocks(model) == list(model.transformer_blocks)
    assert transformer_blocks(torch.nn.Linear(2, 2)) == []


def test_layouts_of_hidden_states(mesh_of):
    mesh = jax.make_mesh((2, 4), ("dp", "sp"), devices=jax.devices())
    assert hidden_spec((2, 7, 8), mesh) == P("dp", "sp", None)
    assert hidden_spec((1, 7, 8), mesh) == P(None, "sp", None)
    assert hidden_spec((2, 3, 8), mesh) == P("dp", None, None)
    assert text_spec((2, 7, 8), mesh) == P("dp", None, None)
    assert hidden_spec((2, 7, 8), mesh_of(tp=8)) == P(None, None, None)


@pytest.fixture(scope="module")
def ltx():
    """Model, inputs with 15 tokens, torch's output."""
    torch.manual_seed(0)
    model = LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=4, attention_head_dim=8, cross_attention_dim=32,
        num_layers=1, caption_channels=16,
    ).eval()  # fmt: skip
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, 4:] = 0
    inputs = {
        "hidden_states": torch.randn(2, 15, 8), "encoder_hidden_states": torch.randn(2, 6, 16),
        "timestep": torch.tensor([500, 500]), "encoder_attention_mask": mask, "num_frames": 1, "height": 3, "width": 5,
        "return_dict": False,
    }  # fmt: skip
    with torch.no_grad():
        return model, inputs, model(**inputs)[0].numpy()


def ported(model, inputs, **axes):
    """The output on a mesh, and the text of its program."""
    with torch.no_grad():
        copy = type(model).from_config(model.config).eval()
        copy.load_state_dict(model.state_dict())
    tpuport.port(copy, mesh=tpuport.create_mesh(**axes, devices=jax.devices()[: prod(axes.values())]))
    function = tpuport.compile(copy)
    program, arrays = function.program_of(**inputs)
    compiled = program.lower(arrays).compile()  # once, for the text and for the result
    return np.asarray(compiled(*program.inputs(arrays))[0]), compiled.as_text()


def collectives(text):
    kinds = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    actual = Counter()
    for result, kind in re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", text):
        actual.update((kind, shape) for shape in re.findall(r"\w+(\[[\d,]*\])", result))
    return actual


def test_an_uneven_sequence_is_shared_out_and_the_result_is_torchs(ltx):
    model, inputs, expected = ltx
    out, text = ported(model, inputs, dp=2, sp=2, tp=2)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    # 15 tokens over sp=2: eight on a device; the feed-forward of 4 * 32 over tp=2: 64.
    assert "f32[1,8,64]" in text or "f32[8,64]" in text
    assert not re.search(r"f32\[(2,|1,)?(15|16),(64|128)\]", text)
    # Self-attention, cross-attention and feed-forward add over tp, each for the device's own eight tokens.
    assert collectives(text)["all-reduce", "[1,8,32]"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["HunyuanVideoTransformer3DModel", "WanTransformer3DModel"])
def test_other_transformers_compute_the_same_on_a_mesh(name):
    torch.manual_seed(0)
    model, calls = tiny_diffusers.build(name)
    inputs = {**calls[0], "return_dict": False}
    with torch.no_grad():
        expected = model(**inputs)[0].numpy()
    out, _ = ported(model, inputs, dp=2, sp=2, tp=2)
    assert np.abs(out - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_a_block_costs_two_all_reduces_a_stream_and_one_for_each_modulation():
    torch.manual_seed(0)
    model = QwenImageTransformer2DModel(
        in_channels=16, out_channels=4, num_layers=3, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, axes_dims_rope=(4, 6, 6),
    ).eval()  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(2, 16, 16), "encoder_hidden_states": torch.randn(2, 8, 32),
        "encoder_hidden_states_mask": torch.ones(2, 8, dtype=torch.bool), "timestep": torch.tensor([0.5, 0.5]),
        "img_shapes": [[(1, 4, 4)]] * 2, "return_dict": False,
    }  # fmt: skip
    actual = collectives(ported(model, inputs, tp=2)[1])
    actual.pop(("all-gather", "[2,32]"), None)
    # The last block's text goes nowhere, and is not computed.
    assert actual == {
        ("all-reduce", "[2,16,32]"): 6, ("all-reduce", "[2,8,32]"): 4, ("all-reduce", "[2,192]"): 6,
    }  # fmt: skip
