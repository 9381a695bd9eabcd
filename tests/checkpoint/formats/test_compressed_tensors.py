"""Checkpoints that the compressed-tensors library writes, against what it decompresses."""

import copy
import json

import pytest
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    QuantizationStatus,
    apply_quantization_config,
)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tpuport import PortError
from tpuport.checkpoint import load
from tpuport.quantization import quantized_weights

CASES = {
    "int8 by output": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "int8 by weight": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "tensor"}),
    "int8 with zero points": (
        "int-quantized",
        {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False},
    ),
    "fp8 by output": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "fp8 in blocks": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 16]},
    ),
    "int4 in groups": (
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
    ),
    "int4 with zero points": (
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False},
    ),
    "int3 in groups": (
        "pack-quantized",
        {"num_bits": 3, "type": "int", "strategy": "group", "group_size": 32},
    ),
    "mxfp4": (
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
    ),
    "int8 packed": ("pack-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
}


def extremes(weight, args):
    """The least and largest weight of each group that shares a scale."""
    outputs, inputs = weight.shape
    match args.strategy:
        case "tensor":
            return weight.min().reshape(1), weight.max().reshape(1)
        case "channel":
            return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
        case "group":
            grouped = weight.view(outputs, -1, args.group_size)
            return grouped.amin(-1), grouped.amax(-1)
    rows, columns = args.block_structure
    blocks = weight.view(outputs // rows, rows, inputs // columns, columns)
    return blocks.amin((1, 3)), blocks.amax((1, 3))


@pytest.fixture
def compress(llama, write_checkpoint):
    """A function from a case to the directory of its checkpoint, and the model that the library decompresses."""

    def run(form, settings):
        args = QuantizationArgs(**{"symmetric": True} | settings)
        scheme = QuantizationScheme(targets=["Linear"], weights=args, format=form)
        config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"], format=form)
        model = copy.deepcopy(llama)
        apply_quantization_config(model, config)
        for module in model.modules():
            if hasattr(module, "weight_scale"):
                scale, zero_point = calculate_qparams(*extremes(module.weight.data, args), args)
                module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))
                if hasattr(module, "weight_zero_point"):
                    module.weight_zero_point.data.copy_(zero_point.reshape(module.weight_zero_point.shape))
                module.quantization_status = QuantizationStatus.FROZEN
        compressor = ModelCompressor(quantization_config=config)
        compressor.compress_model(model)
        written = json.loads(config.model_dump_json()) | {
            "quant_method": "compressed-tensors",
            "format": form,
        }
        directory = write_checkpoint(model.state_dict(), written)
        compressor.decompress_model(model)
        # Numbers of FP4 come back in bfloat16, which those of MXFP4 fit into.
        return directory, model.float()

    return run


# Each way of scaling, of zero points and of packing once.
_SAMPLE = ("int8 with zero points", "fp8 in blocks", "int4 in groups", "int4 with zero points")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in _SAMPLE else pytest.mark.slow) for case in CASES]
)
def test_logits_are_those_of_the_decompressed_model(case, compress, assert_logits):
    directory, expected = compress(*CASES[case])
    model = assert_logits(directory, expected)
    weights = list(quantized_weights(model))
    assert len(weights) == 7
    assert all(weight.values.dtype.itemsize == 1 for *_, weight in weights)
    assert "quantization_config" not in vars(model.config)


LEVELS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


@pytest.fixture
def nvfp4(llama, linear_layers, write_checkpoint):
    """A function from a change of the tensors to a checkpoint, and the model that it stands for by the formula."""

    def run(change=lambda tensors: None):
        model = copy.deepcopy(llama)
        tensors = dict(model.state_dict())
        for name, module in linear_layers(model):
            weight = module.weight.data
            grouped = weight.view(weight.shape[0], -1, 16)
            factor = 448 * 6 / weight.abs().max()
            scale = (grouped.abs().amax(-1) / 6 * factor).to(torch.float8_e4m3fn)
            step = (scale.float() / factor)[..., None]
            indices = ((grouped / step).abs()[..., None] - LEVELS).abs().argmin(-1)
            numbers = LEVELS[indices] * grouped.sign() * step
            codes = (indices + 8 * (grouped < 0)).to(torch.uint8).view(weight.shape)
            del tensors[f"{name}.weight"]
            tensors |= {
                f"{name}.weight_packed": codes[:, ::2] | (codes[:, 1::2] << 4),
                f"{name}.weight_scale": scale,
                f"{name}.weight_global_scale": factor.reshape(1),
                f"{name}.input_global_scale": torch.ones(1),
            }
            module.weight.data = numbers.view(weight.shape)
        change(tensors)
        weights = {
            "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True
        }  # fmt: skip
        form = "nvfp4-pack-quantized"
        groups = {"group_0": {"targets": ["Linear"], "weights": weights, "format": form}}
        quantization = {
            "quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]
        }  # fmt: skip
        return write_checkpoint(tensors, quantization), model

    return run


def test_nvfp4(nvfp4, assert_logits):
    directory, expected = nvfp4()
    assert_logits(directory, expected)


def test_nvfp4_is_what_the_library_decompresses(nvfp4):
    """In bfloat16, to which it rounds."""
    directory, expected = nvfp4()
    config = json.loads((directory / "config.json").read_text())["quantization_config"]
    scheme = QuantizationScheme(**config["config_groups"]["group_0"])
    name = "model.layers.0.mlp.down_proj"
    tensors = load_file(directory / "model.safetensors")
    state = {ending: tensors[f"{name}.{ending}"] for ending in ("weight_packed", "weight_scale")}
    state["weight_global_scale"] = tensors[f"{name}.weight_global_scale"]
    weight = NVFP4PackedCompressor.decompress(state, scheme)["weight"]
    torch.testing.assert_close(weight.float(), expected.get_submodule(name).weight, rtol=2**-7, atol=0)


@pytest.mark.parametrize(
    ("ending", "tensor", "message"),
    [
        ("weight_global_scale", None, "weight_global_scale is missing"),
        ("weight_global_scale", torch.zeros(1), "weight_global_scale is zero"),
        ("weight_global_scale", torch.ones(2), "weight_global_scale has shape"),
        ("weight_scale", torch.ones(64, 3), r"weight_scale has shape \[64, 3\].* needs \[64, 8\]"),
        ("weight_scale", torch.ones(63, 8), "weight_scale has shape"),
        ("weight_zero_point", torch.ones(64, 8), "zero_point is not supported"),
    ],
)
def test_nvfp4_that_does_not_fit_is_named(ending, tensor, message, nvfp4):
    name = f"model.layers.0.mlp.down_proj.{ending}"

    def change(tensors):
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor

    with pytest.raises(PortError, match=message):
        load(AutoModelForCausalLM, nvfp4(change)[0])


def test_on_a_mesh(compress, assert_logits):
    import jax

    from tpuport import create_mesh

    directory, expected = compress(*CASES["int4 with zero points"])
    assert_logits(directory, expected, mesh=create_mesh(tp=2, devices=jax.devices()[:2]))


def spoil(directory, change):
    from safetensors.torch import load_file, save_file

    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


DOWN = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        (
            "int4 in groups",
            lambda tensors: tensors.update({f"{DOWN}.weight_scale": torch.ones(64, 3)}),
            r"weight_scale has shape \[64, 3\]",
        ),
        (
            "int4 in groups",
            lambda tensors: tensors.update({f"{DOWN}.weight_scale": torch.ones(63, 4)}),
            r"weight_scale has shape \[63, 4\]",
        ),
        ("int4 in groups", lambda tensors: tensors.pop(f"{DOWN}.weight_shape"), "weight_shape is missing"),
        (
            "int4 in groups",
            lambda tensors: tensors.update({f"{DOWN}.weight_packed": torch.zeros(64, 16)}),
            "weight_packed is float32",
        ),
        (
            "int4 in groups",
            lambda tensors: tensors.update({f"{DOWN}.weight_packed": torch.zeros(64, 15, dtype=torch.int32)}),
            "15 integers of 32 bits for 128 inputs",
        ),
        (
            "int4 with zero points",
            lambda tensors: tensors.update(
                {f"{DOWN}.weight_zero_point": torch.zeros(3, 4, dtype=torch.int32)}
            ),
            "3 integers of 32 bits",
        ),
        (
            "int8 by output",
            lambda tensors: tensors.update({f"{DOWN}.weight": torch.zeros(64, 128)}),
            "weight is float32",
        ),
        ("int8 by output", lambda tensors: tensors.pop(f"{DOWN}.weight"), "weight is missing"),
        (
            "int8 with zero points",
            lambda tensors: tensors.update({f"{DOWN}.weight_zero_point": torch.zeros(9, dtype=torch.int8)}),
            r"weight_zero_point has shape \[9\]",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(case, change, message, compress):
    directory, _ = compress(*CASES[case])
    spoil(directory, change)
    with pytest.raises(PortError, match=message) as caught:
        load(AutoModelForCausalLM, directory)
    assert DOWN in str(caught.value)
    assert "quantization_config" in str(caught.value)


def test_unknown_bits_and_formats(compress):
    directory, _ = compress(*CASES["int4 in groups"])
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] = 5
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(PortError, match="do not fit num_bits"):
        load(AutoModelForCausalLM, directory)
    config["quantization_config"]["format"] = "marlin-24"
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(PortError, match="marlin-24"):
        load(AutoModelForCausalLM, directory)


@pytest.mark.parametrize(
    "weights",
    [
        [4],
        "int4",
        {"num_bits": "four"},
        {"num_bits": 4, "block_structure": 3},
        {"num_bits": 4, "block_structure": [0, 0]},
        {"num_bits": 4, "block_structure": [1, 2, 3]},
        {"num_bits": -4},
        {"num_bits": [4]},
    ],
)
def test_settings_that_mean_nothing(weights, compress):
    directory, _ = compress(*CASES["int4 in groups"])
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"] = weights
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(PortError) as caught:
        load(AutoModelForCausalLM, directory)
    assert "quantization_config" in str(caught.value)
