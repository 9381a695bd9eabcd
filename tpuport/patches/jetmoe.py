"""JetMoE's experts with group sizes that are known on the device alone.

transformers takes the number of tokens of each expert to Python, and splits the tokens
by it. Letters: S token-expert pairs sorted by expert, X experts.
"""

from typing import Any

import jax
import torch

from tpuport import compat
from tpuport.compat.recording import as_one_node


def gating_forward(self: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Traced. The routing of hidden_states [N, E], as `JetMoeTopKGating.forward` with
    the sizes [X] as a tensor.
    """
    logits = self.layer(hidden_states).float()
    top_logits, chosen = logits.topk(self.top_k, dim=1)
    gates = torch.softmax(top_logits, dim=1).type_as(hidden_states).flatten()
    experts = chosen.flatten()
    numbers = torch.arange(self.num_experts, device=experts.device)
    sizes = (experts[:, None] == numbers).sum(0)
    _, order = experts.sort(0)
    return order, order // self.top_k, gates[order], sizes, logits


def experts_forward(
    self: Any, inputs: torch.Tensor, expert_size: torch.Tensor
) -> torch.Tensor:
    """Traced. Inputs [S, in], each group of rows by its expert's weight [X, out, in]:
    [S, out].
    """
    return _products(inputs, self.weight, expert_size)


@as_one_node
def _products(
    inputs: torch.Tensor, weight: torch.Tensor, expert_size: torch.Tensor
) -> torch.Tensor:
    rows, weights, sizes = compat.as_jax((inputs, weight, expert_size))
    return compat.wrap(
        jax.lax.ragged_dot(rows, weights.swapaxes(1, 2), sizes.astype("int32"))
    )
