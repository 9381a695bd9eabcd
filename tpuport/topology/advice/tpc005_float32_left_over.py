"""TPC005: float32 where 16 bits would do."""

from collections.abc import Iterator
from typing import Any, Final

import jax.numpy as jnp
import torch

from tpuport.checkpoint.device_layout import dtype_overrides
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.placement import by_pattern, held, is_large
from tpuport.topology.advice.rule import Hit, Rule
from tpuport.topology.advice.wording import several, size, work

# Of the FLOPs of all products: a router, a timestep's embedding and the like stay below it.
_SHARE: Final = 0.05
# Products below it are over in less than five microseconds on the slowest chip, a v5e.
_LEAST: Final = 1e9
# The softmax's own float32 is meant so.
_OURS: Final = ("attention/xla.py", "attention/reference.py", "attention/by_head.py")


def check(evidence: Evidence) -> Iterator[Hit]:
    """Weights, then products of matrices, then the cache."""
    kept = dtype_overrides(evidence.model, torch.bfloat16)
    wide = [
        name for name, weight in evidence.weights.items() if weight.dtype == jnp.float32 and not kept(name)
    ]
    total, narrow = sum(held(evidence.weights[name]) for name in wide), _held_in_16_bits(evidence)
    if narrow == 0:
        if total and is_large(total, evidence):
            yield Hit(
                f"all weights are float32, {size(total)} a device: twice the bytes of bfloat16 to hold and to read",
                "dtype='bfloat16' (--dtype bfloat16)",
                total / 2,
            )
        return
    for regex, names in by_pattern(wide).items():
        each = sum(held(evidence.weights[name]) for name in names)
        if is_large(each, evidence):
            yield Hit(
                f"{several(len(names), 'weight')} in float32, {size(each)} a device, in a model of 16 bits: {regex}",
                "dtype='bfloat16' (--dtype bfloat16), which leaves only what the model lists in _keep_in_fp32_modules; "
                "a buffer that is not saved keeps its dtype: make it with dtype=torch.bfloat16",
                each / 2,
            )
    yield from _products(evidence)
    yield from _cache(evidence)


def _held_in_16_bits(evidence: Evidence) -> int:
    narrow = (jnp.bfloat16, jnp.float16)
    return sum(held(weight) for weight in evidence.weights.values() if weight.dtype in narrow)


def _products(evidence: Evidence) -> Iterator[Hit]:
    products = [one for one in evidence.equations if one.primitive == "dot_general"]
    wide = [
        one
        for one in products
        if all(value.dtype == jnp.float32 for value in one.inputs)
        and not any(file.endswith(_OURS) for file in one.files)
    ]
    flops, total = sum(one.flops for one in wide), sum(one.flops for one in products)
    if flops < max(_LEAST, _SHARE * total):
        return
    largest = max(wide, key=lambda one: one.flops)
    shapes = " x ".join(str(list(value.shape)) for value in largest.inputs)
    yield Hit(
        f"{work(flops / evidence.mesh.size)} a device, {flops / total:.0%} of all, in products of float32 in a model "
        f"of 16 bits; the largest is {shapes}, {several(largest.times, 'time')}",
        "find what becomes float32 before it (.float(), .to(torch.float32), a table or a float32 input), and cast back "
        "after what needs the precision",
        _bytes(wide) / 2 / evidence.mesh.size,
    )


def _bytes(products: list[Any]) -> float:
    return float(sum(4 * value.size * one.times for one in products for value in (*one.inputs, *one.outputs)))


def _cache(evidence: Evidence) -> Iterator[Hit]:
    wide = sum(held(array) for array in evidence.cache if array.dtype == "float32")
    if is_large(wide, evidence):
        yield Hit(
            f"the cache is float32, {size(wide)} a device, in a model of 16 bits",
            "make the cache in the model's dtype, as tpuport.generate does",
            wide / 2,
        )


RULE = Rule(
    id="TPC005",
    name="float32-left-over",
    summary="float32 weights, products or caches where 16 bits would do",
    why="""A float32 weight is twice the bytes to hold and to read. One float32 array is enough to make everything
after it float32: torch promotes, silently, and each product then reads and writes twice as much. The matrix unit
multiplies bfloat16; sums, norms and the softmax keep float32 inside without being asked.""",
    measured="""Float32 weights on a device from 1 MiB and 1% of all, without those that the model lists in
`_keep_in_fp32_modules`; products of two float32 arrays from 5% of the FLOPs of all products and 1 GFLOP, those
inside of tpuport's attention left out; a float32 cache.""",
    before="""report = compile_for(model, inputs, topology="v5e:2x4", tp=8)   # a model made without dtype=""",
    after="""report = compile_for(model, inputs, topology="v5e:2x4", tp=8, dtype="bfloat16")""",
    check=check,
)
