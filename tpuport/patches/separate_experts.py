"""Experts that are modules of their own, of Switch Transformers and NLLB-MoE: each runs on every token, by its weight.

transformers looks up which tokens each expert has, and their number is not known while tracing. Letters: N tokens,
C choices of a token, X experts, E model width.
"""

from typing import Any

import torch


def switch_forward(
    experts: Any, hidden_states: torch.Tensor, selected_experts: torch.Tensor, routing_weights: torch.Tensor
) -> torch.Tensor:
    """Traced. `SwitchTransformersExperts.forward`: hidden states [N, E], choices [N, C, X], their weights [N, C]."""
    return _add_experts(experts, hidden_states, selected_experts > 0, routing_weights)


def nllb_forward(
    experts: Any, hidden_states: torch.Tensor, router_mask: torch.Tensor, router_probs: torch.Tensor
) -> torch.Tensor:
    """Traced. `NllbMoeExperts.forward`: hidden states [N, E], expert numbers [N, C], and their weights [N, C]."""
    numbers = torch.arange(experts.num_experts, device=router_mask.device)
    chosen = router_mask[..., None] == numbers
    if experts.moe_token_dropout > 0 and not experts.training:
        router_probs = router_probs * (1 - experts.moe_token_dropout)
    return _add_experts(experts, hidden_states, chosen, router_probs)


def _add_experts(
    experts: Any, hidden_states: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Traced. The sum of all experts' results [N, E] by the weights [N, C] of the choices [N, C, X]."""
    by_expert = torch.where(chosen, weights[..., None], 0.0).sum(1)
    is_chosen = chosen.any(1)
    result = torch.zeros_like(hidden_states)
    for number in range(experts.num_experts):
        output = experts[f"expert_{number}"](hidden_states) * by_expert[:, number, None]
        # What an expert makes of tokens that are not its own may be infinite.
        result = result + torch.where(is_chosen[:, number, None], output, 0.0).to(hidden_states.dtype)
    return result
