"""Models that give other tokens without a cache than with one: ProphetNet.

Its decoder runs streams that predict the next tokens beside the one of the text.
Without a cache, transformers adds the relative positions of these streams in the order
of rows, tokens, streams and heads to scores in the order of rows, streams, heads and
tokens. With one there is a single token, and the orders agree. The stream of the text
is the same. Shapes: B batch, N streams, H heads, P tokens, S keys, R buckets of
positions.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

_METHOD = "get_predict_relative_pos_embeddings"


@contextlib.contextmanager
def as_with_cache(model: torch.nn.Module) -> Iterator[None]:
    """Traced. Let the model give without a cache what it gives with one: ProphetNet's
    attention adds relative positions to the scores of their own rows, heads and tokens.
    """
    with contextlib.ExitStack() as stack:
        for cls in {
            type(module) for module in model.modules() if hasattr(module, _METHOD)
        }:
            stack.enter_context(mock.patch.object(cls, _METHOD, _relative_positions))
        yield


def _relative_positions(
    attention: Any,
    hidden_states: torch.Tensor,
    attn_weights: torch.Tensor,
    position_ids: torch.Tensor,
    predict_relative_position_buckets: torch.Tensor,
) -> torch.Tensor:
    """Traced. [B, N, H, P, S] of hidden states [B, P, N, width] and the bucket of each
    key, [B, P, S].
    """
    values = attention.relative_pos_embeddings(hidden_states.transpose(1, 2))
    # [B, N, P, R * H]
    values = values.unflatten(
        -1, (attention.num_buckets, attention.num_attn_heads)
    ).permute(0, 1, 4, 2, 3)
    buckets = predict_relative_position_buckets[:, None, None].long()
    return torch.gather(
        values, -1, buckets.expand(*values.shape[:-1], buckets.shape[-1])
    )
