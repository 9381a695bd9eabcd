"""Quantised weights in compiled programs: what a chip holds and moves, and that no wide copy of a weight is written."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tpuport.checkpoint.formats.ggml_blocks import BLOCK_TYPES, quantized_tensor
from tpuport.checkpoint.lazy_tensors import LazyTensor
from tpuport.checkpoint.quantized_layout import empty_weight
from tpuport.errors import PortError
from tpuport.quantization import install
from tpuport.topology import Decode, compile_for, hlo, lower_for

HIDDEN, FEED_FORWARD, VOCABULARY, LAYERS, DEVICES = 1024, 4096, 512, 1, 4
PRODUCTS = LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * FEED_FORWARD)
# The embedding and the head, each divided over all devices, and whole norms.
DENSE_BYTES = 2 * (2 * VOCABULARY * HIDDEN // DEVICES + (2 * LAYERS + 1) * HIDDEN)
# Numbers that share a scale of two bytes.
GROUPS = {"int8": 2048, "int4": 128, "int4:32": 32, "fp8": 2048}
BITS = {"int8": 8, "int4": 4, "int4:32": 4, "fp8": 8}


def build():
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=FEED_FORWARD,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=8,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("int4:32", "fp8")]


def compile_decode(quantize=None, batch=1):
    step = Decode(batch=batch, max_cache_len=64)
    return compile_for(build, step, topology="v5e:2x2", tp=DEVICES, quantize=quantize, effort=0.0)


@pytest.fixture(scope="module")
def dense():
    return compile_decode()


def collectives(report):
    return {(item.kind, item.axes, item.count, item.nbytes) for item in report.collectives}


def operand_dtypes(report):
    """Of each product of the program."""
    program = hlo.parse(report.program.as_text())
    products = [item for item in program.instructions if item.operation in ("dot", "convolution")]
    return [{operand.arrays[0].dtype for operand in program.operands(item)[:2]} for item in products]


@pytest.mark.parametrize("scheme", [pytest.param("int8", marks=pytest.mark.slow), "int4", *SLOW])
def test_a_step_moves_the_bytes_of_the_format(scheme, dense):
    report = compile_decode(scheme)
    quantized = PRODUCTS * BITS[scheme] / 8 + PRODUCTS / GROUPS[scheme] * 2
    assert report.memory.weights == pytest.approx(quantized / DEVICES + DENSE_BYTES, rel=0.01)
    assert report.parameters == dense.parameters
    assert report.costs.hbm_bytes <= 1.05 * (report.memory.weights + report.memory.cache)
    assert collectives(report) == collectives(dense)
    assert report.costs.model_flops == dense.costs.model_flops
    assert report.advice == ()
    # Making numbers of four bits wide takes longer than reading them.
    in_integers = sum(dtypes <= {"s4", "s8"} for dtypes in operand_dtypes(report))
    assert in_integers == (7 * LAYERS if scheme.startswith("int4") else 0)


def build_gguf(kind):
    """A function that builds the model with linear layers in blocks of a GGUF file."""
    block = BLOCK_TYPES[kind]

    def build_quantized():
        model = build()
        for module in list(model.model.layers.modules()):
            if isinstance(module, torch.nn.Linear):
                outputs, inputs = module.weight.shape
                stored = LazyTensor((outputs, inputs // block.inputs * block.block_bytes), np.dtype(np.uint8))
                source = quantized_tensor(stored, kind, jnp.dtype(jnp.bfloat16))
                install(module, "weight", empty_weight(source, torch.bfloat16))
        return model

    return build_quantized


# Bits of a weight: of the value itself, and its share of what 16, 32 or 256 of them have in common.
# The step in int4 above; tests/compat/test_digit_products.py multiplies such blocks.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        ("Q4_K", 4 + (8 + 8) / 32 + (16 + 16) / 256),
        ("Q8_0", 8 + 16 / 32),
        ("Q6_K", 8 + 8 / 16 + 16 / 256),
    ],
)
def test_blocks_of_a_gguf_file_are_read_once(kind, bits, dense):
    step = Decode(batch=1, max_cache_len=64)
    report = compile_for(build_gguf(kind), step, topology="v5e:2x2", tp=DEVICES, effort=0.0)
    in_integers = sum(dtypes <= {"s4", "u4", "s8"} for dtypes in operand_dtypes(report))
    assert in_integers == 7 * LAYERS
    assert report.memory.weights == pytest.approx(PRODUCTS * bits / 8 / DEVICES + DENSE_BYTES, rel=0.01)
    assert report.costs.hbm_bytes <= 1.05 * (report.memory.weights + report.memory.cache)
    assert collectives(report) == collectives(dense)


@pytest.mark.slow  # tests/compat/test_digit_products.py multiplies them
def test_w8a8_multiplies_integers():
    report, dense = compile_decode("w8a8", batch=64), compile_decode(batch=64)
    weights = PRODUCTS * (1 + 2 / GROUPS["int8"]) / DEVICES + DENSE_BYTES
    assert report.memory.weights == pytest.approx(weights, rel=0.01)
    assert {"s8"} not in operand_dtypes(dense)
    assert operand_dtypes(report).count({"s8"}) == 7 * LAYERS
    # Integers are multiplied at twice the rate, and those products are nearly all there is.
    assert report.estimate.compute < 0.6 * dense.estimate.compute
    assert report.costs.hbm_bytes < 0.8 * dense.costs.hbm_bytes


class FeedForward(torch.nn.Module):
    """Two products, each of whose weights is larger than VMEM when it is wide."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8192, 28672, bias=False)
        self.down = torch.nn.Linear(28672, 8192, bias=False)

    def forward(self, x):
        return self.down(self.up(x))


def wide_buffers(report):
    """Arrays of at least a quarter of a weight's size that an instruction writes to HBM."""
    return [
        (instruction.operation, str(array))
        for instruction in hlo.parse(report.program.as_text()).instructions
        # A copy that is started has its source in its type.
        if not instruction.is_fused and not instruction.operation.endswith(("parameter", "bitcast", "-start"))
        for array in instruction.arrays
        if array.dtype in ("bf16", "f32") and array.size >= 8192 * 28672 // 4 and array.space == hlo.HBM
    ]


@pytest.mark.parametrize("scheme", ["int8", pytest.param("int4", marks=pytest.mark.slow), *SLOW])
def test_products_of_several_rows_write_no_wide_weight(scheme):
    x = torch.empty(16, 8192, dtype=torch.bfloat16, device="meta")
    report = compile_for(
        FeedForward, {"x": x}, topology="v5e:1x1", dtype="bfloat16", quantize=scheme, effort=0.0
    )
    assert wide_buffers(report) == []
    assert report.costs.hbm_bytes <= 1.05 * report.memory.weights


def test_groups_that_devices_would_cut():
    with pytest.raises(PortError, match="within a group"):
        lower_for(build, Decode(batch=1, max_cache_len=128), topology="v5e:2x4", tp=8, quantize="int4:256")


def test_a_model_is_quantised_once():
    model = build()
    step = Decode(batch=1, max_cache_len=128)
    lower_for(model, step, topology="v5e:2x2", tp=DEVICES, quantize="int8")
    with pytest.raises(PortError, match="other quantised weights"):
        lower_for(model, step, topology="v5e:2x2", tp=DEVICES)
