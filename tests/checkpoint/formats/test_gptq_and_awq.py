"""GPTQ's and AWQ's checkpoints, packed a bit at a time, against the numbers of the formats' formulas."""

import copy

import jax
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tpuport import PortError
from tpuport.checkpoint import load
from tpuport.quantization import quantized_weights

DOWN = "model.layers.0.mlp.down_proj"


def pack_stream(values, bits, axis):
    """Integers of `bits` bits one after another along `axis`, the lowest bit first, in 32-bit integers."""
    moved = np.moveaxis(values, axis, -1).astype(np.uint64)
    stream = ((moved[..., None] >> np.arange(bits, dtype=np.uint64)) & 1).reshape(*moved.shape[:-1], -1, 32)
    words = (stream << np.arange(32, dtype=np.uint64)).sum(-1).astype(np.uint32).view(np.int32)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words, -1, axis)))


def draw(generator, inputs, outputs, bits, size, zero_low):
    """Values [K, O], zero points [G, O] and scales [G, O] of a random weight."""
    groups = inputs // size
    values = generator.integers(0, 1 << bits, (inputs, outputs))
    zeros = generator.integers(zero_low, 1 << bits, (groups, outputs))
    scales = generator.uniform(0.001, 0.02, (groups, outputs)).astype(np.float16)
    return values, zeros, scales


@pytest.fixture
def gptq(llama, linear_layers, write_checkpoint):
    """A function from settings to the directory of a checkpoint, its tensors, and the model that it stands for."""

    def build(bits, size, version="gptq", desc_act=False):
        generator = np.random.default_rng(0)
        model = copy.deepcopy(llama)
        tensors = dict(model.state_dict())
        for name, module in linear_layers(model):
            outputs, inputs = module.weight.shape
            group_size = inputs if size == -1 else size
            offset = 1 if version == "gptq" else 0
            values, zeros, scales = draw(generator, inputs, outputs, bits, group_size, offset)
            index = np.arange(inputs) // group_size
            if desc_act:
                index = generator.permutation(index)
            weight = scales[index].astype(np.float32) * (values - zeros[index])
            module.weight.data = torch.from_numpy(weight.T.astype(np.float32).copy())
            del tensors[f"{name}.weight"]
            tensors |= {
                f"{name}.qweight": pack_stream(values, bits, 0),
                f"{name}.qzeros": pack_stream(zeros - offset, bits, 1),
                f"{name}.scales": torch.from_numpy(scales),
                f"{name}.g_idx": torch.from_numpy(index.astype(np.int32)),
            }
        config = {
            "quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": desc_act,
            "checkpoint_format": version,
        }  # fmt: skip
        return write_checkpoint(tensors, config), tensors, model

    return build


@pytest.mark.parametrize(
    ("bits", "size", "options"),
    [
        pytest.param(4, 32, {}, marks=pytest.mark.slow),
        # The checkpoint on a mesh below.
        pytest.param(4, 32, {"desc_act": True}, marks=pytest.mark.slow),
        (4, 32, {"version": "gptq_v2"}),
        pytest.param(8, -1, {}, marks=pytest.mark.slow),
        (3, 32, {}),
        (2, 64, {"desc_act": True}),
    ],
)
def test_gptq(bits, size, options, gptq, assert_logits):
    directory, _, expected = gptq(bits, size, **options)
    model = assert_logits(directory, expected)
    zero_points = [weight.part_arrays["zero_point"] for _, _, _, weight in quantized_weights(model)]
    assert len(zero_points) == 7
    # The first version stores one less, so that the largest of four bits needs a fifth, and of eight a ninth.
    widest = {4: 8, 8: 16}.get(bits, 4) if options.get("version") != "gptq_v2" else 4
    assert {jax.dtypes.itemsize_bits(zero_point.dtype) for zero_point in zero_points} == {widest}


def test_gptq_on_a_mesh(gptq, assert_logits):
    from tpuport import create_mesh

    directory, _, expected = gptq(4, 32, desc_act=True)
    assert_logits(directory, expected, mesh=create_mesh(tp=2, devices=jax.devices()[:2]))


@pytest.fixture
def awq(llama, linear_layers, write_checkpoint):
    """The directory of a checkpoint, its tensors, its config, and the model that it stands for."""
    generator = np.random.default_rng(0)
    model = copy.deepcopy(llama)
    tensors = dict(model.state_dict())
    for name, module in linear_layers(model):
        outputs, inputs = module.weight.shape
        values, zeros, scales = draw(generator, inputs, outputs, 4, 32, 0)
        index = np.arange(inputs) // 32
        weight = (values - zeros[index]) * scales[index].astype(np.float32)
        module.weight.data = torch.from_numpy(weight.T.astype(np.float32).copy())
        del tensors[f"{name}.weight"]
        # In each eight, the nibble at position i holds output order[i].
        order = np.arange(outputs).reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].ravel()
        tensors |= {
            f"{name}.qweight": pack_stream(values[:, order], 4, 1),
            f"{name}.qzeros": pack_stream(zeros[:, order], 4, 1),
            f"{name}.scales": torch.from_numpy(scales),
        }
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
    return tensors, config, model


def test_awq(awq, write_checkpoint, assert_logits):
    tensors, config, expected = awq
    assert_logits(write_checkpoint(tensors, config), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "gemv"}, "in the version 'gemv'"),
        ({"bits": 3}, "AWQ of 3 bits"),
        ({"bits": None}, "AWQ of None bits"),
    ],
)
def test_other_kinds_of_awq_are_refused(changes, message, awq, write_checkpoint):
    tensors, config, _ = awq
    with pytest.raises(PortError, match=message) as caught:
        load(AutoModelForCausalLM, write_checkpoint(tensors, config | changes))
    assert "quantize='int4'" in caught.value.fix


@pytest.mark.parametrize(
    ("changes", "config", "message"),
    [
        ({"qzeros": None}, {}, "qzeros is missing"),
        ({"scales": torch.ones(3, 64)}, {}, r"scales has shape \[3, 64\], and needs \[4, 64\]"),
        (
            {"qzeros": torch.zeros(3, 8, dtype=torch.int32)},
            {},
            r"qzeros has shape \[3, 8\], and needs \[4, 'any'\]",
        ),
        ({"scales": torch.ones(4, 63)}, {}, r"scales has shape \[4, 63\]"),
        ({"qweight": torch.zeros(16, 64)}, {}, "qweight is float32"),
        ({"qweight": torch.zeros(16, 64, dtype=torch.int64)}, {}, "qweight is int64"),
        (
            {"qzeros": torch.zeros(4, 7, dtype=torch.int32)},
            {},
            "7 integers of 32 bits do not hold 64 numbers",
        ),
        ({"g_idx": torch.zeros(128, dtype=torch.int32)}, {}, "do not have 32 inputs each"),
        ({"g_idx": torch.zeros(127, dtype=torch.int32)}, {}, r"g_idx has shape \[127\]"),
        ({}, {"bits": 5}, "bits is 5"),
        ({}, {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
    ],
)
def test_tensors_that_do_not_fit_are_named(changes, config, message, gptq, write_checkpoint):
    _, tensors, _ = gptq(4, 32)
    for ending, tensor in changes.items():
        tensors[f"{DOWN}.{ending}"] = tensor
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq"}
    with pytest.raises(PortError, match=message) as caught:
        load(AutoModelForCausalLM, write_checkpoint(tensors, quantization | config))
    assert "quantization_config" in str(caught.value)
    if changes:
        assert DOWN in str(caught.value)
