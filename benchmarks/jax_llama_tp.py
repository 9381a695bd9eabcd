"""A Llama written by hand in plain JAX for a TPU mesh, Megatron's way: the rival of `benchmarks/topology.py`.

No torch and no tpuport, but for one choice: the prompt's attention is a Pallas kernel in a shard_map over the heads,
either jax's own splash attention or tpuport's kernel, called as bare as any other.

- Weights are [in, out] in bfloat16, or int8 with a scale for each output, by which the product is multiplied.
  Queries, keys, values, gate and up are cut over what goes out, output and down over what goes in, embedding and head
  over the vocabulary: two all-reduces a layer, one for the embedding.
- The cache is a list of arrays [B, K, T, D], donated, heads over "tp", written in place.
- Layers are unrolled. Norms, rotary angles, scores and logits are float32; all else is bfloat16.

Shapes: B batch, Q query length, T cache length, H query heads, K key/value heads, G = H / K, D head dimension, E width,
F width inside, V vocabulary.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class Shape(NamedTuple):
    """What the program is compiled for."""

    layers: int
    vocabulary: int
    width: int
    inside: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float


class Int8(NamedTuple):
    """A weight [in, out] in int8, and the scale [out] of its products."""

    values: Any
    scale: Any


class Cache(NamedTuple):
    """Keys and values of each layer [B, K, T, D], and how many positions are written."""

    keys: list[Any]
    values: list[Any]
    length: Any


def shape_of(config: Any) -> Shape:
    """Static figures of a transformers LlamaConfig."""
    return Shape(
        config.num_hidden_layers, config.vocab_size, config.hidden_size, config.intermediate_size,
        config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.rms_norm_eps,
        config.rope_parameters["rope_theta"],
    )  # fmt: skip


_LAYER = {
    "in_norm": ((), ()), "mlp_norm": ((), ()),
    "q": (None, "tp"), "k": (None, "tp"), "v": (None, "tp"), "o": ("tp", None),
    "gate": (None, "tp"), "up": (None, "tp"), "down": ("tp", None),
}  # fmt: skip


def weights_for(
    shape: Shape, mesh: Mesh, dtype: Any = jnp.bfloat16, *, in_int8: bool = False
) -> dict[str, Any]:
    """The weights as jax.ShapeDtypeStruct, placed on the mesh; those of the layers' products as `Int8`, or not."""

    def at(spec: tuple, *dims: int, dtype: Any = dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    def product(spec: tuple, *dims: int) -> jax.ShapeDtypeStruct | Int8:
        if not in_int8:
            return at(spec, *dims)
        return Int8(at(spec, *dims, dtype=jnp.int8), at(spec[1:], *dims[1:]))

    wide, kept = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    dims = {
        "q": (shape.width, wide), "k": (shape.width, kept), "v": (shape.width, kept), "o": (wide, shape.width),
        "gate": (shape.width, shape.inside), "up": (shape.width, shape.inside), "down": (shape.inside, shape.width),
    }  # fmt: skip
    layer: dict[str, Any] = {name: product(_LAYER[name], *size) for name, size in dims.items()}
    layer |= {name: at((), shape.width) for name in ("in_norm", "mlp_norm")}
    return {
        "embed": at(("tp", None), shape.vocabulary, shape.width),
        "norm": at((), shape.width),
        "head": at((None, "tp"), shape.width, shape.vocabulary),
        "layers": [dict(layer) for _ in range(shape.layers)],
    }


def weights_of(model: Any, dtype: Any = jnp.float32) -> dict[str, Any]:
    """The weights of a transformers LlamaForCausalLM as arrays."""
    array = lambda tensor: jnp.array(tensor.detach().numpy().T, dtype, copy=True)  # noqa: E731
    layers = [
        {
            "in_norm": array(layer.input_layernorm.weight),
            "mlp_norm": array(layer.post_attention_layernorm.weight),
            **{name: array(getattr(layer.self_attn, f"{name}_proj").weight) for name in "qkvo"},
            **{name: array(getattr(layer.mlp, f"{name}_proj").weight) for name in ("gate", "up", "down")},
        }
        for layer in model.model.layers
    ]
    return {
        "embed": array(model.model.embed_tokens.weight).T,
        "norm": array(model.model.norm.weight),
        "head": array(model.lm_head.weight),
        "layers": layers,
    }


def cache_for(shape: Shape, batch: int, slots: int, mesh: Mesh, dtype: Any = jnp.bfloat16) -> Cache:
    """An empty cache as jax.ShapeDtypeStruct, rows over "dp" and heads over "tp"."""
    where = NamedSharding(mesh, PartitionSpec("dp", "tp"))
    one = jax.ShapeDtypeStruct((batch, shape.kv_heads, slots, shape.head_dim), dtype, sharding=where)
    length = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    return Cache([one] * shape.layers, [one] * shape.layers, length)


def splash_attention(mesh: Mesh, queries: int, heads: int, block: int = 1024) -> Attention:
    """jax's own kernel for causal attention [B, H, Q, D], heads over "tp" and rows over "dp"."""
    block = min(block, queries)
    sizes = splash.BlockSizes(block_q=block, block_kv=block, block_kv_compute=min(512, block))
    mask = splash_mask.MultiHeadMask(
        [splash_mask.CausalMask((queries, queries))] * (heads // mesh.shape["tp"])
    )
    kernel: Any = splash.make_splash_mha_single_device(mask=mask, block_sizes=sizes)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        groups = q.shape[1] // k.shape[1]
        k, v = (jnp.repeat(x, groups, axis=1) for x in (k, v))
        return jax.vmap(kernel)(q * q.shape[-1] ** -0.5, k, v)

    return over_heads(mesh, attend)


def over_heads(mesh: Mesh, attend: Attention) -> Attention:
    """Attention on what each device has: rows over "dp", heads over "tp"."""
    spec = PartitionSpec("dp", "tp")
    return jax.shard_map(attend, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)


def plain_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention [B, H, Q, D] by its definition, over keys that begin with the queries' positions."""
    return _attend(q, k, v, jnp.arange(q.shape[2]))


def prefill(
    weights: dict,
    tokens_BQ: jax.Array,
    *,
    shape: Shape,
    slots: int,
    attention: Attention,
    mesh: Mesh | None = None,
) -> tuple[jax.Array, jax.Array, Cache]:
    """(next token [B], float32 logits [B, V] of the last position, the cache of `slots` positions)."""
    queries = tokens_BQ.shape[1]
    angles = _angles(jnp.arange(queries), shape)
    pad = ((0, 0), (0, 0), (0, slots - queries), (0, 0))
    keys, values = [], []

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        keys.append(_at(jnp.pad(k, pad), mesh, "dp", "tp"))
        values.append(_at(jnp.pad(v, pad), mesh, "dp", "tp"))
        return attention(q, k, v)

    x = _at(weights["embed"][tokens_BQ], mesh, "dp")
    for layer in weights["layers"]:
        x = _block(layer, x, angles, attend, shape, mesh)
    token, logits = _chosen(weights, x[:, -1], shape, mesh)
    return token, logits, Cache(keys, values, jnp.int32(queries))


def decode(
    weights: dict, token_B: jax.Array, cache: Cache, *, shape: Shape, mesh: Mesh | None = None
) -> tuple[jax.Array, jax.Array, Cache]:
    """(next token [B], its float32 logits [B, V], the cache with one more position); donate the cache."""
    angles = _angles(cache.length[None], shape)
    old, keys, values = zip(cache.keys, cache.values, strict=True), [], []

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        for kept, before, new in zip((keys, values), next(old), (k, v), strict=True):
            kept.append(jax.lax.dynamic_update_slice_in_dim(before, new, cache.length, axis=2))
        return _attend(q, keys[-1], values[-1], cache.length[None])

    x = _at(weights["embed"][token_B[:, None]], mesh, "dp")
    for layer in weights["layers"]:
        x = _block(layer, x, angles, attend, shape, mesh)
    token, logits = _chosen(weights, x[:, 0], shape, mesh)
    return token, logits, Cache(keys, values, cache.length + 1)


def _at(x: jax.Array, mesh: Mesh | None, *axes: str | None) -> jax.Array:
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*axes)))


def _times(x: jax.Array, weight: Any) -> jax.Array:
    if isinstance(weight, Int8):
        return x @ weight.values.astype(x.dtype) * weight.scale
    return x @ weight


def _norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps)).astype(x.dtype) * weight


def _angles(positions_Q: jax.Array, shape: Shape) -> tuple[jax.Array, jax.Array]:
    half = shape.head_dim // 2
    angle_QD = positions_Q[:, None] * shape.theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    return jnp.cos(angle_QD), jnp.sin(angle_QD)


def _rotate(x_BHQD: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
    cos, sin = (angle.astype(x_BHQD.dtype) for angle in angles)
    a, b = jnp.split(x_BHQD, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, positions_Q: jax.Array) -> jax.Array:
    """Scores and softmax in float32; a query sees the keys up to its position."""
    batch, heads, queries, dim = q.shape
    q = q.reshape(batch, k.shape[1], -1, queries, dim)
    scores = jnp.einsum("bkgqd,bktd->bkgqt", q, k, preferred_element_type=jnp.float32) * dim**-0.5
    visible = jnp.arange(k.shape[2])[None] <= positions_Q[:, None]
    shares = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1).astype(v.dtype)
    mixed = jnp.einsum("bkgqt,bktd->bkgqd", shares, v)
    return mixed.reshape(batch, heads, queries, dim)


def _block(
    layer: dict, x_BQE: jax.Array, angles: tuple, attend: Attention, shape: Shape, mesh: Mesh | None
) -> jax.Array:
    h = _norm(x_BQE, layer["in_norm"], shape.eps)
    q, k, v = (
        _times(h, layer[name]).reshape(*h.shape[:2], -1, shape.head_dim).swapaxes(1, 2)
        for name in ("q", "k", "v")
    )
    q, k, v = (_at(x, mesh, "dp", "tp") for x in (q, k, v))
    mixed = attend(_rotate(q, angles), _rotate(k, angles), v).swapaxes(1, 2)
    x_BQE = _at(x_BQE + _times(mixed.reshape(*h.shape[:2], -1), layer["o"]), mesh, "dp")
    h = _norm(x_BQE, layer["mlp_norm"], shape.eps)
    inner = _at(jax.nn.silu(_times(h, layer["gate"])) * _times(h, layer["up"]), mesh, "dp", None, "tp")
    return _at(x_BQE + _times(inner, layer["down"]), mesh, "dp")


def _chosen(weights: dict, x_BE: jax.Array, shape: Shape, mesh: Mesh | None) -> tuple[jax.Array, jax.Array]:
    logits = (_norm(x_BE, weights["norm"], shape.eps) @ weights["head"]).astype(jnp.float32)
    logits = _at(logits, mesh, "dp", "tp")
    return jnp.argmax(logits, axis=-1).astype(jnp.int32), logits


def prefill_for(
    shape: Shape,
    mesh: Mesh,
    batch: int,
    length: int,
    attention: Attention | None = None,
    *,
    in_int8: bool = False,
) -> tuple[Any, tuple]:
    """(the function to compile, its arguments): a prompt that fills its cache."""
    tokens = jax.ShapeDtypeStruct(
        (batch, length), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec("dp"))
    )
    attention = attention or splash_attention(mesh, length, shape.heads)

    @functools.partial(jax.jit)
    def first(weights: dict, tokens: jax.Array) -> tuple:
        token, _, cache = prefill(weights, tokens, shape=shape, slots=length, attention=attention, mesh=mesh)
        return token, cache

    return first, (weights_for(shape, mesh, in_int8=in_int8), tokens)


def decode_for(
    shape: Shape, mesh: Mesh, batch: int, slots: int, *, in_int8: bool = False
) -> tuple[Any, tuple]:
    """(the function to compile, its arguments): one token for each row, the cache donated."""
    token = jax.ShapeDtypeStruct((batch,), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec("dp")))

    @functools.partial(jax.jit, donate_argnums=2)
    def step(weights: dict, token: jax.Array, cache: Cache) -> tuple:
        token, _, cache = decode(weights, token, cache, shape=shape, mesh=mesh)
        return token, cache

    return step, (weights_for(shape, mesh, in_int8=in_int8), token, cache_for(shape, batch, slots, mesh))
