"""Attention as published programs compute it, in place of tpuport's, so that what is compiled is what they ran.

Shapes: B batch, H heads, Q query length, T key length, D head dimension.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import NamedSharding, PartitionSpec

from tpuport.attention import attend
from tpuport.attention.xla_attention import attention_xla
from tpuport.sharding import sequence

_LOG2_E = 1.4426950408889634
_SUBLANES = 8


@dataclasses.dataclass(frozen=True)
class PublishedAttention:
    """How a published program computes attention.

    Attributes:
        kernel: "splash" is jax's; "exp2" is a kernel of scores with keys first and base-2 exponents, as several ports
            wrote it.
        blocks: rows of queries, keys of a step, keys of a chunk.
        widen: queries, keys and values are converted to float32 for the kernel.
        few_keys: calls with at most so many keys are products and a softmax in XLA.
        smooth: the mean over all keys is subtracted from each.
        divides_inputs: queries, keys and values are first divided by their positions over tp, then by heads.
        divides_output: the output is divided by positions over tp.
    """

    kernel: str
    blocks: tuple[int, int, int]
    widen: bool = False
    few_keys: int = 0
    smooth: bool = False
    divides_inputs: bool = False
    divides_output: bool = False

    def describe(self) -> str:
        """In a few words, for tables."""
        return f"{self.kernel} {'/'.join(map(str, self.blocks))}"


@contextlib.contextmanager
def attention_of(published: PublishedAttention | None) -> Iterator[None]:
    """Compute attention as published, in everything that is traced here; None leaves tpuport's."""
    if published is None:
        yield
        return
    replacement = functools.partial(_attention_on_mesh, published)
    with (
        mock.patch.object(attend, "attention_on_mesh", replacement),
        # Nor do they compute rotary embeddings in another way than their code has it.
        mock.patch.object(attend, "with_matrix_products", lambda array: array),
        # The published programs say nothing of the layout of hidden states between blocks.
        mock.patch.object(sequence, "_constrain", lambda name, value, mesh: value),
    ):
        yield


def _attention_on_mesh(
    published: PublishedAttention,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: Any,
    settings: Any,
    *,
    scale: float,
    softcap: float | None = None,
    sinks_H: jax.Array | None = None,
) -> jax.Array:
    """Traced. In place of `tpuport.attention.mesh_attention.attention_on_mesh`."""
    if softcap is not None or sinks_H is not None:
        raise NotImplementedError("no published program here has a softcap or sinks")
    if key.shape[2] <= published.few_keys:
        return attention_xla(query, key, value, mask, scale=scale)[0]
    if mask.keys_BT is not None:
        real = mask.keys_BT[:, None, :, None].astype(key.dtype)
        key, value = key * real, value * real
    if published.smooth:
        key = key - key.mean(axis=2, keepdims=True)
    mesh = settings.mesh
    if mesh is None or mesh.size == 1:
        return _on_device(published, query, key, value, scale=scale)
    batch = "dp" if query.shape[0] > 1 and mesh.shape["dp"] > 1 else None
    heads = "tp"
    by_heads = PartitionSpec(batch, heads, None, None)
    by_positions = NamedSharding(mesh, PartitionSpec(batch, None, heads, None))
    if published.divides_inputs:
        query, key, value = jax.lax.with_sharding_constraint((query, key, value), (by_positions,) * 3)
    out = jax.shard_map(
        functools.partial(_on_device, published, scale=scale),
        mesh=mesh, in_specs=(by_heads,) * 3, out_specs=by_heads, check_vma=False,
    )(query, key, value)  # fmt: skip
    if published.divides_output:
        out = jax.lax.with_sharding_constraint(out, by_positions)
    return out


def _on_device(
    published: PublishedAttention, query: jax.Array, key: jax.Array, value: jax.Array, *, scale: float
) -> jax.Array:
    """Traced. One device's rows and heads, padded to whole blocks."""
    rows, keys, chunk = published.blocks
    length, dtype = query.shape[2], query.dtype
    query, key, value = (_pad(array, size) for array, size in ((query, rows), (key, keys), (value, keys)))
    blocks = (min(rows, query.shape[2]), min(keys, key.shape[2]), min(chunk, key.shape[2]))
    if published.kernel == "splash":
        kernel = _splash(query.shape[1], query.shape[2], key.shape[2], blocks)
        out = jax.vmap(kernel)(query * scale, key, value)
        return out[:, :, :length]
    query = query * (scale * _LOG2_E)
    if published.widen:
        query, key, value = (array.astype(jnp.float32) for array in (query, key, value))
    out = jax.vmap(functools.partial(_base_two, blocks=blocks))(query, key, value)
    return out.astype(dtype).swapaxes(2, 3)[:, :, :length]


def _pad(array: jax.Array, multiple: int) -> jax.Array:
    return jnp.pad(array, ((0, 0), (0, 0), (0, -array.shape[2] % multiple), (0, 0)))


def splash_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, *, blocks: tuple[int, int, int]
) -> jax.Array:
    """Traced. jax's kernel for arrays [B, H, Q, D] of whole blocks, on one device."""
    kernel = _splash(query.shape[1], query.shape[2], key.shape[2], blocks)
    return jax.vmap(kernel)(query, key, value)


def _splash(heads: int, queries: int, keys: int, blocks: tuple[int, int, int]) -> Any:
    block_q, block_kv, block_kv_compute = blocks
    sizes = splash.BlockSizes(block_q=block_q, block_kv=block_kv, block_kv_compute=block_kv_compute)
    mask = masks.MultiHeadMask([masks.FullMask((queries, keys))] * heads)
    return splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)


def _base_two(
    query: jax.Array, key: jax.Array, value: jax.Array, *, blocks: tuple[int, int, int]
) -> jax.Array:
    """Traced. Attention of [H, Q, D] with scores in base 2, as [H, D, Q]."""
    heads, queries, dim = query.shape
    keys = key.shape[1]
    rows, step, chunk = blocks
    of_queries = pl.BlockSpec((None, rows, dim), lambda h, i, j: (h, i, 0))
    of_keys = pl.BlockSpec((None, step, dim), lambda h, i, j: (h, j, 0))
    return pl.pallas_call(
        functools.partial(_base_two_kernel, chunks=step // chunk, steps=keys // step),
        grid=(heads, queries // rows, keys // step),
        in_specs=[of_queries, of_keys, of_keys],
        out_specs=pl.BlockSpec((None, dim, rows), lambda h, i, j: (h, 0, i)),
        out_shape=jax.ShapeDtypeStruct((heads, dim, queries), query.dtype),
        scratch_shapes=[
            pltpu.VMEM((_SUBLANES, rows), jnp.float32),
            pltpu.VMEM((_SUBLANES, rows), jnp.float32),
            pltpu.VMEM((dim, rows), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=100 << 20,
            flags={"XLA_TPU_FORCE_LP_LLO_SCHEDULER": True},
        ),
        name="published_attention",
    )(query, key, value)


def _base_two_kernel(
    query_ref: Any, key_ref: Any, value_ref: Any, out_ref: Any, top_ref: Any, sum_ref: Any, total_ref: Any, *,
    chunks: int, steps: int,
) -> None:  # fmt: skip
    """Traced. The scores of a step's keys, and the running maximum, sum and weighted values of each query."""
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _() -> None:
        top_ref[...] = jnp.full(top_ref.shape, -1e30, jnp.float32)
        sum_ref[...] = jnp.zeros(sum_ref.shape, jnp.float32)
        total_ref[...] = jnp.zeros(total_ref.shape, jnp.float32)

    chunk = key_ref.shape[0] // chunks
    for index in range(chunks):
        part = pl.ds(index * chunk, chunk)
        scores = jax.lax.dot_general(
            key_ref[part], query_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
        top = jnp.maximum(top_ref[...], scores.max(axis=0)[None])
        weights = jnp.exp2(scores - top[:1])
        decay = jnp.exp2(top_ref[...] - top)
        sum_ref[...] = decay * sum_ref[...] + weights.sum(axis=0)[None]
        weighted = jax.lax.dot_general(
            value_ref[part].astype(jnp.float32), weights, (((0,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
        )  # fmt: skip
        total_ref[...] = decay[:1] * total_ref[...] + weighted
        top_ref[...] = top

    @pl.when(step == steps - 1)
    def _() -> None:
        out_ref[...] = (total_ref[...] / sum_ref[:1]).astype(out_ref.dtype)
