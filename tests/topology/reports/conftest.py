"""Made-up reports: of a program that fits, of one that does not, and of a model that cannot be traced."""

import dataclasses
import json
from typing import Any

import pytest

from tpuport.attention.call_report import Call
from tpuport.topology.compile_messages import CompileResult
from tpuport.topology.compile_report import (
    Buffer,
    Collective,
    Costs,
    Estimate,
    Failure,
    Finding,
    InstructionTime,
    Kernel,
    LineTime,
    Memory,
    ModuleTime,
    Profile,
    Report,
    Scanned,
    Source,
)
from tpuport.topology.step_trace import CoreSpan, StepTrace, TracedComputation, TracedInstruction, Transfer

GIB = 1 << 30
HOSTILE = (
    '<img src="http://127.0.0.1:9/x.png" onerror="document.title=1"><script>document.title="ran"</script>'
)
LINE = Source("/srv/me/llama/modeling_llama.py", 248, "LlamaAttention.forward", "out = self.o_proj(out)")
EMBED = Source("/srv/me/llama/modeling_llama.py", 402, "LlamaModel.forward", "x = self.embed_tokens(ids)")
ESTIMATE = Estimate(
    compute=0.0002, memory=0.00216, interconnect=0.00018, binds="memory", seconds=0.00216, seconds_apart=0.00254,
    unit="tokens", units=32.0, units_per_second=14814.8, units_per_second_apart=12598.4, mfu=0.09, mfu_apart=0.08,
)  # fmt: skip
PROFILE = Profile(
    seconds=0.003, kinds={"matrix products": 0.002, "elementwise": 0.0004, "waiting": 0.0006},
    modules=(
        ModuleTime("model.layers.*.mlp.down_proj", 0.0016, {"matrix products": 0.001, "waiting": 0.0006}),
        ModuleTime("model.layers.*.self_attn.q_proj", 0.0009, {"matrix products": 0.0009}),
        ModuleTime("model.layers.*", 0.0003, {"elementwise": 0.0003}),
        ModuleTime("", 0.0001, {"matrix products": 0.0001}),
        ModuleTime("lm_head", 0.0001, {"elementwise": 0.0001}),
    ),
    lines=(
        LineTime(LINE, 0.0026, {"matrix products": 0.002, "waiting": 0.0006}),
        LineTime(None, 0.0004, {"elementwise": 0.0004}),
    ),
    instructions=(
        InstructionTime("fusion.7", "fusion", "matrix products", "bf16[32,4096]{1,0:T(8,128)(2,1)S(1)}", 32, 0.0016,
                        "memory", 0.12, 0.97, "model.layers.*.mlp.down_proj", LINE),
        InstructionTime(f"copy.1 {HOSTILE}", "copy", "elementwise", "f32[8]", 1, 0.0003, "core", 0, 0.5, "", None),
    ),
    matrix_units=0.0012, schedule_share=0.875, clock=9.4e8,
)  # fmt: skip
# The same step as in `PROFILE`: an embedding, a loop of four rounds, and logits.
TRACE = StepTrace(
    seconds=0.003, entry="main",
    computations={
        "main": TracedComputation(
            0.003,
            core=(CoreSpan(0, 0.0, 0.0004, 0.0, 1, ()), CoreSpan(1, 0.0004, 0.0024, 0.0, 4, ("condition", "body")),
                  CoreSpan(2, 0.0028, 0.0002, 0.0, 1, ())),
            copies=(Transfer(5, 0.0001, 0.0002, ()),), collectives=(),
        ),
        "condition": TracedComputation(0.0, (), (), ()),
        "body": TracedComputation(
            0.0006, core=(CoreSpan(3, 0.00015, 0.00045, 0.00015, 1, ()),),
            copies=(Transfer(5, 0.0001, 0.0002, ()), Transfer(5, 0.0003, 0.0001, ())),
            collectives=(Transfer(4, 0.0, 0.0004, ("tp",)), Transfer(4, 0.0001, 0.0003, ("dp", "sp"))),
        ),
    },
    instructions=(
        TracedInstruction("fusion.1", "fusion", "elementwise", "bf16[8]", "model.embed_tokens", 0, 1e6, 0.0),
        TracedInstruction("while.1", "while", "elementwise", "(s32[])", "", None, 0.0, 0.0),
        TracedInstruction("fusion.9", "fusion", "matrix products", "f32[8]", "lm_head", None, 0.0, 1e9),
        TracedInstruction(f"fusion.7 {HOSTILE}", "fusion", "matrix products", "bf16[32,4096]{1,0:T(8,128)(2,1)S(1)}",
                          "model.layers.0.mlp.down_proj", 0, 1e6, 1e9),
        TracedInstruction("all-gather-start", "all-gather-start", "collectives", "bf16[8]", "model.layers.0.mlp", 0,
                          1e6, 0.0),
        TracedInstruction("copy-start.1", "copy-start", "copies and layouts", "f32[8]", "", None, 1e6, 0.0),
    ),
    sources=("/srv/me/llama/modeling_llama.py:248 LlamaAttention.forward",),
)  # fmt: skip
CALL = Call(
    "llama/modeling_llama.py:231", "LlamaAttention", "transformers", (32, 32, 1, 128), (32, 32, 4096, 128),
    (32, 32, 4096, 128), "bfloat16", "xla", "one query: the kernel has nothing to share out", "causal",
    "heads over tp=8", "",
)  # fmt: skip


def fitting() -> Report:
    return Report(
        topology="v5e:2x4", generation="v5e", devices=8, mesh={"dp": 1, "sp": 1, "tp": 8}, model="LlamaForCausalLM",
        parameters=6_738_415_616, weight_bytes=13_476_831_232, dtypes={"bfloat16": 13_476_831_232}, task="decode",
        inputs={"tokens": "int32[32,1]", "flag": "True"},
        memory=Memory(int(15.75 * GIB), int(1.57 * GIB), 8 * GIB, GIB // 64, 4096, GIB // 2, 32 << 20,
                      used=int(1.57 * GIB) + 8 * GIB + GIB // 64 + 4096 + GIB // 2 + (32 << 20)),
        costs=Costs(5.4e10, 1.77e9, 2.4e9, 5.39e10, (Kernel("tpuport_flash", 32, 1e9, 2e8),)),
        collectives=(
            Collective("all-reduce", ("tp",), 8, 64, 16_777_216, LINE, 12),
            Collective("all-gather", (), 4, 2, 1_000_000, None),
        ),
        attention=((CALL, 32),),
        buffers=(Buffer("bf16[32,32000]", 2_048_000, "fusion", 2, EMBED), Buffer("f32[8,128]", 4096, "copy", 1)),
        estimate=ESTIMATE,
        advice=(
            Finding("TPC001", "width-sharded-activations", "65 all-gathers of 512 kB follow from the embedding",
                    "shard the embedding over the vocabulary", 3.4e7, "bytes sent", source=EMBED),
        ),
        failure=None, scanned=(Scanned("model.layers", 32),), effort=None,
        versions={"jax": "0.10.2", "libtpu": "0.0.42.1"}, profile=PROFILE, seconds={"lower": 1.2, "compile": 6.6},
    )  # fmt: skip


def too_large() -> Report:
    failure = Failure(
        "memory", "the program needs 21.5 GiB of 15.75 GiB", EMBED, None, "use more devices, or --dtype bfloat16",
        (Buffer("f32[1,4096,4096,32]", 2 * GIB, "fusion", 4, LINE),), "RESOURCE_EXHAUSTED: " + HOSTILE,
    )  # fmt: skip
    memory = Memory(int(15.75 * GIB), 10 * GIB, 2 * GIB, GIB // 2, 0, 9 * GIB, 0, used=int(21.5 * GIB))
    return dataclasses.replace(
        fitting(), memory=memory, costs=None, estimate=None, profile=None, failure=failure, collectives=(), buffers=(),
        attention=(), advice=(), scanned=(), effort=-1.0, model=HOSTILE, inputs={HOSTILE: HOSTILE},
    )  # fmt: skip


def untraceable() -> Failure:
    return Failure(
        "trace", f"a tensor's value decides on a branch {HOSTILE}",
        Source("/srv/me/model.py", 12, "forward", f"if x.sum() > 0:  # {HOSTILE}"), "TPU101",
        "write torch.where", (), "Traceback (most recent call last): " + HOSTILE,
    )  # fmt: skip


def plain(value: Any) -> Any:
    """As it comes out of another process."""
    return json.loads(json.dumps(value))


SPLITS = [
    {"target": "llama decode", "topology": "v5e:2x4", "mesh": {"dp": 1, "sp": 1, "tp": 8}, "tried": True,
     "quantize": None,
     "fits": True, "used": 10 * GIB,
     "capacity": 16 * GIB, "seconds": 0.003, "roofline": 0.00216, "unit": "tokens", "units_per_second": 10666.7,
     "binds": "memory", "why": ""},
    {"target": "llama decode", "topology": "v5e:2x4", "mesh": {"dp": 8, "sp": 1, "tp": 1}, "tried": True,
     "quantize": "int8",
     "fits": False, "used": None, "capacity": 16 * GIB, "seconds": None, "roofline": None, "unit": "tokens",
     "units_per_second": None,
     "binds": None, "why": "does not fit"},
    {"target": "llama decode", "topology": "v5e:2x4", "mesh": {"dp": 1, "sp": 4, "tp": 2}, "tried": False,
     "quantize": None,
     "fits": False, "used": None, "capacity": None, "seconds": None, "roofline": None, "unit": None,
     "units_per_second": None,
     "binds": None, "why": f"sp=4 does not divide 6 tokens; dp=2 is {HOSTILE}"},
]  # fmt: skip


@pytest.fixture
def results() -> list[CompileResult]:
    return [
        CompileResult(
            "llama decode",
            "v5e:2x4",
            plain(fitting().to_dict()),
            notes=["no mesh was given: tp over all devices"],
            seconds={"lower": 1.2, "compile": 6.6},
            trace=plain(dataclasses.asdict(TRACE)),
        ),
        CompileResult("llama prefill", "v5e:2x4", plain(too_large().to_dict())),
        CompileResult(HOSTILE, "v6e:2x2", failure=plain(dataclasses.asdict(untraceable()))),
    ]


@pytest.fixture
def quiet_results(results: list[CompileResult]) -> list[CompileResult]:
    return [result.without_traceback() for result in results]


@pytest.fixture
def splits() -> list[dict[str, Any]]:
    return plain(SPLITS)


@pytest.fixture
def hostile() -> str:
    return HOSTILE
