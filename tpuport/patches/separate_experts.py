"""Experts that run one by one, of Switch Transformers, NLLB-MoE and DBRX: each on every
token, by its weight.

transformers looks up which tokens each expert has, and their number is not known while
tracing. Letters: N tokens, C choices of a token, X experts, E model width.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch


def switch_forward(
    experts: Any,
    hidden_states: torch.Tensor,
    selected_experts: torch.Tensor,
    routing_weights: torch.Tensor,
) -> torch.Tensor:
    """Traced. `SwitchTransformersExperts.forward`: hidden states [N, E], choices
    [N, C, X], their weights [N, C].
    """
    return _add_experts(
        _named_experts(experts), hidden_states, selected_experts > 0, routing_weights
    )


def nllb_forward(
    experts: Any,
    hidden_states: torch.Tensor,
    router_mask: torch.Tensor,
    router_probs: torch.Tensor,
) -> torch.Tensor:
    """Traced. `NllbMoeExperts.forward`: hidden states [N, E], expert numbers [N, C],
    and their weights [N, C].
    """
    numbers = torch.arange(experts.num_experts, device=router_mask.device)
    chosen = router_mask[..., None] == numbers
    if experts.moe_token_dropout > 0 and not experts.training:
        router_probs = router_probs * (1 - experts.moe_token_dropout)
    return _add_experts(_named_experts(experts), hidden_states, chosen, router_probs)


def dbrx_forward(
    experts: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """Traced. `DbrxExperts.forward`: hidden states [B, L, E], expert numbers [N, C],
    and their weights [N, C].
    """
    numbers = torch.arange(experts.num_experts, device=top_k_index.device)
    chosen = top_k_index[..., None] == numbers
    mlp = experts.mlp
    # One matrix for all experts, which lie below each other.
    matrices = (
        weight.view(experts.num_experts, experts.ffn_hidden_size, experts.hidden_size)
        for weight in (mlp.w1, mlp.v1, mlp.w2)
    )
    functions = [
        functools.partial(_run_dbrx_expert, mlp, *weights)
        for weights in zip(*matrices, strict=True)
    ]
    tokens = hidden_states.reshape(-1, experts.hidden_size)
    return _add_experts(functions, tokens, chosen, top_k_weights).view(
        hidden_states.shape
    )


def _run_dbrx_expert(
    mlp: Any,
    w1: torch.Tensor,
    v1: torch.Tensor,
    w2: torch.Tensor,
    hidden_states: torch.Tensor,
) -> torch.Tensor:
    return mlp(hidden_states, w1, v1, w2)


def _named_experts(experts: Any) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    return [experts[f"expert_{number}"] for number in range(experts.num_experts)]


def _add_experts(
    expert_functions: Sequence[Callable[[torch.Tensor], torch.Tensor]],
    hidden_states: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Traced. The sum of all experts' results [N, E] by the weights [N, C] of the
    choices [N, C, X].
    """
    by_expert = torch.where(chosen, weights[..., None], 0.0).sum(1)
    is_chosen = chosen.any(1)
    result = torch.zeros_like(hidden_states)
    for number, expert in enumerate(expert_functions):
        output = expert(hidden_states) * by_expert[:, number, None]
        # What an expert makes of tokens that are not its own may be infinite.
        result = result + torch.where(is_chosen[:, number, None], output, 0.0).to(
            hidden_states.dtype
        )
    return result
