"""MXFP4 checkpoints of GPT-OSS, against transformers' own dequantised model."""

import json

import jax.numpy as jnp
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig

from tpuport import PortError, compat
from tpuport.checkpoint import load
from tpuport.quantization import quantized_weights

EXPERTS = 4
CONFIG = GptOssConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    num_local_experts=EXPERTS,
    num_experts_per_tok=2,
    dtype="float32",
)
DOWN = "model.layers.1.mlp.experts.down_proj"


@pytest.fixture
def write_mxfp4(tmp_path):
    """A function from tensors to replace to a directory with random experts in MXFP4."""

    def write(changes=None):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(CONFIG).save_pretrained(tmp_path)
        file = tmp_path / "model.safetensors"
        tensors = load_file(file)
        for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
            experts, inputs, outputs = tensors.pop(name).shape
            shape = (experts, outputs, inputs // 32)
            tensors[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.randint(120, 125, shape, dtype=torch.uint8)
        tensors |= changes or {}
        tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        save_file(tensors, file, {"format": "pt"})
        config = json.loads((tmp_path / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "mxfp4", "dequantize": True}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write


@pytest.mark.parametrize("tp", [1, 2])
def test_transformers_dequantises_to_the_same(tp, write_mxfp4, mesh_of_size, assert_logits):
    directory = write_mxfp4()
    expected = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    model = assert_logits(directory, expected, mesh=mesh_of_size(tp=tp))
    weights = {name: weight for name, _, _, weight in quantized_weights(model)}
    assert len(weights) == 4
    assert compat.as_jax(weights[DOWN].values).dtype == jnp.float4_e2m1fn
    assert compat.as_jax(weights[DOWN].scale).dtype == jnp.float8_e8m0fnu
    assert weights[DOWN].shape == (EXPERTS, 96, 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{DOWN}_blocks": torch.zeros(EXPERTS, 64, 3, 8, dtype=torch.uint8)}, "down_proj_blocks has shape"),
        ({f"{DOWN}_scales": torch.zeros(EXPERTS, 64, 2, dtype=torch.uint8)}, "down_proj_scales has shape"),
        ({f"{DOWN}_scales": torch.zeros(EXPERTS, 64, 3)}, "down_proj_scales is float32"),
        ({f"{DOWN}_scales": None}, "down_proj_scales is missing"),
        ({f"{DOWN}_blocks": None}, "down_proj"),
    ],
)
def test_what_does_not_fit_is_named(changes, message, write_mxfp4):
    with pytest.raises(PortError, match=message):
        load(AutoModelForCausalLM, write_mxfp4(changes))
