"""tpuport's Llama and one written by hand in JAX: the same results, and programs that cost the same."""

import copy
import json

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from benchmarks import jax_llama_tp as rival
from benchmarks import topology
from tpuport import compat
from tpuport.topology import Decode, Prefill, compile_for

pytestmark = pytest.mark.filterwarnings("ignore")
TOPOLOGY, TP = "v5e:2x4", 8
SLOW_TASKS = ("decode 1", "decode 32", "decode 1, int8", "decode 32, int8", "prefill 4096, int8")
# With what tp=4 divides as tp=8 divides Llama-2-7B.
NARROW = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 4096,
}


@pytest.fixture(scope="module", autouse=True)
def enabled():
    tpuport.enable()
    yield
    tpuport.disable()


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.4, 0.4)
    return config, model


@pytest.mark.slow  # the committed comparison below
def test_the_rival_is_transformers_llama_prompt_and_steps(tiny) -> None:
    config, model = tiny
    shape, weights = rival.shape_of(config), rival.weights_of(model)
    tokens = torch.randint(0, 64, (2, 9))
    with torch.no_grad():
        expected = model(tokens).logits.numpy()
    first = jnp.asarray(tokens[:, :5].numpy())

    def attend(q, k, v):
        return rival.plain_attention(q, *(jnp.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v)))

    token, logits, cache = rival.prefill(weights, first, shape=shape, slots=12, attention=attend)
    np.testing.assert_allclose(logits, expected[:, 4], atol=2e-5)
    np.testing.assert_array_equal(token, expected[:, 4].argmax(-1))
    for place in range(5, 9):
        token, logits, cache = rival.decode(
            weights, jnp.asarray(tokens[:, place].numpy()), cache, shape=shape
        )
        np.testing.assert_allclose(logits, expected[:, place], atol=2e-5)
    assert int(cache.length) == 9


@pytest.mark.slow  # the rival's numbers below, and its bytes in a narrow layer in int8
def test_the_rival_in_int8_is_our_model_in_int8(tiny) -> None:
    config, model = tiny
    quantized = tpuport.port(copy.deepcopy(model), quantize="int8")
    weights = rival.weights_of(model)
    for layer, module in zip(weights["layers"], quantized.model.layers, strict=True):
        for child in (module.self_attn, module.mlp):
            for name, product in child.named_children():
                parts = getattr(product, "weight_quantized", None)
                if parts is not None:
                    values, scale = (compat.to_jax(part)[0] for part in (parts.values, parts.scale))
                    layer[name.removesuffix("_proj")] = rival.Int8(values, scale)
    assert isinstance(weights["layers"][1]["down"], rival.Int8)
    tokens = torch.randint(0, 64, (2, 9))
    _, logits, _ = rival.prefill(
        weights,
        jnp.asarray(tokens.numpy()),
        shape=rival.shape_of(config),
        slots=9,
        attention=lambda q, k, v: rival.plain_attention(
            q, *(jnp.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
        ),
    )
    expected = compat.to_numpy(
        compat.to_torch(compat.to_jax(quantized(compat.wrap(jnp.asarray(tokens))).logits))
    )
    np.testing.assert_allclose(logits, expected[:, -1], atol=2e-5)


@pytest.mark.slow  # the committed comparison below, and the bytes of a step in test_quantized_programs.py
def test_a_narrow_layer_costs_a_step_no_more_than_by_hand() -> None:
    """In int8, whose products, collectives and cache are those of a step in bfloat16."""
    where = {"topology": "v5e:2x2", "tp": 4, "quantize": "int8"}
    row = topology.compared(topology.llama(1, **NARROW), Decode(1, 1024), **where)
    assert topology.missed(row) == []
    assert row["ours"]["collectives"] == 2 + 1 + 2


@pytest.mark.slow  # the narrow layer
@pytest.mark.parametrize("name", SLOW_TASKS)
def test_two_layers_of_llama_cost_a_step_no_more_than_by_hand(name) -> None:
    row = topology.compare_task(topology.llama(2), name)
    assert topology.missed(row) == []
    assert row["ours"]["collectives"] == 2 * 2 + 1 + 2


@pytest.mark.slow
def test_a_prompt_keeps_no_layers_residual_stream_to_its_end() -> None:
    """Temporaries do not grow with the layers, FLOPs and collectives are those of hand-written JAX."""
    shape = {
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 8192,
    }
    task, where = Prefill(1, 2048), {"topology": "v5e:2x2", "tp": 4}
    row = topology.compared(topology.llama(4, **shape), task, **where)
    ratios = row["ratios"][topology.SAME_KERNEL]
    assert ratios["flops"] < 1.02
    assert ratios["collectives"] <= 1
    assert ratios["memory"] < 1.1
    assert row["ours"]["temporaries"] < 4 * 2048 * 1024 * 2, (
        "of eight outputs that could be kept, fewer than half"
    )


WIDTHS = {
    "Llama-2-7B": LlamaConfig(num_hidden_layers=2, max_position_embeddings=4096),
    "Llama-3-8B": LlamaConfig(
        num_hidden_layers=2, max_position_embeddings=8192, vocab_size=128_256, intermediate_size=14_336,
        num_key_value_heads=8, rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    ),
}  # fmt: skip


@pytest.mark.slow  # the arithmetic of test_zoo.py, and the collectives of test_compiling.py
@pytest.mark.parametrize("name", WIDTHS)
def test_bytes_of_a_chip_are_the_configs_arithmetic(name) -> None:
    config, task = WIDTHS[name], Decode(1, 1024)
    report = compile_for(lambda: LlamaForCausalLM(config), task, topology=TOPOLOGY, tp=TP, dtype="bfloat16")
    expected = topology.arithmetic(config, topology.Entry(name, TOPOLOGY, {"tp": TP}, task))
    assert report.memory.weights == pytest.approx(expected["weights"], rel=0.01)
    assert report.memory.cache == pytest.approx(expected["cache"], rel=0.01)
    kinds = {
        kind: sum(collective.count for collective in report.collectives if collective.kind == kind)
        for kind in ("all-reduce",)
    }
    assert sum(collective.count for collective in report.collectives) == 2 * 2 + 1 + 2
    assert kinds["all-reduce"] >= 2 * 2 + 1
    assert {collective.axes for collective in report.collectives} == {("tp",)}


@pytest.fixture(scope="module")
def committed():
    return json.loads(topology.OUT.read_text())


def test_the_committed_comparison_holds_what_is_said_of_every_task(committed) -> None:
    assert committed["rival"].keys() == topology.TASKS.keys() | topology.INT8_TASKS.keys()
    for name in ("prefill 4096", "prefill 4096, int8"):
        assert committed["rival"][name]["ratios"].keys() == {topology.SAME_KERNEL, topology.SPLASH}
    for row in committed["rival"].values():
        assert row["ours"]["collectives"] == 67
        assert topology.missed(row) == []


def test_the_committed_llamas_hold_what_is_said_of_them(committed) -> None:
    for name in ("Llama-2-7B prefill", "Llama-2-7B decode", "Llama-3-8B prefill", "Llama-3-8B decode"):
        row = committed["zoo"][name]
        assert row["fits"] is True
        assert row["memory"]["weights"] == pytest.approx(row["arithmetic"]["weights"], rel=0.01)
        assert row["memory"]["cache"] == pytest.approx(row["arithmetic"]["cache"], rel=0.01)
        assert sum(count for _, _, count, _, _ in row["collectives"]) == 67
        assert row["seconds"]["compile"] < 60
        assert row["resident_bytes"] < 8e9


@pytest.mark.slow
@pytest.mark.parametrize("name", topology.TASKS)
def test_the_whole_llama_costs_no_more_than_by_hand(name) -> None:
    assert topology.missed(topology.compared(topology.llama(), topology.TASKS[name])) == []
