"""TPC005: float32 where 16 bits would do."""

from collections.abc import Iterator
from typing import Final

import jax.numpy as jnp
import torch

from tpuport.base.plurals import count_noun
from tpuport.checkpoint.device_layout import dtype_overrides
from tpuport.topology.advice.advice_rules import (
    AdviceRule,
    Hit,
    format_bytes,
    format_flops,
)
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.float32_products import (
    Float32Product,
    find_float32_products,
)
from tpuport.topology.advice.weight_placement import (
    device_bytes,
    device_weight_bytes,
    group_by_pattern,
    is_worth_a_finding,
)
from tpuport.topology.kernels import product_flops

# Of the FLOPs of all products: a router, a timestep's embedding and the like stay below
# it.
_SHARE: Final = 0.05
# Fewer take less than five microseconds on the slowest chip, a v5e.
_LEAST_FLOPS: Final = 1e9
# Query, key and value may each have one.
_MOST_ORIGINS: Final = 3


def check(evidence: Evidence) -> Iterator[Hit]:
    """Weights, then products of matrices, then the cache."""
    # What a model keeps in float32 on purpose is not left over.
    keeps_float32 = dtype_overrides(evidence.model, torch.bfloat16)
    weights = evidence.weights.items()
    wide = [
        name
        for name, weight in weights
        if weight.dtype == jnp.float32 and not keeps_float32(name)
    ]
    has_narrow = any(
        weight.dtype in (jnp.bfloat16, jnp.float16) for _, weight in weights
    )
    # In a model of float32 alone, each product and each cache would only repeat this
    # finding.
    if not has_narrow:
        yield from _find_wide_model(evidence, wide)
        return
    for regex, names in group_by_pattern(wide).items():
        nbytes = device_weight_bytes(evidence, names)
        if is_worth_a_finding(nbytes, evidence):
            yield Hit(
                f"{count_noun(len(names), 'weight')} in float32, {format_bytes(nbytes)} a device, in a 16-bit model: "
                f"{regex}",
                "dtype='bfloat16' (--dtype bfloat16), which keeps only what the model lists in _keep_in_fp32_modules; "
                "non-persistent buffers keep their dtype, so create them with dtype=torch.bfloat16",
                nbytes / 2,
            )
    yield from _find_products(evidence)
    yield from _find_cache(evidence)


def _find_wide_model(evidence: Evidence, names: list[str]) -> Iterator[Hit]:
    nbytes = device_weight_bytes(evidence, names)
    if is_worth_a_finding(nbytes, evidence):
        yield Hit(
            f"all weights are float32, {format_bytes(nbytes)} a device: twice as many bytes to store and to read as in "
            "bfloat16",
            "dtype='bfloat16' (--dtype bfloat16)",
            nbytes / 2,
        )


def _find_products(evidence: Evidence) -> Iterator[Hit]:
    products = find_float32_products(evidence.traced)
    flops = sum(product.flops for product in products)
    total = sum(
        product_flops(visit.equation) * visit.times for visit in evidence.equations
    )
    if flops < max(_LEAST_FLOPS, _SHARE * total):
        return
    for product in products:
        if product.flops >= _SHARE * flops:
            yield _describe(evidence, product, total)


def _describe(evidence: Evidence, product: Float32Product, total: float) -> Hit:
    shapes = " x ".join(str(list(shape)) for shape in product.shapes)
    origins = "; ".join(map(str, product.origins[:_MOST_ORIGINS]))
    return Hit(
        f"{product.kind} in float32 in a 16-bit model, {format_flops(product.flops / evidence.mesh.size)} a device, "
        f"{product.flops / total:.0%} of all: {shapes}, {count_noun(product.times, 'time')}; its operands: "
        f"{origins or 'of unknown origin'}",
        "cast back, .to(x.dtype), after the part that needs the precision and before this line, or keep what is "
        "float32 there in the model's dtype (.float(), .to(torch.float32), a table or an input in float32)",
        product.nbytes / 2 / evidence.mesh.size,
        source=product.source,
    )


def _find_cache(evidence: Evidence) -> Iterator[Hit]:
    nbytes = sum(
        device_bytes(array) for array in evidence.cache if array.dtype == "float32"
    )
    if is_worth_a_finding(nbytes, evidence):
        yield Hit(
            f"the cache is float32, {format_bytes(nbytes)} a device, in a 16-bit model",
            "create the cache in the model's dtype, as tpuport.generate does",
            nbytes / 2,
        )


RULE = AdviceRule(
    id="TPC005",
    name="float32-left-over",
    summary="float32 weights, products or caches where 16 bits would do",
    why="""A float32 weight takes twice as many bytes to store and to read. A single float32 array is enough to make
everything downstream float32: torch promotes silently, and every product then reads and writes twice as much. The
matrix unit multiplies in bfloat16 anyway; sums, norms and the softmax use float32 internally without being asked.""",
    measured="""Float32 weights of at least 1 MiB and 1% of all weights on a device, except those that the model lists
in `_keep_in_fp32_modules`; products, convolutions and attention over float32 arrays, by the lines of the model that
compute them, if together they have at least 1 GFLOP and 5% of the FLOPs of all products; and a float32 cache. For each
line, the evidence has the lines on which its operands became float32.""",
    before="""compile_for(llama, Decode(batch=2, max_cache_len=512), topology="v6e:2x2", tp=4)""",
    after="""compile_for(llama, Decode(batch=2, max_cache_len=512), topology="v6e:2x2", tp=4, dtype="bfloat16")""",
    check=check,
)
