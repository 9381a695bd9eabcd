"""Experts in few bits in compiled programs: what a chip holds and moves, and that no wide copy of one is written."""

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from tpuport.topology import Decode, compile_for, hlo

HIDDEN, INNER, EXPERTS, LAYERS, VOCABULARY, DEVICES = 1024, 768, 16, 2, 512, 4
EXPERT_WEIGHTS = LAYERS * EXPERTS * 3 * HIDDEN * INNER
ATTENTION_WEIGHTS = LAYERS * 4 * HIDDEN * HIDDEN
# The embedding and the head, each divided over all devices, and whole routers.
DENSE_BYTES = 2 * (2 * VOCABULARY * HIDDEN // DEVICES + LAYERS * HIDDEN * EXPERTS)
# With the scales, of which int8 has few.
BITS = {"int8": 8, "int4:32": 4 + 16 / 32}


def build():
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        moe_intermediate_size=INNER,
        num_experts=EXPERTS,
        num_experts_per_tok=4,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=128,
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
