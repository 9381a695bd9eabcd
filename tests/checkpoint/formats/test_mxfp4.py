"""MXFP4 checkpoints of GPT-OSS, against transformers' own dequantised model."""

import copy
import json
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig

from tpuport import PortError, compat
from tpuport.checkpoint import load
from tpuport.checkpoint.formats.mxfp4 import count_scales
from tpuport.quantization import quantized_weights
from tpuport.sharding.quantized_parts import part_shardings

EXPERTS = 4
CONFIG = GptOssConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    num_local_experts=EXPERTS,
    num_experts_per_tok=2,
    dtype="float32",
)
DOWN = "model.layers.0.mlp.experts.down_proj"


@pytest.fixture
def write_mxfp4(tmp_path):
    """A function from tensors to replace to a directory with random experts in MXFP4."""

    def write(changes=None, config=CONFIG):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
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


@pytest.mark.parametrize("tp", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_transformers_dequantises_to_the_same(tp, write_mxfp4, mesh_of_size, assert_logits):
    directory = write_mxfp4()
    expected = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    model = assert_logits(directory, expected, mesh=mesh_of_size(tp=tp))
    weights = {name: weight for name, _, _, weight in quantized_weights(model)}
    assert len(weights) == 2
    assert compat.as_jax(weights[DOWN].values).dtype == jnp.float4_e2m1fn
    assert compat.as_jax(weights[DOWN].scale).dtype == jnp.float8_e8m0fnu
    assert weights[DOWN].shape == (EXPERTS, 96, 64)


def test_scales_fill_tiles_of_a_tpu(write_mxfp4, mesh_of_size, assert_logits):
    """30 groups of inputs have 32 scales, so that XLA puts each expert's into tiles of its own."""
    config = copy.deepcopy(CONFIG)
    config.intermediate_size = 30 * 32
    directory = write_mxfp4(config=config)
    expected = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    model = assert_logits(directory, expected, mesh=mesh_of_size(tp=2))
    [down] = [weight for name, _, _, weight in quantized_weights(model) if name == DOWN]
    assert down.values.shape == (EXPERTS, 30, 32, 64)
    assert down.scale.shape == (EXPERTS, 32, 64)
    # Neither for two groups, of which 30 more would be most of the weight.
    assert [count_scales(groups) for groups in (2, 29, 30, 64, 90)] == [2, 29, 32, 64, 96]


@pytest.mark.parametrize("axis", [1, 2])
def test_groups_are_divided_whatever_scales_there_are(axis):
    """The last scales are not used, so that they are divided as groups are in no way."""
    parts = {"values": (4, 30, 32, 64), "scale": (4, 32, 64)}
    weight: Any = SimpleNamespace(
        shape=(4, 960, 64),
        columns=960,
        segments=1,
        transposed=True,
        parts={name: SimpleNamespace(shape=shape) for name, shape in parts.items()},
    )
    mesh = jax.make_mesh((3,), ("tp",), devices=jax.devices()[:3], axis_types=(AxisType.Auto,))
    spec = PartitionSpec(*("tp" if index == axis else None for index in range(3)))
    shardings = part_shardings(weight, NamedSharding(mesh, spec))
    expected = {1: PartitionSpec(None, None, None), 2: PartitionSpec(None, None, "tp")}
    assert shardings["scale"].spec == expected[axis]


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
