"""Masks of torch.nn's transformer layers, which torch compares with a causal one to
leave them out where it can.
"""

from typing import Any

import torch


def detect_is_causal_mask(
    mask: torch.Tensor | None, is_causal: bool | None = None, size: Any = None
) -> bool:
    """Traced. `_detect_is_causal_mask`: what the caller says, as a mask that is passed
    on gives the same result.
    """
    del mask, size
    return bool(is_causal)
