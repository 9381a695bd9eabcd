"""Llama and its like compiled for TPU slices that are not there: against hand-written JAX, and against arithmetic.

    python -m benchmarks.topology                  Llama-2-7B on v5e:2x4 beside benchmarks/jax_llama_tp.py (minutes)
    python -m benchmarks.topology --layers 2       the same with two of its layers (a minute), nothing is written
    python -m benchmarks.topology --zoo            the models of `ZOO`, each in a process of its own
    python -m benchmarks.topology --zoo "Llama-3-8B prefill"    those whose name has that in it

The first and the third write to docs/data/topology.json. Every figure is of one device and one step.
"""

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from benchmarks import jax_llama_tp as rival
from tpuport.attention.flash import flash
from tpuport.attention.mask import Mask
from tpuport.hardware import assume_generation
from tpuport.topology import Decode, Prefill, compile_for, described, hlo, kernels
from tpuport.topology.compiling import compile_lowered
from tpuport.topology.lowering import lower_for
from tpuport.topology.targets import resolve

OUT = Path(__file__).parent.parent / "docs" / "data" / "topology.json"
TOPOLOGY, TP = "v5e:2x4", 8
TASKS = {"prefill 4096": Prefill(1, 4096), "decode 1": Decode(1, 1024), "decode 32": Decode(32, 1024)}
# With weights in int8, a scale for each output, on both sides.
INT8_TASKS = {f"{name}, int8": task for name, task in TASKS.items()}
# What ours may have at most, as a multiple of the rival's.
LIMITS = {"flops": 1.02, "hbm_bytes": 1.02, "collectives": 1.0, "memory": 1.05}
SAME_KERNEL, SPLASH = "JAX with the same kernel", "JAX with splash attention"


class Entry(NamedTuple):
    """A model of the zoo: its name for `resolve`, where it goes, and what of it is compiled."""

    model: str
    topology: str
    mesh: dict[str, Any]
    task: Prefill | Decode


ZOO = {
    "Llama-2-7B prefill": Entry("llama-2-7b", "v5e:2x4", {"tp": 8}, Prefill(1, 4096)),
    "Llama-2-7B decode": Entry("llama-2-7b", "v5e:2x4", {"tp": 8}, Decode(1, 1024)),
    "Llama-3-8B prefill": Entry("llama-3-8b", "v5e:2x4", {"tp": 8}, Prefill(1, 4096)),
    "Llama-3-8B decode": Entry("llama-3-8b", "v5e:2x4", {"tp": 8}, Decode(1, 1024)),
    "Llama-3-70B decode, v5p": Entry("llama-3-70b", "v5p:2x2x4", {"dp": 2, "tp": 8}, Decode(8, 4096)),
    "Llama-3-70B decode, v6e": Entry("llama-3-70b", "v6e:4x4", {"dp": 2, "tp": 8}, Decode(8, 4096)),
    "Mixtral 8x7B decode": Entry("mixtral-8x7b", "v6e:2x4", {"tp": 8}, Decode(8, 4096)),
    "Qwen3-30B-A3B decode": Entry("qwen3-30b-a3b", "v6e:2x4", {"dp": 2, "tp": 4}, Decode(8, 4096)),
    "Gemma 3 27B decode": Entry("gemma-3-27b", "v6e:2x4", {"tp": 8}, Decode(8, 4096)),
}


def llama(layers: int = 32, **changed: Any) -> LlamaConfig:
    """Llama-2-7B, or as many layers of it."""
    return LlamaConfig(max_position_embeddings=4096, num_hidden_layers=layers, **changed)


def measured(program: Any, mesh: Any, jaxpr: Any) -> dict[str, float]:
    """What the compiler, the program's text and what was traced say, in the same way for both."""
    text, said, costs = hlo.parse(program.as_text()), program.memory_analysis(), program.cost_analysis()
    hlo.apply_kernel_costs(text, kernels.count_work(jaxpr).calls)
    return {
        "flops": hlo.count_flops(text, float(costs["flops"])),
        "hbm_bytes": float(hlo.count_hbm_bytes(text)),
        "bytes_accessed": float(costs["bytes accessed"]),
        "collectives": sum(one.count for one in hlo.list_collectives(text, mesh)),
        "memory": said.argument_size_in_bytes
        + said.output_size_in_bytes
        - said.alias_size_in_bytes
        + said.temp_size_in_bytes
        + said.generated_code_size_in_bytes,
        "temporaries": said.temp_size_in_bytes,
    }


def ours(
    config: LlamaConfig,
    task: Prefill | Decode,
    topology: str = TOPOLOGY,
    tp: int = TP,
    quantize: str | None = None,
) -> dict[str, float]:
    """transformers' Llama, by tpuport."""
    lowered = lower_for(
        lambda: LlamaForCausalLM(config),
        task,
        topology=topology,
        tp=tp,
        dtype="bfloat16",
        quantize=quantize,
    )
    return measured(compile_lowered(lowered, advised=False).program, _mesh(topology, tp), lowered.jaxpr)


def rivals(
    config: LlamaConfig,
    task: Prefill | Decode,
    topology: str = TOPOLOGY,
    tp: int = TP,
    quantize: str | None = None,
) -> dict[str, dict[str, float]]:
    """The Llama written by hand, with each kernel that a prompt can have."""
    in_int8 = quantize == "int8"
    mesh, shape = _mesh(topology, tp), rival.shape_of(config)
    if isinstance(task, Decode):
        made = {"JAX": rival.decode_for(shape, mesh, task.batch, task.max_cache_len, in_int8=in_int8)}
    else:
        kernels = {SAME_KERNEL: _same_kernel(mesh, topology), SPLASH: None}
        made = {
            name: rival.prefill_for(shape, mesh, task.batch, task.length, kernel, in_int8=in_int8)
            for name, kernel in kernels.items()
        }
    traced = {name: function.trace(*arguments) for name, (function, arguments) in made.items()}
    return {name: measured(one.lower().compile(), mesh, one.jaxpr) for name, one in traced.items()}


def _same_kernel(mesh: Any, topology: str) -> rival.Attention:
    """tpuport's attention kernel with nothing around it: what differs is the program around the kernel."""

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        with assume_generation(topology.partition(":")[0]):
            return flash(q, k, v, Mask(right=0), scale=q.shape[-1] ** -0.5)[0]

    return rival.over_heads(mesh, attend)


def _mesh(topology: str, tp: int) -> Any:
    return tpuport.create_mesh(tp=tp, devices=described(topology).devices)


def compared(config: LlamaConfig, task: Prefill | Decode, **where: Any) -> dict[str, Any]:
    """Ours, the rivals, and ours as multiples of each."""
    own, others = ours(config, task, **where), rivals(config, task, **where)
    ratios = {
        name: {key: own[key] / other[key] if other[key] else 1.0 for key in own}
        for name, other in others.items()
    }
    return {"ours": own, "rivals": others, "ratios": ratios}


def compare_task(config: LlamaConfig, name: str) -> dict[str, Any]:
    """`compared` for one of the tasks."""
    if name in INT8_TASKS:
        return compared(config, INT8_TASKS[name], quantize="int8")
    return compared(config, TASKS[name])


def missed(row: dict[str, Any]) -> list[str]:
    """Which limits a comparison does not hold, against any of its rivals."""
    return [
        f"{key} {ratios[key]:.3f} > {limit} ({name})"
        for name, ratios in row["ratios"].items()
        for key, limit in LIMITS.items()
        if ratios[key] > limit + 1e-9
    ]


def arithmetic(config: Any, entry: Entry) -> dict[str, int]:
    """Bytes of weights and cache of one chip from a Llama's config, bfloat16; norms are on every chip."""
    tp, dp = entry.mesh.get("tp", 1), entry.mesh.get("dp", 1)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width, heads, kept = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    layer = width * dim * (2 * heads + 2 * kept) + 3 * width * config.intermediate_size
    tables = (1 if config.tie_word_embeddings else 2) * config.vocab_size * width
    norms = (2 * config.num_hidden_layers + 1) * width
    rows = entry.task.batch // dp
    slots = entry.task.max_cache_len or getattr(entry.task, "length", 0)
    cache = 2 * config.num_hidden_layers * rows * kept * slots * dim // tp
    return {
        "weights": 2 * ((config.num_hidden_layers * layer + tables) // tp + norms),
        "cache": 2 * cache,
    }


def entry_report(name: str) -> dict[str, Any]:
    """One of the zoo, compiled in this process."""
    entry, started = ZOO[name], time.perf_counter()
    task = entry.task
    length: dict[str, Any] = (
        {"length": task.length} if isinstance(task, Prefill) else {"max_cache_len": task.max_cache_len}
    )
    kind = "prefill" if isinstance(task, Prefill) else "decode"
    [target] = resolve(entry.model, task=kind, batch=task.batch, dtype="bfloat16", **length)
    made = compile_for(
        target.build,
        target.inputs,
        topology=entry.topology,
        dtype=target.dtype,
        unit=target.unit,
        **entry.mesh,
    )
    plain = made.to_dict()
    kept = (
        "topology",
        "mesh",
        "model",
        "parameters",
        "task",
        "inputs",
        "memory",
        "costs",
        "estimate",
        "fits",
    )
    row = {key: plain[key] for key in kept} | {"failure": made.failure and made.failure.message}
    row["collectives"] = [
        [one.kind, list(one.axes), one.count, one.nbytes, one.source and one.source.function]
        for one in made.collectives
    ]
    row["advice"] = [[one.rule, one.name] for one in made.advice]
    row["seconds"] = {**made.seconds, "all": time.perf_counter() - started}
    row["resident_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if entry.model.startswith("llama"):
        row["arithmetic"] = arithmetic(target.build().config, entry)
    return row


def in_a_process(name: str) -> dict[str, Any]:
    """The same, in a process whose memory is its own."""
    command = [sys.executable, "-m", "benchmarks.topology", "--one", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1] if lines else f"exit status {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def kept(key: str, rows: dict[str, Any]) -> None:
    """Write rows into the file of results, beside those it has."""
    known = json.loads(OUT.read_text()) if OUT.is_file() else {}
    known.setdefault(key, {}).update(rows)
    known["versions"] = {name: sys.modules[name].__version__ for name in ("jax", "torch", "transformers")}
    OUT.write_text(json.dumps(known, indent=1) + "\n")


def show(rows: dict[str, Any], console: Console) -> None:
    """The comparison as a table."""
    table = Table(title=f"Llama-2-7B on {TOPOLOGY}, tp={TP}: tpuport as a multiple of hand-written JAX")
    for heading in ("", "rival", "FLOPs", "HBM bytes", "collectives", "peak memory"):
        table.add_column(heading)
    for task, row in rows.items():
        for name, ratio in row["ratios"].items():
            table.add_row(task, name, *(f"{ratio[key]:.3f}" for key in LIMITS))
    console.print(table)
    for task, row in rows.items():
        console.print(f"{task}: {'; '.join(missed(row)) or 'within every limit'}")


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--task", choices=[*TASKS, *INT8_TASKS], help="one of them")
    parser.add_argument("--zoo", nargs="?", const="", help="models whose name has this in it; all without it")
    parser.add_argument("--one", choices=ZOO, help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    console = Console()
    tpuport.enable()
    if given.one:
        print(json.dumps(entry_report(given.one)))
    elif given.zoo is not None:
        run(console, "zoo", [name for name in ZOO if given.zoo in name], in_a_process, write=True)
    else:
        tasks = [given.task] if given.task else [*TASKS, *INT8_TASKS]
        config = llama(given.layers)
        rows = run(console, "rival", tasks, lambda name: compare_task(config, name), given.layers == 32)
        show(rows, console)


def run(
    console: Console, key: str, names: list[str], work: Callable[[str], dict[str, Any]], write: bool
) -> dict[str, Any]:
    """Each row by its name, written as soon as it is there."""
    rows = {}
    for name in names:
        started = time.perf_counter()
        rows[name] = work(name)
        console.print(f"{name}: {time.perf_counter() - started:.0f} s {rows[name].get('error', '')}")
        if write:
            kept(key, {name: rows[name]})
    return rows


if __name__ == "__main__":
    main()
