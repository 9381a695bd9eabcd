"""Keys and values in int8 in compiled programs: what a step moves, and that no wide copy of a cache is written."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport.errors import PortError
from tpuport.topology import Decode, compile_for, hlo

# Arrays larger than VMEM, where XLA would put them otherwise.
ROWS, COLUMNS, HEADS, WIDTH, DEVICES = 16, 65536, 8, 128, 4
CONFIG = LlamaConfig(
    vocab_size=512, hidden_size=1024, intermediate_size=1024, num_hidden_layers=1, num_attention_heads=16,
    num_key_value_heads=HEADS, head_dim=WIDTH, max_position_embeddings=COLUMNS,
)  # fmt: skip


def build():
    return LlamaForCausalLM(CONFIG).to(torch.bfloat16)


def compile_decode(kv_cache=None):
    step = Decode(batch=ROWS, max_cache_len=COLUMNS, kv_cache=kv_cache)
    return compile_for(build, step, topology="v5e:2x2", tp=DEVICES, effort=0.0)


def collectives(report):
    return {(item.kind, item.axes, item.count, item.nbytes) for item in report.collectives}


def wide_buffers(report):
    """Arrays of at least a quarter of keys that an instruction computes in wide numbers."""
    return [
        (instruction.operation, str(array))
        for instruction in hlo.parse(report.program.as_text()).instructions
        if not instruction.is_fused
        for array in instruction.results
        if array.dtype in ("bf16", "f32") and array.size >= ROWS * COLUMNS * HEADS // DEVICES * WIDTH // 4
    ]


@pytest.fixture(scope="module")
def int8_step():
    return compile_decode("int8")


@pytest.mark.slow  # test_quantized_programs.py; tests/generation/test_int8_cache.py has the cache itself
def test_a_step_moves_the_bytes_of_the_cache(int8_step):
    nbytes = tpuport.kv_cache_bytes(CONFIG, ROWS, COLUMNS, torch.bfloat16, kv_cache="int8")
    assert int8_step.memory.cache == nbytes // DEVICES
    assert int8_step.costs.hbm_bytes <= 1.05 * (int8_step.memory.weights + int8_step.memory.cache)
    assert wide_buffers(int8_step) == []


@pytest.mark.slow  # the bytes of the cache above
def test_what_differs_from_a_step_with_a_wide_cache_is_its_bytes(int8_step):
    dense = compile_decode()
    assert int8_step.memory.cache / dense.memory.cache == pytest.approx(130 / 256)
    assert collectives(int8_step) == collectives(dense)
    # The search itself sees what it looks for.
    assert wide_buffers(dense) != []


def test_unknown_formats():
    with pytest.raises(PortError, match="kv_cache"):
        Decode(kv_cache="int3")
