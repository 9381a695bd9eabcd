"""bitsandbytes' checkpoints, against the numbers of the format's formulas."""

import copy
import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tpuport import PortError
from tpuport.checkpoint import load
from tpuport.quantization import quantized_weights

EIGHT_BITS = {"quant_method": "bitsandbytes", "load_in_8bit": True}
FOUR_BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
STATE = "quant_state.bitsandbytes__nf4"
DOWN = "model.layers.0.mlp.down_proj"


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
            scales = generator.uniform(0.01, 0.05, count // block).astype(np.float32)
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
            weight = table[numbers] * np.repeat(scales, block)
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
        largest = module.weight.data.abs().amax(1)
        values = (module.weight.data / largest[:, None] * 127).round().to(torch.int8)
        module.weight.data = values.float() * largest[:, None] / 127
        tensors |= {
            f"{name}.weight": values,
            f"{name}.SCB": largest,
            f"{name}.weight_format": torch.tensor(0, dtype=torch.uint8),
        }
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


def test_blocks_that_cross_rows(four_bits, write_checkpoint):
    tensors, _ = four_bits(block=256)
    with pytest.raises(PortError, match="would cross its rows"):
        load(AutoModelForCausalLM, write_checkpoint(tensors, FOUR_BITS))


def test_other_kinds_are_refused(four_bits, write_checkpoint):
    tensors, _ = four_bits()
    for config in ({"quant_method": "bitsandbytes"}, FOUR_BITS | {"bnb_4bit_quant_type": "int5"}):
        with pytest.raises(PortError, match="neither load_in_8bit nor load_in_4bit"):
            load(AutoModelForCausalLM, write_checkpoint(tensors, config))
