"""X-MOD's adapters of each row's language, where the languages are known on the device
alone.

transformers selects the rows of each language by a mask, whose number of true elements
a trace does not know.
"""

from typing import Any

import torch


def lang_adapter(
    self: Any, lang_ids: torch.Tensor, hidden_states: torch.Tensor
) -> torch.Tensor:
    """Traced. `XmodOutput.lang_adapter` of hidden states [B, L, E] in languages [B]:
    every adapter runs on all rows.
    """
    residual = hidden_states
    if self.adapter_layer_norm is not None:
        hidden_states = self.adapter_layer_norm(hidden_states)
    elif self.adapter_reuse_layer_norm:
        hidden_states = self.LayerNorm(hidden_states)
    if self.ln_before_adapter:
        residual = hidden_states
    adapted = torch.zeros_like(hidden_states)
    for number, adapter in enumerate(self.adapter_modules.values()):
        has_language = (lang_ids == number)[:, None, None]
        adapted = torch.where(has_language, adapter(hidden_states), adapted)
    return self.dropout(adapted) + residual
