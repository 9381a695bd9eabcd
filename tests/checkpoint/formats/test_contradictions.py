"""Checkpoints of every format that contradict themselves: one error that names the weight, before memory is taken."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from tpuport import PortError
from tpuport.checkpoint import load, loading

DOWN = "model.layers.0.mlp.down_proj"
STATE = "weight.quant_state.bitsandbytes__nf4"
GROUP, BLOCK = 32, 64


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def integers(*shape):
    return ones(*shape, dtype=torch.int32)


def bytes_of(state):
    return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


def gptq(outputs, inputs):
    return {
        "qweight": integers(inputs // 8, outputs),
        "qzeros": integers(inputs // GROUP, outputs // 8),
        "scales": ones(inputs // GROUP, outputs, dtype=torch.float16),
        "g_idx": torch.arange(inputs, dtype=torch.int32) // GROUP,
    }


def awq(outputs, inputs):
    return {
        "qweight": integers(inputs, outputs // 8),
        "qzeros": integers(inputs // GROUP, outputs // 8),
        "scales": ones(inputs // GROUP, outputs, dtype=torch.float16),
    }


def packed_int4(outputs, inputs):
    return {
        "weight_packed": integers(outputs, inputs // 8),
        "weight_shape": torch.tensor([outputs, inputs]),
        "weight_scale": ones(outputs, inputs // GROUP),
        "weight_zero_point": integers(outputs // 8, inputs // GROUP),
    }


def int8(outputs, inputs):
    zeros = torch.zeros(outputs, 1, dtype=torch.int8)
    return {
        "weight": ones(outputs, inputs, dtype=torch.int8),
        "weight_scale": ones(outputs, 1),
        "weight_zero_point": zeros,
    }


def float8(outputs, inputs):
    return {
        "weight": ones(outputs, inputs).to(torch.float8_e4m3fn),
        "weight_scale": ones(outputs, 1),
    }


def nvfp4(outputs, inputs):
    return {
        "weight_packed": ones(outputs, inputs // 2, dtype=torch.uint8),
        "weight_scale": ones(outputs, inputs // 16).to(torch.float8_e4m3fn),
        "weight_global_scale": ones(1),
    }


def packed_mxfp4(outputs, inputs):
    return {
        "weight_packed": ones(outputs, inputs // 2, dtype=torch.uint8),
        "weight_scale": ones(outputs, inputs // GROUP, dtype=torch.uint8),
    }


def fp8_blocks(outputs, inputs):
    return {
        "weight": ones(outputs, inputs).to(torch.float8_e4m3fn),
        "weight_scale_inv": ones(-(-outputs // GROUP), -(-inputs // GROUP)),
    }


def eight_bits(outputs, inputs):
    return {"weight": ones(outputs, inputs, dtype=torch.int8), "SCB": ones(outputs)}


def four_bits(outputs, inputs):
    """With scales that are quantised themselves."""
    count = outputs * inputs // BLOCK
    state = {
        "shape": [outputs, inputs], "blocksize": BLOCK, "quant_type": "nf4", "nested_blocksize": 8,
        "nested_offset": 0.1,
    }  # fmt: skip
    return {
        "weight": ones(outputs * inputs // 2, 1, dtype=torch.uint8),
        "weight.absmax": ones(count, dtype=torch.uint8),
        "weight.quant_map": ones(16),
        "weight.nested_absmax": ones(-(-count // 8)),
        "weight.nested_quant_map": ones(256),
        STATE: bytes_of(state),
    }


def torchao_int8(outputs, inputs):
    return {
        "_weight_qdata": ones(outputs, inputs, dtype=torch.int8),
        "_weight_scale": ones(outputs, inputs // GROUP),
        "_weight_zero_point": torch.zeros(outputs, inputs // GROUP, dtype=torch.int8),
    }


def torchao_float8(outputs, inputs):
    return {
        "_weight_qdata": ones(outputs, inputs).to(torch.float8_e4m3fn),
        "_weight_scale": ones(outputs, 1),
    }


def torchao_int4(outputs, inputs):
    return {
        "_weight_qdata": ones(outputs, inputs // 2, dtype=torch.int8),
        "_weight_scale": ones(inputs // GROUP, outputs),
        "_weight_zero_point": ones(inputs // GROUP, outputs),
    }


def compressed(form, **weights):
    group = {"targets": ["Linear"], "weights": {"symmetric": True} | weights, "format": form}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


def torchao(kind, **data):
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": kind, "_data": data}}}


PER_GROUP = {"_type": "PerGroup", "_data": {"group_size": GROUP}}
PER_ROW = {"_type": "PerRow", "_data": {"dim": -1}}
# The tensors of a weight, the config, and the class that torchao's header names.
FORMATS = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}, None),
    "gptq, desc_act": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}, None),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, None),
    "int4": (
        packed_int4,
        compressed(
            "pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP, symmetric=False
        ),
        None,
    ),
    "int8": (
        int8,
        compressed("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=False),
        None,
    ),
    "float8": (float8, compressed("float-quantized", num_bits=8, type="float", strategy="channel"), None),
    "nvfp4": (
        nvfp4,
        compressed(
            "nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16
        ),
        None,
    ),
    "mxfp4, packed": (
        packed_mxfp4,
        compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=GROUP),
        None,
    ),
    "fp8": (fp8_blocks, {"quant_method": "fp8", "weight_block_size": [GROUP, GROUP]}, None),
    "bitsandbytes int8": (eight_bits, {"quant_method": "bitsandbytes", "load_in_8bit": True}, None),
    "bitsandbytes nf4": (
        four_bits,
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        None,
    ),
    "torchao int8": (
        torchao_int8,
        torchao("IntxWeightOnlyConfig", granularity=PER_GROUP),
        "IntxUnpackedToInt8Tensor",
    ),
    "torchao float8": (torchao_float8, torchao("Float8WeightOnlyConfig", granularity=PER_ROW), "Float8Tensor"),
    "torchao int4": (torchao_int4, torchao("Int4WeightOnlyConfig", group_size=GROUP), "Int4Tensor"),
}  # fmt: skip


def slow(*values):
    """Of each format another value is tried by default."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


SIZES = [64, *slow(48, 0, "32")]


@pytest.fixture
def store(llama, linear_layers, write_checkpoint):
    """A function from a format, what replaces tensors of one weight, and a change of the config to a directory."""

    def run(form, changes=None, change_config=None, block=None):
        parts_of, config, kind = FORMATS[form]
        tensors = dict(llama.state_dict())
        metadata = {}
        for name, module in linear_layers(llama):
            del tensors[f"{name}.weight"]
            outputs, inputs = module.weight.shape
            parts = parts_of(outputs, inputs)
            tensors |= {f"{name}.{ending}": tensor for ending, tensor in parts.items()}
            size = inputs if form == "torchao float8" else GROUP
            header = {
                "_type": kind,
                "_data": {"block_size": block or [1, size]},
                "_tensor_data_names": [ending.removeprefix("_weight_") for ending in parts],
            }
            metadata[f"{name}.weight"] = json.dumps(header)
        tensors |= {f"{DOWN}.{ending}": tensor for ending, tensor in (changes or {}).items()}
        tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        config = json.loads(json.dumps(config))
        if change_config is not None:
            change_config(config)
        return write_checkpoint(tensors, config, metadata)

    return run


@pytest.fixture
def assert_refused(monkeypatch):
    """A function that loads a checkpoint, which must be one error with these words, and take no memory."""

    def check(directory, *words, **options):
        def read(*args):
            pytest.fail("memory is taken for a checkpoint that contradicts itself")

        monkeypatch.setattr(loading, "_read_arrays", read)
        with pytest.raises(PortError) as caught:
            load(AutoModelForCausalLM, directory, **options)
        for word in words:
            assert word in str(caught.value)

    return check


@pytest.mark.parametrize("form", FORMATS)
def test_without_a_contradiction_it_is_loaded(form, store):
    load(AutoModelForCausalLM, store(form))


SCALES = {
    # The ending, a shape that has nothing to do with the weight, and one that other groups would have.
    "gptq": ("scales", (3, 64), (2, 64)),
    "awq": ("scales", (3, 64), (2, 64)),
    "int4": ("weight_scale", (64, 3), (64, 2)),
    "int8": ("weight_scale", (63, 1), (64, 4)),
    "float8": ("weight_scale", (63, 1), (64, 4)),
    "nvfp4": ("weight_scale", (64, 3), (64, 4)),
    "mxfp4, packed": ("weight_scale", (64, 3), (64, 8)),
    "fp8": ("weight_scale_inv", (2, 3), (2, 2)),
    "bitsandbytes int8": ("SCB", (63,), (32,)),
    "bitsandbytes nf4": ("weight.absmax", (127,), (64,)),
    "torchao int8": ("_weight_scale", (64, 3), (64, 2)),
    "torchao float8": ("_weight_scale", (63, 1), (64, 4)),
    "torchao int4": ("_weight_scale", (3, 64), (2, 64)),
}


@pytest.mark.parametrize("kind", [0, 1], ids=["no groups", "other groups"])
@pytest.mark.parametrize("form", SCALES)
def test_a_scale_of_the_wrong_shape(form, kind, store, assert_refused):
    ending, *shapes = SCALES[form]
    own = FORMATS[form][0](64, 128)[ending]
    changes = {ending: ones(*shapes[kind]).to(own.dtype)}
    # So that nothing but the config contradicts it.
    for zeros in ("qzeros", "weight_zero_point", "_weight_zero_point"):
        if kind == 1 and form != "int8" and zeros in FORMATS[form][0](64, 128):
            zero_point = FORMATS[form][0](64, 64)[zeros]
            changes[zeros] = zero_point
    assert_refused(store(form, changes), DOWN, ending.removeprefix("weight."))


@pytest.mark.parametrize("form", SCALES)
def test_a_missing_scale(form, store, assert_refused):
    ending = SCALES[form][0]
    assert_refused(store(form, {ending: None}), DOWN)


ZERO_POINTS = {
    "gptq": "qzeros",
    "gptq, desc_act": "g_idx",
    "awq": "qzeros",
    "int4": "weight_zero_point",
    "int8": "weight_zero_point",
    "nvfp4": "weight_global_scale",
    "bitsandbytes nf4": "weight.nested_absmax",
    "torchao int8": "_weight_zero_point",
    "torchao int4": "_weight_zero_point",
}


@pytest.mark.parametrize("form", ZERO_POINTS)
def test_a_missing_zero_point(form, store, assert_refused):
    assert_refused(store(form, {ZERO_POINTS[form]: None}), DOWN, f"{ZERO_POINTS[form]} is missing")


def state_with(**changes):
    state = {
        "shape": [64, 128], "blocksize": BLOCK, "quant_type": "nf4", "nested_blocksize": 8, "nested_offset": 0.1
    }  # fmt: skip
    return {STATE: bytes_of(state | changes)}


GROUP_SIZES = {
    "gptq": lambda config, size: config.update(group_size=size),
    "awq": lambda config, size: config.update(group_size=size),
    "int4": lambda config, size: weights(config).update(group_size=size),
    "nvfp4": lambda config, size: weights(config).update(group_size=size),
    "mxfp4, packed": lambda config, size: weights(config).update(group_size=size),
    "fp8": lambda config, size: config.update(weight_block_size=[GROUP, size]),
}


def weights(config):
    return config["config_groups"]["group_0"]["weights"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", GROUP_SIZES)
def test_a_group_size_that_is_not_that_of_the_scales(form, size, store, assert_refused):
    directory = store(form, change_config=lambda config: GROUP_SIZES[form](config, size))
    assert_refused(directory, "quantization_config")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", ["torchao int8", "torchao int4"])
def test_a_block_of_torchao_that_is_not_that_of_the_scales(form, size, store, assert_refused):
    assert_refused(store(form, block=[1, size]), DOWN)


@pytest.mark.parametrize(
    "changes",
    [
        {"blocksize": 48},
        {"blocksize": 32},
        {"blocksize": 0},
        {"nested_blocksize": 0},
        {"nested_blocksize": None},
    ],
)
def test_a_block_size_that_is_not_that_of_the_scales(changes, store, assert_refused):
    assert_refused(store("bitsandbytes nf4", state_with(**changes)), DOWN)


BITS = {
    "gptq": lambda config, bits: config.update(bits=bits),
    "awq": lambda config, bits: config.update(bits=bits),
    "int4": lambda config, bits: weights(config).update(num_bits=bits),
    "int8": lambda config, bits: weights(config).update(num_bits=bits),
    "float8": lambda config, bits: weights(config).update(num_bits=bits),
    "nvfp4": lambda config, bits: weights(config).update(num_bits=bits),
    "mxfp4, packed": lambda config, bits: weights(config).update(num_bits=bits),
    "bitsandbytes nf4": lambda config, bits: config.update(bnb_4bit_quant_type=bits),
}


@pytest.mark.parametrize("bits", ["four", *slow(13, True)])
@pytest.mark.parametrize("form", BITS)
def test_unknown_bits(form, bits, store, assert_refused):
    directory = store(form, change_config=lambda config: BITS[form](config, bits))
    assert_refused(directory, "quantization_config")


# What is packed in another type, and other bits or another type in the config than in the files.
DTYPES = [
    ("gptq", {"qweight": ones(16, 64)}, None),
    ("gptq", {}, lambda config: config.update(bits=8)),
    ("gptq", {}, lambda config: config.update(bits=2)),
    ("awq", {"qweight": ones(128, 8, dtype=torch.int16)}, None),
    ("int4", {"weight_packed": ones(64, 16, dtype=torch.int64)}, None),
    ("int4", {"weight_packed": ones(64, 64, dtype=torch.uint8)}, None),
    ("int4", {}, lambda config: weights(config).update(num_bits=8)),
    ("int4", {}, lambda config: weights(config).update(type="float")),
    ("int8", {"weight": ones(64, 128).to(torch.float8_e4m3fn)}, None),
    ("int8", {}, lambda config: weights(config).update(type="float")),
    ("float8", {"weight": ones(64, 128, dtype=torch.int8)}, None),
    ("float8", {"weight": ones(64, 128)}, None),
    ("float8", {}, lambda config: weights(config).update(type="int")),
    ("nvfp4", {"weight_scale": ones(64, 8)}, None),
    ("nvfp4", {"weight_packed": integers(64, 16)}, None),
    ("mxfp4, packed", {"weight_scale": ones(64, 4)}, None),
    ("fp8", {"weight": ones(64, 128, dtype=torch.int8)}, None),
    ("fp8", {"weight": ones(64, 128).to(torch.float8_e8m0fnu)}, None),
    ("bitsandbytes int8", {"weight": ones(64, 128, dtype=torch.uint8)}, None),
    ("bitsandbytes int8", {}, lambda config: config.update(load_in_8bit=False, load_in_4bit=True)),
    ("bitsandbytes nf4", {"weight": ones(4096, 1, dtype=torch.int8)}, None),
    ("bitsandbytes nf4", {}, lambda config: config.update(load_in_4bit=False, load_in_8bit=True)),
    ("bitsandbytes nf4", {}, lambda config: config.update(bnb_4bit_quant_type="fp4")),
    ("torchao int8", {"_weight_qdata": ones(64, 128).to(torch.float8_e4m3fn)}, None),
    ("torchao float8", {"_weight_qdata": ones(64, 128, dtype=torch.int8)}, None),
    ("torchao int4", {"_weight_qdata": integers(64, 64)}, None),
]


@pytest.mark.parametrize(("form", "changes", "change_config"), DTYPES)
def test_a_packed_dtype_that_is_not_what_the_config_says(form, changes, change_config, store, assert_refused):
    assert_refused(store(form, changes, change_config), DOWN if changes else "model.layers.")
