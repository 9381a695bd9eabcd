"""HiDream-I1 without sizes that depend on values: of its experts' shares, and of its
images.

Shapes: N tokens, C experts per token, E model width.
"""

from collections.abc import Callable
from typing import Any

import torch

from tpuport.patches.switch import with_original


def route_to_experts(
    self: Any,
    x: torch.Tensor,
    flat_expert_indices: torch.Tensor,
    flat_expert_weights: torch.Tensor,
) -> torch.Tensor:
    """Traced. `MOEFeedForwardSwiGLU.moe_infer`: x [N, E], experts [N * C] and weights
    [N * C, 1] -> [N, E].

    The original cuts the sorted tokens where their expert changes. Here every expert
    computes every token, which is X / C times the work of X experts, and a token takes
    the results of its own experts, added in the same order.
    """
    chosen = flat_expert_indices.view(x.shape[0], -1)
    weights = flat_expert_weights.view(chosen.shape)
    total = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        is_chosen = chosen == number
        weight = torch.where(is_chosen, weights, 0).sum(dim=-1, keepdim=True)
        output = expert(x)
        weighted = (output * weight).to(output.dtype)
        # Not a product with zero: what overflows in an expert that the token does not
        # use stays out of the sum.
        total = total.to(output.dtype) + torch.where(
            is_chosen.any(dim=-1, keepdim=True), weighted, 0
        )
    return total


@with_original
def patchify(
    original: Callable[..., Any], self: Any, hidden_states: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None, list[tuple[int, int]], torch.Tensor]:
    """Traced. `HiDreamImageTransformer2DModel.patchify`, with the sizes of the images
    as numbers, not as a tensor.
    """
    tokens, mask, _, ids = original(self, hidden_states)
    batch, _, height, width = hidden_states.shape
    patch = self.config.patch_size
    return tokens, mask, [(height // patch, width // patch)] * batch, ids
