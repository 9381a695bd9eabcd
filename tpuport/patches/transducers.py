"""The decoders of Parakeet and Nemotron, which read back the tokens that they have
written.

transformers leaves the decoder out in a step in which all rows have written a blank,
for which it looks at them.
"""

from typing import Any

import torch


def decoder_forward(
    self: Any, input_ids: torch.Tensor, cache: Any = None
) -> torch.Tensor:
    """Traced. `ParakeetRNNTDecoder.forward` of tokens [B, L]: rows with a blank keep
    their state, all of them too.
    """
    embeddings = self.embedding(input_ids)
    if cache is None:
        return self.decoder_projector(self.lstm(embeddings)[0])
    states = (cache.hidden_state, cache.cell_state) if cache.is_initialized else None
    output, (hidden_state, cell_state) = self.lstm(embeddings, states)
    output = self.decoder_projector(output)
    if cache.is_initialized:
        cache.update(
            output,
            hidden_state,
            cell_state,
            mask=input_ids[:, -1] != self.blank_token_id,
        )
    else:
        cache.cache, cache.hidden_state, cache.cell_state = (
            output,
            hidden_state,
            cell_state,
        )
        cache.is_initialized = True
    return cache.cache
