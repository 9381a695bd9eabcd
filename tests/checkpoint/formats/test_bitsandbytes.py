"""bitsandbytes' checkpoints, against the numbers of the format's formulas."""

import copy
import json

import numpy as np
import pytest
import torch
from diffusers import FluxTransformer2DModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from tpuport import PortError
from tpuport.checkpoint import load, to_cpu
from tpuport.quantization import quantized_weights

EIGHT_BITS = {"quant_method": "bitsandbytes", "load_in_8bit": True}
FOUR_BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
STATE = "quant_state.bitsandbytes__nf4"
DOWN = "model.layers.0.mlp.down_proj"


def eight_bits(weight):
    """The numbers that a weight is rounded to, and its tensors in a checkpoint."""
    largest = weight.abs().amax(1)
    values = (weight / largest[:, None] * 127).round().to(torch.int8)
    stored = {"weight": values, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return values.float() * largest[:, None] / 127, stored


@pytest.fixture
def four_bits(llama, linear_layers):
    """A function to the tensors of a checkpoint, and the model that they stand for."""

    def build(nested=False, block=64):
        generator = np.random.default_rng(0)
        model = copy.deepcopy(llama)
        tensors = dict(model.state_dict())
        table = np.linspace(-1, 1, 16).astype(np.float32) ** 3
        for name, module in linear_layers(model):
            count = module.weight.numel()
            numbers = generator.integers(0, 16, count)
            scales = generator.uniform(0.01, 0.05, -(-count // block)).astype(np.float32)
            state = {
                "quant_type": "nf4",
                "blocksize": block,
                "dtype": "float32",
                "shape": list(module.weight.shape),
            }
            parts = {"absmax": scales}
            if nested:
                nested_table = np.linspace(-1, 1, 256).astype(np.float32)
                nested_scales = generator.uniform(0.01, 0.02, -(-len(scales) // 8)).astype(np.float32)
                indices = generator.integers(0, 256, len(scales)).astype(np.uint8)
                parts = {
                    "absmax": indices,
                    "nested_absmax": nested_scales,
                    "nested_quant_map": nested_table.copy(),
                }
                state |= {"nested_blocksize": 8, "nested_dtype": "float32", "nested_offset": 0.03}
                scales = nested_table[indices] * np.repeat(nested_scales, 8)[: len(scales)] + np.float32(0.03)
            weight = table[numbers] * np.repeat(scales, block)[:count]
            module.weight.data = torch.from_numpy(weight.reshape(module.weight.shape))
            parts |= {
                "quant_map": table.copy(),
                STATE: np.frombuffer(json.dumps(state).encode(), np.uint8).copy(),
            }
            # The first of two numbers is in the high bits.
            packed = (numbers[0::2] << 4 | numbers[1::2]).astype(np.uint8).reshape(-1, 1)
            tensors[f"{name}.weight"] = torch.from_numpy(packed)
            tensors |= {f"{name}.weight.{part}": torch.from_numpy(array) for part, array in parts.items()}
        return tensors, model

    return build


@pytest.mark.parametrize("nested", [pytest.param(False, marks=pytest.mark.slow), True])
def test_four_bits(nested, four_bits, write_checkpoint, assert_logits):
    tensors, expected = four_bits(nested)
    model = assert_logits(write_checkpoint(tensors, FOUR_BITS), expected)
    assert sum(1 for _ in quantized_weights(model)) == 7


def test_eight_bits(llama, linear_layers, write_checkpoint, assert_logits):
    model = copy.deepcopy(llama)
    tensors = dict(model.state_dict())
    for name, module in linear_layers(model):
        module.weight.data, stored = eight_bits(module.weight.data)
        tensors |= {f"{name}.{ending}": tensor for ending, tensor in stored.items()}
    assert_logits(write_checkpoint(tensors, EIGHT_BITS), model)
    tensors[f"{DOWN}.SCB"] = torch.ones(63)
    with pytest.raises(PortError, match=r"SCB has shape \[63\]"):
        load(AutoModelForCausalLM, write_checkpoint(tensors, EIGHT_BITS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight.absmax": torch.ones(3)}, r"absmax has shape \[3\]"),
        ({"weight.quant_map": torch.ones(15)}, r"quant_map has shape \[15\]"),
        ({"weight": torch.zeros(4095, 1, dtype=torch.uint8)}, r"weight has shape \[4095, 1\]"),
        ({"weight": torch.zeros(4096, 1, dtype=torch.int8)}, "weight is int8"),
        ({f"weight.{STATE}": torch.zeros(5, dtype=torch.uint8)}, "cannot be read"),
        ({f"weight.{STATE}": torch.tensor(list(b"[1]"), dtype=torch.uint8)}, "not an object"),
        ({f"weight.{STATE}": torch.tensor(list(b"{}"), dtype=torch.uint8)}, "no shape of a matrix"),
    ],
)
def test_tensors_that_do_not_fit_are_named(changes, message, four_bits, write_checkpoint):
    tensors, _ = four_bits()
    tensors |= {f"{DOWN}.{ending}": tensor for ending, tensor in changes.items()}
    with pytest.raises(PortError, match=message) as caught:
        load(AutoModelForCausalLM, write_checkpoint(tensors, FOUR_BITS))
    assert DOWN in str(caught.value)


@pytest.mark.parametrize("nested", [False, True])
def test_weights_whose_blocks_cross_rows_are_made_wide(nested, four_bits, write_checkpoint):
    # The last block of k_proj, 32 x 64 numbers, is not full.
    tensors, expected = four_bits(nested, block=192)
    model = to_cpu(load(AutoModelForCausalLM, write_checkpoint(tensors, FOUR_BITS)))
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-6, atol=1e-7)


def test_a_component_of_diffusers(tmp_path, linear_layers):
    model = FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=0,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 6, 6),
    )
    model.save_pretrained(tmp_path)
    tensors = model.state_dict()
    quantised = [(name, layer) for name, layer in linear_layers(model) if name != "proj_out"]
    for name, layer in quantised:
        layer.weight.data, stored = eight_bits(layer.weight.data)
        tensors |= {f"{name}.{ending}": tensor for ending, tensor in stored.items()}
    save_file(tensors, tmp_path / "diffusion_pytorch_model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    # What diffusers writes beside.
    config["quantization_config"] = EIGHT_BITS | {
        "_load_in_8bit": True,
        "llm_int8_skip_modules": ["proj_out"],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = load(FluxTransformer2DModel, tmp_path)
    assert {name for name, *_ in quantized_weights(loaded)} == {f"{name}.weight" for name, _ in quantised}
    torch.testing.assert_close(to_cpu(loaded).state_dict(), model.state_dict(), rtol=1e-6, atol=1e-7)


def test_other_kinds_are_refused(four_bits, write_checkpoint):
    tensors, _ = four_bits()
    for config in ({"quant_method": "bitsandbytes"}, FOUR_BITS | {"bnb_4bit_quant_type": "int5"}):
        with pytest.raises(PortError, match="neither load_in_8bit nor load_in_4bit"):
            load(AutoModelForCausalLM, write_checkpoint(tensors, config))
