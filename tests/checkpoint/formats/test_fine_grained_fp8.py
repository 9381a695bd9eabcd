"""Checkpoints in FP8 with scales for blocks, against the numbers of the format's formula."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from tpuport import PortError
from tpuport.checkpoint import load

METHOD = {"quant_method": "fp8", "weight_block_size": [32, 48]}


def quantize(weight, rows, columns):
    """A weight in FP8, its scales, and the numbers that they stand for: a block at a time."""
    outputs, inputs = weight.shape
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-outputs // rows), -(-inputs // columns))
    numbers = torch.empty_like(weight)
    for row in range(scales.shape[0]):
        for column in range(scales.shape[1]):
            block = (
                slice(row * rows, (row + 1) * rows),
                slice(column * columns, (column + 1) * columns),
            )
            scale = weight[block].abs().max() / 448
            values[block] = (weight[block] / scale).to(torch.float8_e4m3fn)
            scales[row, column] = scale
            numbers[block] = values[block].float() * scale
    return values, scales, numbers


@pytest.fixture
def store(llama, linear_layers):
    """A function from the sizes of blocks to the tensors of a checkpoint, and the model that it stands for."""

    def run(rows=None, columns=None):
        model = copy.deepcopy(llama)
        tensors = dict(model.state_dict())
        for name, module in linear_layers(model):
            outputs, inputs = module.weight.shape
            values, scales, numbers = quantize(module.weight.data, rows or outputs, columns or inputs)
            tensors |= {f"{name}.weight": values, f"{name}.weight_scale_inv": scales}
            module.weight.data = numbers
        return tensors, model

    return run


@pytest.fixture
def fp8(store):
    """Blocks do not divide all weights."""
    return store(32, 48)


def test_logits_are_those_of_the_formula(fp8, write_checkpoint, assert_logits):
    tensors, expected = fp8
    assert_logits(write_checkpoint(tensors, METHOD), expected)


def test_transformers_dequantises_to_the_same(store, write_checkpoint, assert_logits):
    """Blocks divide all weights, as they must for transformers."""
    tensors, _ = store(32, 32)
    config = {"quant_method": "fp8", "weight_block_size": [32, 32], "dequantize": True}
    directory = write_checkpoint(tensors, config)
    expected = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    assert_logits(directory, expected)


def test_a_scale_for_the_whole_weight(store, write_checkpoint, assert_logits):
    tensors, expected = store()
    assert_logits(write_checkpoint(tensors, {"quant_method": "fp8"}), expected)


DOWN = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("changes", "config", "message"),
    [
        ({f"{DOWN}.weight_scale_inv": torch.ones(2, 2)}, METHOD, r"weight_scale_inv has shape \[2, 2\]"),
        ({f"{DOWN}.weight": torch.ones(64, 128, dtype=torch.int8)}, METHOD, "weight is int8"),
        ({f"{DOWN}.weight": torch.ones(64, 128)}, METHOD, "weight is float32"),
        ({}, METHOD | {"weight_block_size": [0, 16]}, "not two positive integers"),
        ({}, METHOD | {"weight_block_size": "32"}, "not two positive integers"),
        ({}, {"quant_method": "fp8"}, "the config names no blocks"),
        ({}, {"quant_method": "spqr"}, r"quantised \(spqr\), which is not supported"),
        ({}, {"bits": 4}, "unknown method"),
        ({}, ["fp8"], "not an object"),
    ],
)
def test_what_does_not_fit_is_named(changes, config, message, fp8, write_checkpoint):
    tensors, _ = fp8
    directory = write_checkpoint(tensors | changes, config)
    with pytest.raises(PortError, match=message) as caught:
        load(AutoModelForCausalLM, directory)
    assert "quantization_config" in str(caught.value)


def test_quantising_what_is_quantised(fp8, write_checkpoint):
    tensors, _ = fp8
    with pytest.raises(PortError, match="quantised already"):
        load(AutoModelForCausalLM, write_checkpoint(tensors, METHOD), quantize="int8")
