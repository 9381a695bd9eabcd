"""transformers' mixture-of-experts layers, computed where each device holds whole
experts.

Letters: N tokens, C experts per token, X experts (of one device), E model width, F
expert width, S = N * C token-expert pairs. Expert weights are `[X, out, in]`, or
`[X, in, out]` if the module says that they are transposed.

Each device along the axis `tp` holds whole experts: it runs them on all tokens, and one
all-reduce adds the results, which is all the communication of the layer. Cutting inside
an expert would balance the work of a single token better, but gate and up are stored as
one matrix, mostly `[gate; up]`: no contiguous cut gives a device the matching rows of
both, so activations would have to move.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from tpuport import compat
from tpuport.compat.operators.quantized import QuantizedArray, dequantize
from tpuport.compat.recording import as_one_node

NAME = "tpuport"

_mesh: ContextVar[Mesh | None] = ContextVar("tpuport_experts_mesh", default=None)

Activation = Callable[[jax.Array], jax.Array]


class Weights(NamedTuple):
    """The weights of X experts; `first` is gate and up in one, or up alone. Biases are
    [X, out] or None.

    Weights are arrays, or `QuantizedArray`s.
    """

    first: Any
    first_bias: jax.Array | None
    second: Any
    second_bias: jax.Array | None

    @property
    def experts(self) -> int:
        """X."""
        return jax.tree.leaves(self.first)[0].shape[0]

    @property
    def is_quantized(self) -> bool:
        """Whether any weight is in few bits."""
        return isinstance(self.first, QuantizedArray) or isinstance(
            self.second, QuantizedArray
        )

    @property
    def are_mxfp4(self) -> bool:
        """Whether all weights are in MXFP4."""
        return all(
            isinstance(w, QuantizedArray) and w.is_mxfp4
            for w in (self.first, self.second)
        )

    def dequantized(self) -> "Weights":
        """Traced. Wide weights."""
        wide = [
            dequantize(w) if isinstance(w, QuantizedArray) else w
            for w in (self.first, self.second)
        ]
        return self._replace(first=wide[0], second=wide[1])

    def with_output_last(self) -> "Weights":
        """The weights as [X, in, out], given [X, out, in]."""
        return self._replace(
            first=self.first.swapaxes(1, 2), second=self.second.swapaxes(1, 2)
        )


def dense_experts(
    hidden_NE: Float[Array, "N E"],
    chosen_NC: Int[Array, "N C"],
    weight_NC: Float[Array, "N C"],
    weights: Weights,
    activation: Activation,
    transposed: bool,
) -> Float[Array, "N E"]:
    """Traced. Every expert on every token, then the weighted sum: the definition.

    It does X / C times the necessary work, in plain products.

    Args:
        chosen_NC: expert numbers; one outside 0..X-1 contributes nothing.
        weight_NC: the weight of each choice.
        activation: [..., out of first] -> [..., in of second].
    """
    if not transposed:
        weights = weights.with_output_last()
    experts = weights.first.shape[0]
    # Comparison instead of a scatter: a number outside the range matches no expert.
    routing_NX = jnp.einsum(
        "ncx,nc->nx", chosen_NC[..., None] == jnp.arange(experts), weight_NC
    )
    up = jnp.einsum("ne,xef->xnf", hidden_NE, weights.first)
    up = _add_bias(up, weights.first_bias, np.s_[:, None])
    down = jnp.einsum("xnf,xfe->xne", activation(up), weights.second)
    down = _add_bias(down, weights.second_bias, np.s_[:, None])
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
    """Traced. As `dense_experts`, with pairs sorted by expert, so that each expert sees
    only its own tokens.
    """
    if not transposed:
        weights = weights.with_output_last()
    experts = weights.first.shape[0]
    choices = chosen_NC.shape[1]
    flat_S = chosen_NC.reshape(-1)
    # Experts of other devices count as one more expert, after the last.
    expert_S = jnp.where((flat_S >= 0) & (flat_S < experts), flat_S, experts)
    order_S = jnp.argsort(expert_S, stable=True)
    sizes_X = jnp.sum(expert_S[:, None] == jnp.arange(experts), axis=0, dtype=jnp.int32)
    # Rows of other devices read some bias too; they are set to zero below.
    sorted_S = jnp.minimum(expert_S[order_S], experts - 1)
    up = jax.lax.ragged_dot(hidden_NE[order_S // choices], weights.first, sizes_X)
    up = _add_bias(up, weights.first_bias, sorted_S)
    down = jax.lax.ragged_dot(activation(up), weights.second, sizes_X)
    down = _add_bias(down, weights.second_bias, sorted_S)
    # Pairs of other devices' experts are sorted last; the products leave undefined
    # values in their rows.
    is_local_S1 = (jnp.arange(flat_S.shape[0]) < jnp.sum(sizes_X))[:, None]
    inverse_S = jnp.argsort(order_S)
    pairs_NCE = jnp.where(is_local_S1, down, 0)[inverse_S].reshape(*chosen_NC.shape, -1)
    out = jnp.einsum(
        "nce,nc->ne", pairs_NCE, weight_NC, preferred_element_type=jnp.float32
    )
    return out.astype(hidden_NE.dtype)


def blocked_experts(
    hidden_NE: Float[Array, "N E"],
    chosen_NC: Int[Array, "N C"],
    weight_NC: Float[Array, "N C"],
    weights: Weights,
    activation: Activation,
    transposed: bool,
    devices: int = 1,
) -> Float[Array, "N E"]:
    """Traced. As `ragged_experts`, for weights in few bits: a loop over blocks of pairs
    that chose the same expert.

    Inside the loop an expert's weights are used by plain products, which XLA fuses with
    their conversion; the ragged product is a kernel and would get wide weights through
    memory.

    Args:
        devices: how many share the experts out, each with as many as there are here.
    """
    experts, choices = weights.experts, chosen_NC.shape[1]
    pairs = chosen_NC.size
    rows = _block_rows(pairs, experts * devices)
    if weights.are_mxfp4:
        # A token chooses an expert once, and rows that are empty would take time.
        rows = min(rows, hidden_NE.shape[0])
    blocks = _blocks_of_pairs(chosen_NC.reshape(-1), experts, rows)
    flat_weight_S = weight_NC.reshape(-1)

    def add_block(total: jax.Array, block: PairBlock) -> tuple[jax.Array, None]:
        def compute(total: jax.Array) -> jax.Array:
            tokens = block.pairs // choices
            up = _expert_product(
                hidden_NE[tokens], weights.first, block.expert, transposed
            )
            up = _add_bias(up, weights.first_bias, block.expert)
            down = _expert_product(
                activation(up), weights.second, block.expert, transposed
            )
            down = _add_bias(down, weights.second_bias, block.expert)
            weighted = down.astype(jnp.float32) * flat_weight_S[block.pairs, None]
            return total.at[tokens].add(jnp.where(block.is_pair[:, None], weighted, 0))

        return jax.lax.cond(block.is_pair[0], compute, lambda total: total, total), None

    total = jnp.zeros(hidden_NE.shape, jnp.float32)
    return jax.lax.scan(add_block, total, blocks)[0].astype(hidden_NE.dtype)


class PairBlock(NamedTuple):
    """Pairs of one expert. `is_pair` is False behind the last of them, where `pairs`
    means nothing.
    """

    expert: jax.Array
    pairs: jax.Array
    is_pair: jax.Array


def _block_rows(pairs: int, experts: int) -> int:
    """Pairs in a block: a power of two that holds what an expert gets on average, so
    that most are read once.
    """
    average = -(-pairs // experts)
    return min(max(8, 1 << (2 * average - 1).bit_length()), 256)


def _blocks_of_pairs(chosen_S: jax.Array, experts: int, rows: int) -> PairBlock:
    """Traced. All pairs of experts in 0..experts-1, in as many blocks [blocks, rows] as
    there may be at most.
    """
    pairs = chosen_S.shape[0]
    expert_S = jnp.where((chosen_S >= 0) & (chosen_S < experts), chosen_S, experts)
    order_S = jnp.argsort(expert_S, stable=True)
    sizes_X = jnp.sum(expert_S[:, None] == jnp.arange(experts), axis=0, dtype=jnp.int32)
    starts_X = jnp.cumsum(sizes_X) - sizes_X
    blocks_X = -(-sizes_X // rows)
    block_ends_X = jnp.cumsum(blocks_X)
    count = min(pairs, -(-pairs // rows) + experts)
    block = jnp.arange(count)
    # Behind the last block of the last expert, experts have no pairs left.
    expert = jnp.searchsorted(block_ends_X, block, side="right", method="compare_all")
    expert = jnp.minimum(expert, experts - 1)
    block_in_expert = block - (block_ends_X - blocks_X)[expert]
    position = block_in_expert[:, None] * rows + jnp.arange(rows)
    is_pair = position < sizes_X[expert][:, None]
    sorted_position = jnp.minimum(starts_X[expert][:, None] + position, pairs - 1)
    return PairBlock(expert, order_S[sorted_position], is_pair)


def _expert_product(
    rows: jax.Array,
    weight: jax.Array | QuantizedArray,
    expert: jax.Array,
    transposed: bool,
) -> jax.Array:
    """Traced. The product of rows [R, in] and the weight of one expert."""
    if isinstance(weight, QuantizedArray):
        return weight.expert_linear(expert, rows)
    matrix = jax.lax.dynamic_index_in_dim(weight, expert, 0, keepdims=False)
    return rows @ (matrix if transposed else matrix.T)


def _add_bias(product: jax.Array, bias: jax.Array | None, rows: Any) -> jax.Array:
    """Traced. The product plus these rows of a bias [X, out], if there is a bias."""
    if bias is None:
        return product
    return product + bias[rows]


def _on_this_platform(
    *operands: Any, activation: Activation, transposed: bool, devices: int
) -> jax.Array:
    """Traced. The ragged product is a kernel on TPU; elsewhere XLA computes it as C
    dense products.
    """
    if operands[-1].is_quantized:
        return blocked_experts(
            *operands, activation=activation, transposed=transposed, devices=devices
        )
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
    """Traced. The layer with experts divided over `tp` and tokens over `dp`, if those
    axes divide them.
    """
    experts = weights.experts
    tokens = hidden_NE.shape[0]
    tp = _axis_if_it_divides(mesh, "tp", experts)
    if mesh is None and weights.is_quantized:
        return blocked_experts(
            hidden_NE, chosen_NC, weight_NC, weights, activation, transposed
        )
    if mesh is None or (tp is None and mesh.shape.get("tp", 1) > 1):
        # The weights are then sharded in some other way, which the compiler has to
        # follow. The dense form is plain products, and so moves no weights.
        return dense_experts(
            hidden_NE,
            chosen_NC,
            weight_NC,
            weights.dequantized(),
            activation,
            transposed,
        )
    rows = PartitionSpec(_axis_if_it_divides(mesh, "dp", tokens))

    def compute_local(
        hidden: jax.Array, chosen: jax.Array, weight: jax.Array, local_weights: Weights
    ) -> jax.Array:
        experts_of = functools.partial(
            _on_this_platform,
            activation=activation,
            transposed=transposed,
            devices=experts // local_weights.experts,
        )
        if tp is None:
            return experts_of(hidden, chosen, weight, local_weights)
        first_expert = jax.lax.axis_index(tp) * local_weights.experts
        return jax.lax.psum(
            experts_of(hidden, chosen - first_expert, weight, local_weights), tp
        )

    # Every axis is manual: XLA's CPU compiler aborts on a bfloat16 all-reduce where
    # only some of them are. (A sequence that is sharded over `sp` is gathered for it.)
    specs = (rows, rows, rows, PartitionSpec(tp))
    mapped = jax.shard_map(
        compute_local, mesh=mesh, in_specs=specs, out_specs=rows, check_vma=False
    )
    return mapped(hidden_NE, chosen_NC, weight_NC, weights)


def _axis_if_it_divides(mesh: Mesh | None, axis: str, size: int) -> str | None:
    """The axis, if the mesh has more than one device along it and their number divides
    a size.
    """
    devices = 1 if mesh is None else mesh.shape.get(axis, 1)
    if devices > 1 and size % devices == 0:
        return axis
    return None


def transformers_experts(
    module: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """Traced. transformers' experts interface: hidden [N, E], chosen experts and
    weights [N, C] -> [N, E].

    Outside a ported model, and for experts that are each followed by a norm,
    transformers computes them itself.
    """
    if not compat.is_ported(hidden_states) or module.has_post_expert_norm:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

        return ALL_EXPERTS_FUNCTIONS["grouped_mm"](
            module, hidden_states, top_k_index, top_k_weights
        )

    def activation(array: jax.Array) -> jax.Array:
        return compat.as_jax(function(compat.wrap(array)))

    if module.has_gate:
        first, function = "gate_up_proj", module._apply_gate
    else:
        first, function = "up_proj", module.act_fn
    weights = Weights(
        _as_weight(getattr(module, first)), None, _as_weight(module.down_proj), None
    )
    if module.has_bias:
        weights = weights._replace(
            first_bias=getattr(module, f"{first}_bias"),
            second_bias=module.down_proj_bias,
        )
    return _compute(
        hidden_states, top_k_index, top_k_weights, tuple(weights), activation, module.is_transposed
    )  # fmt: skip


@as_one_node
def _compute(
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    weights: tuple,
    activation: Any,
    is_transposed: bool,
) -> torch.Tensor:
    """Traced. Experts on a mesh, over tensors; `weights` are those of `Weights`."""
    hidden, chosen, weight = compat.as_jax((hidden_states, top_k_index, top_k_weights))
    out = experts_on_mesh(
        hidden, chosen, weight, compat.as_jax(Weights(*weights)), activation, is_transposed, _mesh.get()
    )  # fmt: skip
    return compat.wrap(out)


def _as_weight(tensor: torch.Tensor) -> Any:
    """Traced. The weight as it is stored, if it is in few bits."""
    return getattr(tensor, "quantized", tensor)


def longcat_forward(
    experts: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """Traced. `LongcatFlashExperts.forward`, [N, E]: experts behind the last one with
    weights give what they get.
    """

    def activation(array: jax.Array) -> jax.Array:
        gate, up = jnp.split(array, 2, axis=-1)
        return compat.as_jax(experts.act_fn(compat.wrap(gate))) * up

    routed = experts.num_routed_experts
    is_identity = top_k_index >= routed
    identity = torch.where(is_identity, top_k_weights, 0).sum(1, keepdim=True)
    output = (hidden_states * identity).to(hidden_states.dtype)
    if experts.gate_up_proj is None:
        return output
    weights = (experts.gate_up_proj[:routed], None, experts.down_proj, None)
    return output + _compute(
        hidden_states, top_k_index, top_k_weights, weights, activation, False
    )


def register() -> None:
    """Make `experts_implementation="tpuport"` known to transformers. Idempotent."""
    from transformers.integrations.moe import ExpertsInterface

    ExpertsInterface.register(NAME, transformers_experts)


@contextlib.contextmanager
def use(model: torch.nn.Module, mesh: Mesh | None) -> Iterator[None]:
    """Let a transformers model compute its experts through tpuport inside the block.

    A model without such experts is not changed; `longcat_forward` asks for the mesh.

    Args:
        mesh: the mesh that the model's weights are on; None for a single device.
    """
    configs = _configs(model)
    if configs:
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
    """The configurations that the model's expert modules read their implementation
    from.
    """
    experts = (
        module for module in model.modules() if hasattr(module, "has_post_expert_norm")
    )
    return list({id(module.config): module.config for module in experts}.values())
