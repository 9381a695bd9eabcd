"""HunYuan-VL counts its placeholders of images in the program, where transformers
selects them.
"""

from collections.abc import Callable
from typing import Any

import torch
from transformers.utils.import_utils import torch_compilable_check

from tpuport.patches.switch import with_original


@with_original
def placeholder_mask(
    original: Callable[..., Any],
    self: Any,
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor,
    image_features: torch.Tensor | None = None,
) -> torch.Tensor:
    """Traced. As `HunYuanVLModel.get_placeholder_mask`, a bool for each element
    [B, S, E] of the embeddings.
    """
    mask = original(self, input_ids, inputs_embeds)
    if image_features is not None:
        torch_compilable_check(
            mask.sum() == image_features.numel(),
            "Image features and image tokens do not match",
        )
    return mask
