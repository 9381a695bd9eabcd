"""Attention calls compiled by the real TPU compiler: the kernel is there, and nothing grows with the length squared."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tpuport import attention, compat
from tpuport.attention.flash import flash
from tpuport.attention.flash_kernel import NAME
from tpuport.attention.mask import Mask
from tpuport.hardware import assume_generation
from tpuport.topology import compiled, described

LENGTH = 8192
sdpa = torch.nn.functional.scaled_dot_product_attention


def _call(function: Callable[..., torch.Tensor]) -> Callable[..., jax.Array]:
    """A function of torch tensors as one of arrays, under torchax."""

    def run(*arrays: jax.Array) -> jax.Array:
        with compat.environment():
            return compat.as_jax(function(*compat.as_torch(arrays)))

    return run


def _shapes(*shape: int, dtype: Any = jnp.bfloat16) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, dtype)] * 3


def _compiled(name: str, function: Callable[..., torch.Tensor], *shapes: jax.ShapeDtypeStruct) -> Any:
    with assume_generation(name), attention.register():
        return compiled(_call(function), *shapes, topology=described(name))


def _largest(text: str) -> int:
    """Elements of the largest array in a program."""
    sizes = re.findall(r"(?:pred|s8|u8|bf16|[fsu]32)\[([\d,]+)\]", text)
    return max(int(np.prod([int(n) for n in size.split(",")])) for size in sizes)


def _check(program: Any, shapes: list[jax.ShapeDtypeStruct], kernels: int = 1) -> None:
    text = program.as_text()
    calls = re.findall(rf"custom-call\(.*custom_call_target=\"tpu_custom_call\".*{NAME}", text)
    assert len(calls) == kernels
    inputs = sum(int(np.prod(x.shape)) for x in shapes)
    assert _largest(text) <= 2 * inputs < LENGTH**2
    # Less than a boolean mask of the scores would take; copies of the operands in other layouts fit.
    assert program.memory_analysis().temp_size_in_bytes < LENGTH**2


@pytest.mark.parametrize("name", ["v5e", "v5p", "v6e"])
@pytest.mark.slow  # tests/topology/test_compiling.py compiles the same kernel
def test_plain_attention(name: str) -> None:
    shapes = _shapes(1, 2, LENGTH, 128)
    _check(_compiled(name, sdpa, *shapes), shapes)


def _expanded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """As video transformers build their mask: of keys, repeated over the queries, and of queries."""
    keys = real.view(1, 1, 1, LENGTH).repeat(1, 1, LENGTH, 1)
    return sdpa(q, k, v, attn_mask=(keys & keys.transpose(2, 3)).bool())


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return sdpa(q, k, v, is_causal=True)


def _added(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    bias = (1 - real.to(q.dtype)) * -10000.0
    return sdpa(q, k, v, attn_mask=bias[:, None, None, :])


REAL = jax.ShapeDtypeStruct((1, LENGTH), jnp.bool_)
CALLS = {"causal": (_causal, []), "expanded": (_expanded, [REAL]), "added": (_added, [REAL])}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.slow  # tests/attention/tuning/test_search.py compiles the kernel with bands
def test_masks(kind: str) -> None:
    function, extra = CALLS[kind]
    shapes = _shapes(1, 2, LENGTH, 64)
    _check(_compiled("v6e", function, *shapes, *extra), shapes)


@pytest.mark.slow  # tuning/test_bundle_compiler.py counts bundles
def test_exact_padding_schedules_hardly_more_than_no_mask() -> None:
    """At most 3.5% more bundles."""
    from tpuport.attention.tuning.bundle_compiler import Compiler

    bundles = {}
    with Compiler("v6e") as compiler:
        for padding in ("none", "exact"):
            arguments = {
                "head_dim": 128, "dtype": "bfloat16", "band": "none", "padding": padding,
                "blocks": [1024, 1024, 512], "tail": False, "generation": "v6e",
            }  # fmt: skip
            (kernel,) = compiler.count("tpuport.attention.tuning.search:program", arguments).kernels
            bundles[padding] = kernel.bundles
    assert bundles["exact"] <= 1.035 * bundles["none"]


@pytest.fixture
def mesh() -> Mesh:
    """dp=2, sp=2, tp=2 on a described v6e:2x4."""
    devices = np.array(described("v6e:2x4").devices).reshape(2, 2, 2)
    return Mesh(devices, ("dp", "sp", "tp"), axis_types=(AxisType.Auto,) * 3)


@pytest.mark.slow  # a shorter sequence over sp=2 and tp=2 in tests/topology/test_compiling.py
@pytest.mark.parametrize(("sequence", "kernels"), [("gather", 1), ("ring", 2), ("ulysses", 1)])
def test_on_a_mesh(mesh: Mesh, sequence: str, kernels: int) -> None:
    placed = NamedSharding(mesh, PartitionSpec("dp", "tp", "sp", None))
    shapes = [jax.ShapeDtypeStruct((2, 4, LENGTH, 128), jnp.bfloat16, sharding=placed)] * 3
    with assume_generation("v6e"), attention.register(mesh, sequence=sequence):
        program = compiled(_call(sdpa), *shapes, topology=described("v6e:2x4"))
    text = program.as_text()
    assert len(re.findall(rf"custom_call_target=\"tpu_custom_call\".*{NAME}", text)) == kernels
    assert program.memory_analysis().temp_size_in_bytes < LENGTH**2


@pytest.mark.slow
def test_gradients_compile_and_stay_small() -> None:
    shapes = _shapes(1, 2, LENGTH, 128)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return _call(_causal)(q, k, v).astype(jnp.float32).sum()

    with assume_generation("v6e"), attention.register():
        program = compiled(jax.grad(loss, (0, 1, 2)), *shapes, topology=described("v6e"))
    assert NAME in program.as_text()
    assert _largest(program.as_text()) < LENGTH**2
    assert program.memory_analysis().temp_size_in_bytes < LENGTH**2


@pytest.mark.slow
@pytest.mark.parametrize("dim", [160, 192, 256])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("kind", ["none", "keys", "bias", "segments"])
def test_the_smallest_vector_memory_holds_wide_heads(kind: str, dtype: Any, dim: int) -> None:
    """v4 has 16 MiB; the default block sizes have to fit in."""
    row = jax.ShapeDtypeStruct((1, 4096), jnp.int32)

    def run(q: jax.Array, k: jax.Array, v: jax.Array, numbers: jax.Array) -> jax.Array:
        masks = {
            "none": Mask(),
            "keys": Mask(keys_BT=numbers > 0),
            "bias": Mask(bias_BT=numbers.astype(jnp.float32)),
            "segments": Mask(query_segments_BQ=numbers, key_segments_BT=numbers),
        }
        return flash(q, k, v, masks[kind], scale=0.1)[0]

    with assume_generation("v4"):
        compiled(run, *_shapes(1, 4, 4096, dim, dtype=dtype), row, topology=described("v4"))


@pytest.mark.slow
def test_each_generation_gets_its_own_blocks() -> None:
    """jax would give a second one what it traced for the first."""

    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return flash(q, k, v, Mask(right=0), scale=0.1)[0]

    for name in ("v6e", "v4"):
        with assume_generation(name):
            program = compiled(run, *_shapes(1, 4, LENGTH, 128, dtype=jnp.float32), topology=described(name))
        assert NAME in program.as_text()
