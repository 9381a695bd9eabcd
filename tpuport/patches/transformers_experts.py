"""transformers' mixture-of-experts layers, computed where each device holds whole experts.

Letters: N tokens, C experts a token chooses, X experts (here: those one device holds), E model width, F
expert width, S = N * C token-expert pairs. Expert weights are `[X, out, in]`, or `[X, in, out]` where the
module says that they are transposed.

Experts are shared out whole over the axis `tp`: every device runs its own experts on all tokens and one
all-reduce adds the results, which is all the communication of the layer. Cutting inside an expert would
spread the work of a single token more evenly, but gate and up are stored as one matrix, mostly `[gate; up]`:
no contiguous cut gives a device the rows of both that belong together, so activations would have to move.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from tpuport import compat

NAME = "tpuport"

_mesh: ContextVar[Mesh | None] = ContextVar("tpuport_experts_mesh", default=None)

Activation = Callable[[jax.Array], jax.Array]


class Weights(NamedTuple):
    """The weights of X experts; `first` is gate and up in one, or up alone. Biases are [X, out] or None."""

    first: jax.Array
    first_bias: jax.Array | None
    second: jax.Array
    second_bias: jax.Array | None


def dense_experts(
    hidden_NE: Float[Array, "N E"],
    chosen_NC: Int[Array, "N C"],
    weight_NC: Float[Array, "N C"],
    weights: Weights,
    activation: Activation,
    transposed: bool,
) -> Float[Array, "N E"]:
    """Traced. Every expert on every token, then the weighted sum: the definition.

    It takes X / C times the work that is needed, in plain products.

    Args:
        chosen_NC: expert numbers; one outside 0..X-1 contributes nothing.
        weight_NC: the weight of each choice.
        activation: [..., out of first] -> [..., in of second].
    """
    experts = weights.first.shape[0]
    routing_NX = jnp.einsum("ncx,nc->nx", chosen_NC[..., None] == jnp.arange(experts), weight_NC)
    up = jnp.einsum("ne,xef->xnf" if transposed else "ne,xfe->xnf", hidden_NE, weights.first)
    up = up if weights.first_bias is None else up + weights.first_bias[:, None]
    down = jnp.einsum("xnf,xfe->xne" if transposed else "xnf,xef->xne", activation(up), weights.second)
    down = down if weights.second_bias is None else down + weights.second_bias[:, None]
    out = jnp.einsum("xne,nx->ne", down, routing_NX, preferred_element_type=jnp.float32)
    return out.astype(hidden_NE.dtype)


def ragged_experts(
    hidden_NE: Float[Array, "N E"],
    chosen_NC: Int[Array, "N C"],
    weight_NC: Float[Array, "N C"],
    weights: Weights,
    activation: Activation,
    transposed: bool,
) -> Float[Array, "N E"]:
    """Traced. As `dense_experts`, with pairs sorted by expert, so that each meets only its own tokens."""
    experts, choices = weights.first.shape[0], chosen_NC.shape[1]
    flat_S = chosen_NC.reshape(-1)
    expert_S = jnp.where((flat_S >= 0) & (flat_S < experts), flat_S, experts)
    order_S = jnp.argsort(expert_S, stable=True)
    sizes_X = jnp.sum(expert_S[:, None] == jnp.arange(experts), axis=0, dtype=jnp.int32)
    sorted_S = jnp.minimum(expert_S[order_S], experts - 1)
    up = _ragged(hidden_NE[order_S // choices], weights.first, sizes_X, transposed)
    up = up if weights.first_bias is None else up + weights.first_bias[sorted_S]
    down = _ragged(activation(up), weights.second, sizes_X, transposed)
    down = down if weights.second_bias is None else down + weights.second_bias[sorted_S]
    # Pairs of other devices' experts are sorted last; what a product leaves in their rows is undefined.
    mine_S1 = (jnp.arange(flat_S.shape[0]) < jnp.sum(sizes_X))[:, None]
    back_S = jnp.argsort(order_S)
    pairs_NCE = jnp.where(mine_S1, down, 0)[back_S].reshape(*chosen_NC.shape, -1)
    out = jnp.einsum("nce,nc->ne", pairs_NCE, weight_NC, preferred_element_type=jnp.float32)
    return out.astype(hidden_NE.dtype)


def _ragged(rows: jax.Array, weight: jax.Array, sizes: jax.Array, transposed: bool) -> jax.Array:
    return jax.lax.ragged_dot(rows, weight if transposed else weight.swapaxes(1, 2), sizes)


def _on_this_platform(*operands: Any, activation: Activation, transposed: bool) -> jax.Array:
    """Traced. The ragged product is a kernel on TPU; elsewhere XLA computes it as C dense products."""
    ragged, dense = (
        lambda *arrays, form=form: form(*arrays, activation, transposed)
        for form in (ragged_experts, dense_experts)
    )
    return jax.lax.platform_dependent(*operands, tpu=ragged, default=dense)


def experts_on_mesh(
    hidden_NE: jax.Array,
    chosen_NC: jax.Array,
    weight_NC: jax.Array,
    weights: Weights,
    activation: Activation,
    transposed: bool,
    mesh: Mesh | None,
) -> jax.Array:
    """Traced. The layer with experts shared out over `tp` and tokens over `dp`, where those divide them."""
    experts, tokens = weights.first.shape[0], hidden_NE.shape[0]
    parts = mesh.shape.get("tp", 1) if mesh is not None else 1
    if mesh is None or experts % parts:
        # The weights then lie in some other way, which the compiler has to follow: the dense form is plain
        # products, and so moves no weights.
        return dense_experts(hidden_NE, chosen_NC, weight_NC, weights, activation, transposed)
    dp = "dp" if mesh.shape.get("dp", 1) > 1 and tokens % mesh.shape["dp"] == 0 else None
    rows, whole = PartitionSpec(dp), PartitionSpec("tp" if parts > 1 else None)

    def local(hidden: jax.Array, chosen: jax.Array, weight: jax.Array, own: Weights) -> jax.Array:
        start = jax.lax.axis_index("tp") * (experts // parts) if parts > 1 else 0
        out = _on_this_platform(
            hidden, chosen - start, weight, own, activation=activation, transposed=transposed
        )
        return jax.lax.psum(out, "tp") if parts > 1 else out

    # Every axis is manual: XLA's CPU compiler aborts on a bfloat16 all-reduce where only some of them are.
    # (A sequence shared out over `sp` is gathered for it.)
    specs = (rows, rows, rows, whole)
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=rows, check_vma=False)
    return mapped(hidden_NE, chosen_NC, weight_NC, weights)


def transformers_experts(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Traced. transformers' experts interface: hidden [N, E], chosen experts and weights [N, C] -> [N, E].

    Outside a ported model, and for experts with a norm after each, transformers' own form serves.
    """
    if not compat.is_ported(hidden_states) or module.has_post_expert_norm:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

        return ALL_EXPERTS_FUNCTIONS["grouped_mm"](module, hidden_states, top_k_index, top_k_weights)

    def activation(array: jax.Array) -> jax.Array:
        tensor = compat.wrap(array)
        return compat.as_jax(module._apply_gate(tensor) if module.has_gate else module.act_fn(tensor))

    first = "gate_up_proj" if module.has_gate else "up_proj"
    kernels = compat.as_jax((getattr(module, first), module.down_proj))
    biases = (getattr(module, f"{first}_bias"), module.down_proj_bias) if module.has_bias else (None, None)
    (up, down), (up_bias, down_bias) = kernels, compat.as_jax(biases)
    weights = Weights(up, up_bias, down, down_bias)
    hidden, chosen, weight = compat.as_jax((hidden_states, top_k_index, top_k_weights))
    out = experts_on_mesh(hidden, chosen, weight, weights, activation, module.is_transposed, _mesh.get())
    return compat.wrap(out)


def register() -> None:
    """Make `experts_implementation="tpuport"` known to transformers. Idempotent."""
    from transformers.integrations.moe import ExpertsInterface

    ExpertsInterface.register(NAME, transformers_experts)


@contextlib.contextmanager
def use(model: torch.nn.Module, mesh: Mesh | None) -> Iterator[None]:
    """Let a transformers model compute its experts through tpuport inside the block.

    A model without such experts is left alone.

    Args:
        mesh: the mesh that the model's weights live on; None computes without sharing anything out.
    """
    configs = _configs(model)
    if not configs:
        yield
        return
    register()
    previous = [(config, config._experts_implementation_internal) for config in configs]
    token = _mesh.set(mesh)
    for config in configs:
        config._experts_implementation_internal = NAME
    try:
        yield
    finally:
        _mesh.reset(token)
        for config, name in previous:
            config._experts_implementation_internal = name


def _configs(model: torch.nn.Module) -> list[Any]:
    """The configurations that the model's expert modules read their implementation from."""
    experts = (module for module in model.modules() if hasattr(module, "has_post_expert_norm"))
    return list({id(module.config): module.config for module in experts}.values())
