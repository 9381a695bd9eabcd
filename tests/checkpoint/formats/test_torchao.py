"""torchao's weights in safetensors, against the numbers of the format's formulas."""

import copy
import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tpuport import PortError
from tpuport.checkpoint import formats, load
from tpuport.checkpoint.lazy_tensors import StoredTensor
from tpuport.checkpoint.quantized_tensors import QuantizedTensor
from tpuport.checkpoint.safetensors_files import take_inventory

GROUP = 32
PER_ROW = {"_type": "PerRow", "_version": 1, "_data": {"dim": -1}}
PER_TENSOR = {"_type": "PerTensor", "_version": 1, "_data": {}}
PER_GROUP = {"_type": "PerGroup", "_version": 1, "_data": {"group_size": GROUP}}


def shared(weight, group, reduce):
    """One number for each group of inputs of an output, [O, groups]."""
    return reduce(weight.reshape(weight.shape[0], -1, group), -1)


def spread(numbers, group):
    return numbers.repeat_interleave(group, 1)


def int8_rows(weight):
    scale = weight.abs().amax(1, keepdim=True) / 127
    zero_point = torch.zeros_like(scale, dtype=torch.int8)
    values = (weight / scale).round().to(torch.int8)
    return {"qdata": values, "scale": scale, "zero_point": zero_point}, values * scale


def float8_rows(weight):
    scale = weight.abs().amax(1, keepdim=True) / 448
    values = (weight / scale).to(torch.float8_e4m3fn)
    return {"qdata": values, "scale": scale}, values.float() * scale


def float8_whole(weight):
    scale = weight.abs().amax().reshape(1, 1) / 448
    values = (weight / scale).to(torch.float8_e4m3fn)
    return {"qdata": values, "scale": scale}, values.float() * scale


def int4_unpacked(weight):
    """Asymmetric: integers from -8 to 7, each in a byte."""
    low, high = shared(weight, GROUP, torch.amin), shared(weight, GROUP, torch.amax)
    scale = (high - low) / 15
    zero_point = (-8 - low / scale).round().to(torch.int8)
    values = ((weight / spread(scale, GROUP)).round() + spread(zero_point, GROUP)).clamp(-8, 7).to(torch.int8)
    numbers = (values.float() - spread(zero_point, GROUP)) * spread(scale, GROUP)
    return {"qdata": values, "scale": scale, "zero_point": zero_point}, numbers


def int4_packed(weight):
    """Integers from -8 to 7 in two's complement, two in a byte, and zero points that are added to the product."""
    low, high = shared(weight, GROUP, torch.amin), shared(weight, GROUP, torch.amax)
    scale = (high - low) / 15
    added = low + 8 * scale
    values = ((weight - spread(added, GROUP)) / spread(scale, GROUP)).round().clamp(-8, 7).to(torch.int8)
    packed = (values[:, 1::2] << 4) | (values[:, ::2] & 0xF)
    numbers = values * spread(scale, GROUP) + spread(added, GROUP)
    return {"qdata": packed, "scale": scale.T, "zero_point": added.T}, numbers


CASES = {
    "int8": (int8_rows, "Int8Tensor", "Int8WeightOnlyConfig", {"granularity": PER_ROW, "group_size": None}),
    "float8": (float8_rows, "Float8Tensor", "Float8WeightOnlyConfig", {"granularity": PER_ROW}),
    "float8 of a tensor": (
        float8_whole,
        "Float8Tensor",
        "Float8DynamicActivationFloat8WeightConfig",
        {"granularity": [PER_ROW, PER_TENSOR]},
    ),
    "int4 in bytes": (
        int4_unpacked,
        "IntxUnpackedToInt8Tensor",
        "IntxWeightOnlyConfig",
        {"granularity": PER_GROUP},
    ),
    "int4": (int4_packed, "Int4Tensor", "Int4WeightOnlyConfig", {"group_size": GROUP}),
}


@pytest.fixture
def store(llama, linear_layers, write_checkpoint):
    """A function from a case to a checkpoint, and the model that it stands for."""

    def run(case, change=None):
        quantize, kind, config, data = CASES[case]
        model = copy.deepcopy(llama)
        tensors = dict(model.state_dict())
        metadata = {name: json.dumps({"_type": "Tensor"}) for name in tensors}
        for name, module in linear_layers(model):
            parts, module.weight.data = quantize(module.weight.data)
            del tensors[f"{name}.weight"]
            tensors |= {f"{name}._weight_{part}": tensor for part, tensor in parts.items()}
            metadata[f"{name}.weight"] = json.dumps({"_type": kind, "_data": {}})
        metadata["tensor_names"] = json.dumps(list(metadata))
        if change is not None:
            change(tensors, metadata)
        quant_type = {"default": {"_type": config, "_version": 2, "_data": data}}
        quantization = {"quant_method": "torchao", "quant_type": quant_type, "modules_to_not_convert": None}
        return write_checkpoint(tensors, quantization, metadata), model

    return run


# Their packing and their scales are those of the others.
SLOW_CASES = {"int4", "float8 of a tensor"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case in SLOW_CASES else []) for case in CASES]
)
def test_logits_are_those_of_the_formula(case, store, assert_logits):
    directory, expected = store(case)
    assert_logits(directory, expected)


DOWN = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_read_before_its_shard(case, store, monkeypatch):
    """What is read before would stay on the host until all weights are there, beside them."""
    directory, _ = store(case)
    config = json.loads((directory / "config.json").read_text())["quantization_config"]
    inventory = take_inventory(directory, "model")
    monkeypatch.setattr(StoredTensor, "read_into", None)
    adapted = formats.adapt(config, inventory.tensors, np.dtype(np.float32), str(directory))
    assert any(isinstance(tensor, QuantizedTensor) for tensor in adapted.values())


def drop(name):
    return lambda tensors, metadata: (tensors.pop(name, None), metadata.pop(name, None))


def put(name, tensor):
    return lambda tensors, metadata: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        ("int8", drop(f"{DOWN}._weight_scale"), "_weight_scale is missing"),
        (
            "int8",
            put(f"{DOWN}._weight_scale", torch.ones(3, 1)),
            r"\[3, 1\], which does not divide \[64, 128\]",
        ),
        ("int8", put(f"{DOWN}._weight_zero_point", torch.ones(1, 1, dtype=torch.int8)), "other blocks"),
        ("int8", put(f"{DOWN}._weight_qdata", torch.ones(64, 128, dtype=torch.int32)), "int32"),
        ("int8", put(f"{DOWN}._weight_act_pre_scale", torch.ones(128)), "act_pre_scale"),
        ("int8", drop(f"{DOWN}.weight"), "header of its file"),
        ("int4", put(f"{DOWN}._weight_scale", torch.ones(3, 64)), "3 groups"),
        ("int4", drop(f"{DOWN}._weight_zero_point"), "_weight_zero_point is missing"),
    ],
)
def test_what_does_not_fit_is_named(case, change, message, store):
    directory, _ = store(case, change)
    with pytest.raises(PortError, match=message) as raised:
        load(AutoModelForCausalLM, directory)
    assert DOWN in str(raised.value)


def test_other_classes_are_refused_by_name(store):
    def change(tensors, metadata):
        metadata[f"{DOWN}.weight"] = json.dumps({"_type": "NVFP4Tensor"})

    with pytest.raises(PortError, match="NVFP4Tensor of torchao is not supported"):
        load(AutoModelForCausalLM, store("int8", change)[0])
