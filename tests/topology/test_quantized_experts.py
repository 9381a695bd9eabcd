"""Experts in few bits in compiled programs: what a chip holds and moves, and that no wide copy of one is written."""

import jax
import jax.numpy as jnp
import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tpuport.checkpoint.formats.mxfp4 import count_scales
from tpuport.checkpoint.lazy_tensors import LazyTensor
from tpuport.checkpoint.quantized_layout import empty_weight
from tpuport.checkpoint.quantized_tensors import QuantizedTensor
from tpuport.compat import float4_products
from tpuport.quantization import install
from tpuport.topology import Decode, compile_for, compiled, described, hlo

HIDDEN, INNER, EXPERTS, LAYERS, VOCABULARY, DEVICES = 1024, 768, 16, 1, 512, 4
EXPERT_WEIGHTS = LAYERS * EXPERTS * 3 * HIDDEN * INNER
ATTENTION_WEIGHTS = LAYERS * 4 * HIDDEN * HIDDEN
# The embedding and the head, each divided over all devices, and whole routers.
DENSE_BYTES = 2 * (2 * VOCABULARY * HIDDEN // DEVICES + LAYERS * HIDDEN * EXPERTS)
# Of its 30 groups of inputs, as of GPT-OSS's 90, scales do not fill tiles.
MXFP4_INNER = 960
# With the scales, of which int8 has few.
BITS = {"int8": 8, "int4:32": 4 + 16 / 32}


SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_experts_per_tok": 4, "num_hidden_layers": LAYERS,
    "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip


def build():
    config = Qwen3MoeConfig(
        moe_intermediate_size=INNER,
        num_experts=EXPERTS,
        **SIZES,
    )
    return Qwen3MoeForCausalLM(config).to(torch.bfloat16)


def compile_decode(quantize=None):
    step = Decode(batch=1, max_cache_len=64)
    return compile_for(build, step, topology="v5e:2x2", tp=DEVICES, quantize=quantize)


def collectives(report):
    return {(item.kind, item.axes, item.count, item.nbytes) for item in report.collectives}


def wide_buffers(report):
    """Arrays of at least half of a weight of one expert that an instruction computes in HBM."""
    return [
        (instruction.operation, str(array))
        for instruction in hlo.parse(report.program.as_text()).instructions
        if not instruction.is_fused and not instruction.operation.endswith(("parameter", "bitcast", "-start"))
        for array in instruction.results
        if array.dtype in ("bf16", "f32") and array.size >= HIDDEN * INNER // 2 and array.space == hlo.HBM
    ]


SCHEMES = ["int8", pytest.param("int4:32", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=SCHEMES)
def quantized_step(request):
    return request.param, compile_decode(request.param)


@pytest.mark.slow  # experts in MXFP4 below, and test_quantized_programs.py
def test_a_step_moves_the_bytes_of_the_format(quantized_step):
    scheme, report = quantized_step
    quantized = (EXPERT_WEIGHTS + ATTENTION_WEIGHTS) * BITS[scheme] / 8 / DEVICES
    assert report.memory.weights == pytest.approx(quantized + DENSE_BYTES, rel=0.01)
    assert report.costs.hbm_bytes <= 1.05 * (report.memory.weights + report.memory.cache)
    assert wide_buffers(report) == []


@pytest.mark.slow  # tests/topology/test_quantized_programs.py, for products that are not of experts
def test_collectives_stay_as_they_are(quantized_step):
    _, report = quantized_step
    assert collectives(report) == collectives(compile_decode())


def build_mxfp4():
    """GPT-OSS with experts as they are published."""
    config = GptOssConfig(
        intermediate_size=MXFP4_INNER,
        num_local_experts=EXPERTS,
        **SIZES,
    )
    model = GptOssForCausalLM(config).to(torch.bfloat16)
    for layer in model.model.layers:
        experts = layer.mlp.experts
        for name in ("gate_up_proj", "down_proj"):
            count, inputs, outputs = getattr(experts, name).shape
            groups = inputs // 32
            values = LazyTensor((count, groups, 32, outputs), jnp.dtype(jnp.float4_e2m1fn))
            scale = LazyTensor((count, count_scales(groups), outputs), jnp.dtype(jnp.float8_e8m0fnu))
            source = QuantizedTensor(
                (count, inputs, outputs),
                jnp.dtype(jnp.bfloat16),
                values,
                scale,
                scheme="mxfp4",
                transposed=True,
            )
            install(experts, name, empty_weight(source, torch.bfloat16))
    return model


# What a chip holds and moves is compiled quickly with "int8", and the kernel has tests of its own.
@pytest.mark.slow
def test_experts_in_mxfp4_are_multiplied_as_they_are():
    step = Decode(batch=1, max_cache_len=64)
    report = compile_for(build_mxfp4, step, topology="v5e:2x2", tp=DEVICES)
    expert_bytes = LAYERS * EXPERTS * 3 * HIDDEN * MXFP4_INNER * (4 + 8 / 32) / 8
    biases = LAYERS * EXPERTS * 2 * (2 * MXFP4_INNER + HIDDEN)
    others = 2 * (ATTENTION_WEIGHTS + 2 * VOCABULARY * HIDDEN) + biases
    assert report.memory.weights == pytest.approx((expert_bytes + others) / DEVICES, rel=0.01)
    [kernel] = report.costs.kernels
    assert kernel.name == float4_products.NAME
    # At most all of a token's experts are on one device.
    assert kernel.count == LAYERS * 2 * 4
    assert kernel.hbm_bytes == pytest.approx(expert_bytes / DEVICES, rel=0.01)
    assert wide_buffers(report) == []
    instructions = hlo.parse(report.program.as_text()).instructions
    copied = {array.dtype for item in instructions if item.operation == "copy" for array in item.results}
    assert not any(dtype.startswith("f8") for dtype in copied)


# Left to itself, the compiler would fetch all experts into VMEM at once for the products with two of them.
def test_experts_in_mxfp4_stay_in_hbm():
    inputs, outputs = 256, 512

    def multiply(rows, projection, values, scale, chosen):
        hidden = rows @ projection
        products = [float4_products.multiply_float4(hidden, values, scale, chosen[i], 2) for i in range(2)]
        return sum(products)

    program = compiled(
        multiply,
        jax.ShapeDtypeStruct((1, inputs), jnp.bfloat16),
        jax.ShapeDtypeStruct((inputs, inputs), jnp.bfloat16),
        jax.ShapeDtypeStruct((4, inputs // 32, 32, outputs), jnp.float4_e2m1fn),
        jax.ShapeDtypeStruct((4, inputs // 32, outputs), jnp.float8_e8m0fnu),
        jax.ShapeDtypeStruct((2,), jnp.int32),
        topology=described("v6e:1x1"),
    )
    instructions = hlo.parse(program.as_text()).instructions
    arrays = [array for instruction in instructions for array in instruction.results]
    spaces = [array.space for array in arrays if array.dtype.startswith("f4")]
    assert spaces
    assert set(spaces) == {hlo.HBM}
