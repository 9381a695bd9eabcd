"""GLM-5-Next's mask of the keys that an indexer selected: boolean, as for torch's fused
attention.

Shapes: B rows, Q queries, N selected keys, T keys.
"""

from collections.abc import Callable
from typing import Any

import torch

from tpuport.attention.register.eager_attention import is_eager
from tpuport.patches import with_original


@with_original
def mask_of_selected_keys(
    original: Callable[..., torch.Tensor],
    self: Any,
    topk_indices: torch.Tensor,
    query_states: torch.Tensor,
    kv_length: int,
) -> torch.Tensor:
    """Traced. As `Glm5NextTextAttention.build_attention_mask_from_topk`, boolean
    wherever torch's would be.

    transformers asks for "sdpa" by name, and returns numbers to add for any other
    attention. With these a query of padding, which sees no key, gets the mean of all
    values, where torch's fused attention gives zeros.

    Args:
        topk_indices: [B, Q, N], -1 for none.

    Returns:
        [B, 1, Q, T].
    """
    mask = original(self, topk_indices, query_states, kv_length)
    if is_eager(self) or mask.dtype == torch.bool:
        return mask
    return mask == 0
