"""Configs of quantised checkpoints: what the program holds, without any file of weights.

That the parts are those that `tpuport.load` makes, tests/checkpoint asserts for a checkpoint of each format.
"""

import pytest

from tpuport.errors import PortError
from tpuport.quantization import quantized_weights
from tpuport.topology import compile_for
from tpuport.topology.targets import resolve

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 512,
    "torch_dtype": "bfloat16",
}
PRODUCTS = 2 * (4 * 1024 * 1024 + 3 * 1024 * 2048)
# Of the embedding and the head, on each of four devices, and whole norms.
DENSE_BYTES = 2 * (2 * 512 * 1024 // 4 + 5 * 1024)
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def pack_quantized(**weights):
    settings = {
        "num_bits": 4,
        "type": "int",
        "strategy": "group",
        "group_size": 128,
        "symmetric": True,
    } | weights
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": settings}},
        "ignore": ["lm_head"],
    }


# `assert_described` of tests/checkpoint compares the parts, ../test_quantized_programs.py compiles such weights.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        (FP8, 8 + 32 / 128**2),
        (pack_quantized(), 4 + 16 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 32 / 128),
    ],
)
def test_a_chip_holds_and_moves_the_bytes_of_the_format(quantization, bits, tmp_path, tiny):
    config = tiny.write(tmp_path, LLAMA | {"quantization_config": quantization})
    [target] = resolve(config, task="decode", length=64)
    assert any(quantization["quant_method"] in note for note in target.notes)
    report = compile_for(target.build, target.inputs, topology="v5e:2x2", tp=4)
    assert report.memory.weights == pytest.approx(PRODUCTS * bits / 8 / 4 + DENSE_BYTES, rel=0.01)
    assert report.costs.hbm_bytes <= 1.05 * (report.memory.weights + report.memory.cache)


def test_weights_whose_blocks_would_cross_rows_are_wide(tmp_path, tiny):
    sizes = {"hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 1}
    four_bits = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    [target] = resolve(
        tiny.write(tmp_path, LLAMA | sizes | {"quantization_config": four_bits}), task="decode"
    )
    names = {name for name, *_ in quantized_weights(target.build())}
    # All others have 96 inputs, a block and a half.
    assert names == {"model.layers.0.mlp.down_proj.weight"}


@pytest.mark.parametrize(
    ("quantization", "says"),
    [
        (FP8 | {"weight_block_size": [128]}, "weight_block_size"),
        (pack_quantized(num_bits=9), "num_bits"),
        (pack_quantized(group_size="many"), "group_size"),
        (pack_quantized(strategy="row"), "strategy"),
        (pack_quantized() | {"config_groups": 3}, "does not describe"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*": {}}}, "dynamic"),
    ],
)
def test_what_cannot_be_derived_is_refused(quantization, says, tmp_path, tiny):
    config = tiny.write(tmp_path, LLAMA | {"quantization_config": quantization})
    [target] = resolve(config, task="decode")
    with pytest.raises(PortError, match=says) as raised:
        target.build()
    assert "quantization_config" in str(raised.value)


def test_quantising_what_is_quantised(tmp_path, tiny):
    config = tiny.write(tmp_path, LLAMA | {"quantization_config": FP8})
    [target] = resolve(config, task="decode")
    with pytest.raises(PortError, match="quantised already"):
        compile_for(target.build, target.inputs, topology="v5e:2x2", tp=4, quantize="int8")
