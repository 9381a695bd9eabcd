"""Recurrences of transformers' models as loops on the device, instead of one copy of
their body for each token.

transformers has kernels for a GPU, and writes the recurrence out for everything else:
traced, a prompt of a thousand tokens is a program of a thousand bodies in each layer,
which takes minutes to compile. Letters: B batch, L tokens, D channels, N states of a
channel.
"""

from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport import compat
from tpuport.compat.recording import as_one_node


def _tokens_first(array: jax.Array, axis: int) -> jax.Array:
    """Traced. The array with its tokens in the first dimension, over which
    `jax.lax.scan` loops.
    """
    return jnp.moveaxis(array, axis, 0)


@as_one_node
def mamba_selective_scan(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **kwargs: Any,
) -> Any:
    """Traced. Algorithm 2 of Gu and Dao 2023, Mamba, of hidden_states and dt [B, D, L],
    A [D, N], B and C [B, N, L].

    Returns:
        [B, D, L], and with `return_last_state` the state [B, D, N] after the last
        token.
    """
    if delta_bias is not None:
        dt = dt + delta_bias.to(dt.dtype)[..., None]
    if delta_softplus:
        dt = torch.nn.functional.softplus(dt)
    decay_rate = compat.as_jax(A)
    inputs = tuple(
        _tokens_first(compat.as_jax(tensor), -1) for tensor in (hidden_states, dt, B, C)
    )
    dtype = inputs[0].dtype

    def step(
        state: jax.Array, token: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array]:
        hidden, delta, input_gate, output_gate = token
        decay = jnp.exp(decay_rate * delta[..., None])
        change = (
            delta[..., None]
            * input_gate[:, None].astype(jnp.float32)
            * hidden[..., None].astype(jnp.float32)
        )
        state = decay * state + change
        return state, jnp.einsum("bdn,bn->bd", state.astype(dtype), output_gate)

    hidden, delta = inputs[:2]
    state_dtype = jnp.result_type(decay_rate.dtype, delta.dtype, jnp.float32)
    first_state = jnp.zeros((*hidden.shape[1:], decay_rate.shape[-1]), state_dtype)
    last_state, outputs = jax.lax.scan(step, first_state, inputs)
    output = compat.wrap(jnp.moveaxis(outputs, 0, -1))
    if D is not None:
        output = output + hidden_states * D[None, :, None]
    if z is not None:
        output = output * torch.nn.functional.silu(z)
    return (output, compat.wrap(last_state)) if return_last_state else output


@as_one_node
def rwkv_linear_attention(
    time_decay: torch.Tensor,
    time_first: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: Any = None,
    return_state: bool = False,
) -> tuple[torch.Tensor, Any]:
    """Traced. RWKV's attention (Peng et al. 2023, appendix D) of key and value
    [B, L, D], decay and first [D].

    Returns:
        [B, L, D], and the state after the last token: numerator, denominator and
        largest exponent, [B, D] each.
    """
    keys, values = (_tokens_first(compat.as_jax(tensor), 1) for tensor in (key, value))
    decay, first = -jnp.exp(compat.as_jax(time_decay)), compat.as_jax(time_first)
    if state is None:
        zeros = jnp.zeros(keys.shape[1:], jnp.float32)
        first_state = (zeros, zeros, zeros - 1e38)
    else:
        first_state = tuple(compat.as_jax(part) for part in state)

    def step(
        carry: tuple[jax.Array, ...], token: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        numerator, denominator, largest = carry
        exponent, current = token[0].astype(jnp.float32), token[1]
        for_output = jnp.maximum(largest, exponent + first)
        past, now = (
            jnp.exp(largest - for_output),
            jnp.exp(exponent + first - for_output),
        )
        output = (past * numerator + now * current) / (past * denominator + now)
        for_state = jnp.maximum(largest + decay, exponent)
        past, now = jnp.exp(largest + decay - for_state), jnp.exp(exponent - for_state)
        numerator = (past * numerator + now * current).astype(carry[0].dtype)
        denominator = (past * denominator + now).astype(carry[1].dtype)
        return (
            numerator,
            denominator,
            for_state.astype(carry[2].dtype),
        ), output.astype(keys.dtype)

    last_state, outputs = jax.lax.scan(step, first_state, (keys, values))
    output = compat.wrap(jnp.moveaxis(outputs, 0, 1))
    if return_state or state is not None:
        state = [compat.wrap(part) for part in last_state]
    return output, state


@as_one_node
def rg_lru_scan(
    self: Any,
    hidden_states: torch.Tensor,
    recurrent_gate: torch.Tensor,
    reset: torch.Tensor,
    recurrent_states: torch.Tensor | None,
    acc_dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Traced. The linear recurrence of RecurrentGemma (De et al. 2024, Griffin): hidden
    states and gate [B, L, D].

    Returns:
        [B, L, D], and the state [B, D] after the last token.
    """
    gate = recurrent_gate * ~reset
    gates, inputs = (
        _tokens_first(compat.as_jax(part.type(acc_dtype)), 1)
        for part in (gate, hidden_states)
    )
    dtype = compat.as_jax(hidden_states).dtype
    if recurrent_states is None:
        # The first token of a prompt by itself.
        first_state = jnp.zeros(inputs.shape[1:], inputs.dtype)
    else:
        first_state = compat.as_jax(recurrent_states).astype(inputs.dtype)

    def step(
        state: jax.Array, token: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        state = token[0] * state + token[1]
        return state, state.astype(dtype)

    last_state, outputs = jax.lax.scan(step, first_state, (gates, inputs))
    return compat.wrap(jnp.moveaxis(outputs, 0, 1)), compat.wrap(last_state)
