"""What attention costs on a TPU by the compiler's own schedule, ours against jax's splash kernel.

    python benchmarks/attention_cost.py                 the tables of docs/attention.md: v6e, v5e, v5p
    python benchmarks/attention_cost.py --topology v6e

No TPU is needed: the real compiler schedules each kernel for a described one. The schedule's scalar instructions are
executed, as for the estimates of `tpuport compile`, so that loops and conditions count as often as they run; starting a
copy between memories is added, as docs/time.md describes it. Figures are cycles of a core for 2048 x 2048 pairs of a
query and a key, of one head of size 128 in bfloat16. Where two cores share the heads, as on
v5p, they are cycles of both.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from tpuport.attention.flash import flash
from tpuport.attention.mask import Mask
from tpuport.hardware import GENERATIONS, assume_generation, compiled, described, schedules

HEADS, DIM = 6, 128
PAIRS = 2048 * 2048
# What the kernels' instructions are called.
KERNELS = ("tpuport_flash", "splash_mha")
# What guides and ports give jax's kernel, and what it needs where those do not fit into vector memory.
GUIDE, SMALL = (2048, 2048, 1024), (1024, 1024, 512)
ROWS = {
    "jax splash 2048/2048/1024, no mask": {"blocks": GUIDE},
    "jax splash 2048/2048/1024, no mask, log-sum-exp saved": {"blocks": GUIDE, "save": True},
    "jax splash 2048/2048/1024, segment ids": {"blocks": GUIDE, "segments": True},
    "jax splash 1024/1024/512, no mask": {"blocks": SMALL},
    "jax splash 1024/1024/512, segment ids": {"blocks": SMALL, "segments": True},
    "tpuport, no mask": {},
    "tpuport, exact padding": {"padding": "exact"},
    "tpuport, segment ids": {"padding": "segment_ids"},
}


def program(
    generation: str,
    length: int,
    blocks: list[int] | None = None,
    save: bool = False,
    segments: bool = False,
    padding: str = "",
) -> tuple:
    """(function, abstract arguments) of a call."""
    one = jax.ShapeDtypeStruct((1, HEADS, length, DIM), jnp.bfloat16)
    row = jax.ShapeDtypeStruct((1, length), jnp.bool_)
    if blocks is not None:
        return _splash(length, blocks, save, segments), (one, one, one, row)
    return _ours(padding, generation), (one, one, one, row)


def _splash(length: int, blocks: list[int], save: bool, segments: bool) -> Callable:
    query, key, compute = blocks
    made = kernel.make_splash_mha(
        masks.MultiHeadMask([masks.FullMask((length, length))] * HEADS),
        block_sizes=kernel.BlockSizes(block_q=query, block_kv=key, block_kv_compute=compute),
        head_shards=1, q_seq_shards=1, save_residuals=save,
    )  # fmt: skip

    def run(q: Any, k: Any, v: Any, real: Any) -> Any:
        ids = kernel.SegmentIds(jnp.ones(length, jnp.int32), real[0].astype(jnp.int32)) if segments else None
        return made(q[0], k[0], v[0], segment_ids=ids)

    return run


def _ours(padding: str, generation: str) -> Callable:
    def run(q: Any, k: Any, v: Any, real: Any) -> Any:
        with assume_generation(generation):
            mask = Mask(keys_BT=real) if padding else Mask()
            return flash(q, k, v, mask, scale=DIM**-0.5, padding=padding or "exact")[0]

    return run


def measure(topology: str, length: int) -> dict[str, float | None]:
    """Cycles for 2048 x 2048 pairs, by row; None where the kernel does not compile."""
    generation = topology.partition(":")[0]
    hardware = GENERATIONS[generation]
    start_cycles = hardware.copy_start.value * hardware.clock
    figures: dict[str, float | None] = {}
    for name, row in ROWS.items():
        function, arguments = program(generation, length, **row)
        try:
            with schedules.record() as recorded:
                compiled(function, *arguments, topology=described(topology))
        except jax.errors.JaxRuntimeError as error:
            sys.stderr.write(f"{name} on {topology}: {str(error)[:200]}\n")
            figures[name] = None
            continue
        (kernel,) = [schedule for key, schedule in recorded.items() if key.startswith(KERNELS)]
        cycles = kernel.cycles + kernel.copies * start_cycles
        figures[name] = cycles * PAIRS / (HEADS * length**2)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", action="append", help="v6e, v5e or v5p; more than once for more")
    parser.add_argument("--length", type=int, default=8192, help="queries and keys, a multiple of 2048")
    options = parser.parse_args()
    chosen = options.topology or ["v6e", "v5e", "v5p"]
    with schedules.recording_flags():
        tables = {topology: measure(topology, options.length) for topology in chosen}
    write = lambda cells: sys.stdout.write("| " + " | ".join(cells) + " |\n")  # noqa: E731
    write(["", *chosen, *(f"{name}, of the best jax splash" for name in chosen)])
    write(["---", *["---:"] * (2 * len(chosen))])
    best = {t: min(v for n, v in tables[t].items() if "jax" in n and "no mask" in n and v) for t in chosen}
    for name in ROWS:
        values = [(tables[t][name], best[t]) for t in chosen]
        cycles = [f"{value:,.0f}" if value else "out of vector memory" for value, _ in values]
        write([name, *cycles, *(f"{value / least:.3f}" if value else "" for value, least in values)])


if __name__ == "__main__":
    main()
