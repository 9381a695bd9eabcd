"""A Llama written by hand in plain JAX, with greedy decoding in one while_loop: the yardstick for `decode.py`.

Shapes: B batch, H query heads, K key/value heads, G = H / K, Q query length, T cache length, D head dimension, E width.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Shape(NamedTuple):
    """What the program is compiled for."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    slots: int


def shape_of(config: Any, slots: int) -> Shape:
    """Static figures of a transformers config; `slots` is the cache length."""
    return Shape(
        config.num_attention_heads, config.num_key_value_heads, config.head_dim,
        config.rms_norm_eps, config.rope_parameters["rope_theta"], slots,
    )  # fmt: skip


def weights_of(model: Any) -> dict[str, Any]:
    """The weights of a transformers LlamaForCausalLM as arrays, matrices kept [out, in] as torch stores them."""
    array = lambda tensor: jnp.array(tensor.detach().numpy(), copy=True)  # noqa: E731
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
        "embed": array(model.model.embed_tokens.weight),
        "norm": array(model.model.norm.weight),
        "head": array(model.lm_head.weight),
        "layers": layers,
    }


def _norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def _rotate(x_BHQD: jax.Array, positions_Q: jax.Array, theta: float) -> jax.Array:
    half = x_BHQD.shape[-1] // 2
    angle = positions_Q[:, None] * theta ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = x_BHQD[..., :half], x_BHQD[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _block(
    layer: dict, x_BQE: jax.Array, cache: tuple, start: jax.Array, shape: Shape
) -> tuple[jax.Array, tuple]:
    batch, queries, _ = x_BQE.shape
    h = _norm(x_BQE, layer["in_norm"], shape.eps)
    q, k, v = (
        (h @ layer[name].T).reshape(batch, queries, -1, shape.head_dim).swapaxes(1, 2)
        for name in ("q", "k", "v")
    )
    positions = start + jnp.arange(queries)
    q, k = _rotate(q, positions, shape.theta), _rotate(k, positions, shape.theta)
    keys = jax.lax.dynamic_update_slice_in_dim(cache[0], k, start, axis=2)
    values = jax.lax.dynamic_update_slice_in_dim(cache[1], v, start, axis=2)
    q = q.reshape(batch, shape.kv_heads, -1, queries, shape.head_dim)
    scores = jnp.einsum("bkgqd,bktd->bkgqt", q, keys) * shape.head_dim**-0.5
    visible = jnp.arange(shape.slots)[None] <= positions[:, None]
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("bkgqt,bktd->bkgqd", weights, values).reshape(batch, -1, queries, shape.head_dim)
    x = x_BQE + mixed.swapaxes(1, 2).reshape(batch, queries, -1) @ layer["o"].T
    h = _norm(x, layer["mlp_norm"], shape.eps)
    return x + (jax.nn.silu(h @ layer["gate"].T) * (h @ layer["up"].T)) @ layer["down"].T, (keys, values)


def _forward(weights: dict, tokens_BQ: jax.Array, caches: list, start: jax.Array, shape: Shape) -> tuple:
    x = weights["embed"][tokens_BQ]
    new = []
    for layer, cache in zip(weights["layers"], caches, strict=True):
        x, cache = _block(layer, x, cache, start, shape)
        new.append(cache)
    return _norm(x[:, -1], weights["norm"], shape.eps) @ weights["head"].T, new


@functools.partial(jax.jit, static_argnames=("shape", "new_tokens"))
def generate(weights: dict, tokens_BP: jax.Array, *, shape: Shape, new_tokens: int) -> jax.Array:
    """Greedy decoding: prompt [B, P] -> [B, P + new_tokens], prompt and loop in one program."""
    batch, prompt = tokens_BP.shape
    empty = jnp.zeros((batch, shape.kv_heads, shape.slots, shape.head_dim), weights["embed"].dtype)
    logits, caches = _forward(
        weights, tokens_BP, [(empty, empty)] * len(weights["layers"]), jnp.int32(0), shape
    )
    first = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    out = jnp.pad(tokens_BP, ((0, 0), (0, new_tokens))).at[:, prompt].set(first)

    def step(state: tuple) -> tuple:
        out, caches, length = state
        token = jax.lax.dynamic_slice_in_dim(out, length - 1, 1, axis=1)
        logits, caches = _forward(weights, token, caches, length - 1, shape)
        token = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return jax.lax.dynamic_update_slice_in_dim(out, token[:, None], length, axis=1), caches, length + 1

    last = prompt + new_tokens
    return jax.lax.while_loop(lambda state: state[2] < last, step, (out, caches, jnp.int32(prompt + 1)))[0]
