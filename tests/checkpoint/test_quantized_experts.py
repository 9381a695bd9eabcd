"""Experts in stacked form in few bits: quantised on their way, and from checkpoints that have each expert by itself."""

import copy
import json

import jax
import numpy as np
import pytest
import torch
from jax.sharding import PartitionSpec
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, Qwen3MoeConfig

import tpuport
from tpuport import compat
from tpuport.checkpoint import load
from tpuport.quantization import quantized_weights

slow = pytest.mark.slow
IDS = torch.arange(18).reshape(2, 9) % 96
EXPERTS, BLOCK = 8, 32
SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "dtype": "float32",
}
CONFIGS = {
    "qwen3_moe": Qwen3MoeConfig(**SIZES, num_experts=EXPERTS, moe_intermediate_size=96),
    # Its experts' weights are transposed, and have biases.
    "gpt_oss": GptOssConfig(**SIZES, num_local_experts=EXPERTS),
}


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    return build(request.param)


def build(name):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
    for parameter in model.parameters():
        # Experts are what the logits depend on.
        if parameter.ndim == 3:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def parts(model):
    return {
        (name, part): compat.as_jax(buffer)
        for name, _, _, weight in quantized_weights(model)
        for part, buffer in weight.parts.items()
    }


@pytest.mark.parametrize(
    ("scheme", "tp"),
    [pytest.param("int8", 4, marks=slow), pytest.param("int4:16", 1, marks=slow), ("int4:16", 4)],
)
def test_logits_are_those_of_the_numbers_that_the_values_stand_for(scheme, tp, model, mesh_of_size):
    ported = tpuport.port(copy.deepcopy(model), mesh=mesh_of_size(tp=tp), quantize=scheme)
    logits = tpuport.to_cpu(ported(input_ids=IDS).logits)
    values = parts(ported)["model.layers.0.mlp.experts.down_proj", "values"]
    assert values.shape[0] == EXPERTS
    assert values.sharding.spec == PartitionSpec("tp" if tp > 1 else None, None, None, None)
    dense = tpuport.to_cpu(ported)
    experts, original = (m.model.layers[0].mlp.experts for m in (dense, model))
    assert experts.down_proj.shape == original.down_proj.shape
    torch.testing.assert_close(logits, dense(input_ids=IDS).logits, rtol=1e-5, atol=1e-5)
    difference = (experts.gate_up_proj - original.gate_up_proj).abs().max()
    assert 0 < difference < original.gate_up_proj.abs().max() / 6


# Experts of Qwen 3 in logits above; those of gpt-oss have biases too.
@pytest.mark.slow  # the logits above, and generation in test_quantized_models.py
@pytest.mark.parametrize("model", ["qwen3_moe", "gpt_oss"], indirect=True)
def test_generation_is_that_of_the_dense_model(model, mesh_of_size):
    ported = tpuport.port(copy.deepcopy(model), mesh=mesh_of_size(tp=2), quantize="int8")
    tokens = tpuport.generate(ported, IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=5)
    dense = tpuport.to_cpu(ported)
    expected = dense.generate(IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=5, do_sample=False)
    assert torch.equal(torch.as_tensor(tokens), expected)


def test_loading_gives_what_porting_gives(model, mesh_of_size, tmp_path):
    model.save_pretrained(tmp_path)
    mesh = mesh_of_size(tp=2)
    loaded = load(AutoModelForCausalLM, tmp_path, mesh=mesh, quantize="int4:16")
    expected = parts(tpuport.port(copy.deepcopy(model), mesh=mesh, quantize="int4:16"))
    arrays = parts(loaded)
    assert arrays.keys() == expected.keys()
    assert ("model.layers.0.mlp.experts.gate_up_proj", "values") in arrays
    for key, array in arrays.items():
        np.testing.assert_array_equal(np.asarray(array), np.asarray(expected[key]))
        assert array.sharding == expected[key].sharding


@pytest.fixture
def fp8_directory(tmp_path):
    """A checkpoint whose experts' weights are stored one by one, in FP8 with a scale for each block."""
    build("qwen3_moe").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if "_proj.weight" in name]:
        weight = tensors[name]
        rows, columns = (size // BLOCK for size in weight.shape)
        blocks = weight.reshape(rows, BLOCK, columns, BLOCK)
        scale = blocks.abs().amax((1, 3)) / 448
        values = (blocks / scale[:, None, :, None]).reshape(weight.shape)
        tensors |= {name: values.to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}
    save_file(tensors, file, {"format": "pt"})
    quantization = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "dequantize": True}
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    return tmp_path


@pytest.mark.parametrize("tp", [pytest.param(1, marks=slow), 2])
def test_experts_that_are_stored_one_by_one_in_fp8(tp, fp8_directory, mesh_of_size, assert_described):
    expected = AutoModelForCausalLM.from_pretrained(fp8_directory, dtype=torch.float32).eval()
    model = load(AutoModelForCausalLM, fp8_directory, mesh=mesh_of_size(tp=tp))
    logits = tpuport.to_cpu(tpuport.compile(model)(IDS, use_cache=False).logits)
    torch.testing.assert_close(logits, expected(IDS).logits, rtol=1e-5, atol=1e-5)
    values = parts(model)["model.layers.0.mlp.experts.gate_up_proj", "values"]
    assert values.dtype == jax.numpy.float8_e4m3fn
    assert values.shape == (EXPERTS, 64 // BLOCK, BLOCK, 2 * 96)
    assert_described(fp8_directory, model)
