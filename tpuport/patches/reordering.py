"""Valid tokens first: the static form of reading tokens with boolean masks and putting them together anew.

Research models that take several padded token streams often concatenate, one sample at a time, `a[mask_a]`,
`b[mask_b]`, `a[~mask_a]`, `b[~mask_b]`. The lengths of those reads depend on values, so no such program can be
compiled; the whole has the same length for every mask. One stable sort of all tokens' validity gives the same order.
Shapes: B batch, N tokens of one stream, S tokens of all streams, E model width.
"""

from collections.abc import Sequence

import torch

from tpuport.errors import PortError


def valid_first(
    states: Sequence[torch.Tensor],
    masks: Sequence[torch.Tensor],
    zero_padding: bool | Sequence[bool] = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Traced. The streams one after the other, in every sample valid tokens before padding, otherwise in their order.

    So stream 1's valid tokens come first, then stream 2's, and so on; then stream 1's padding, stream 2's, and so on.

    Args:
        states: [B, N_i, E] each.
        masks: [B, N_i] each; what is not zero (or False) is valid.
        zero_padding: whether padding becomes zeros, for all streams or for each.

    Returns:
        The tokens [B, S, E], and which of them are valid, boolean [B, S]: a number of tokens from the front, made as a
        comparison of places with that number, from which attention can tell that it is padding.

    Raises:
        PortError: no stream, or shapes that do not fit each other.
    """
    _check(states, masks)
    flags = [zero_padding] * len(states) if isinstance(zero_padding, bool) else list(zero_padding)
    masks = [mask.to(torch.bool) for mask in masks]
    cleaned = [
        torch.where(mask.unsqueeze(-1), state, torch.zeros_like(state)) if zero else state
        for state, mask, zero in zip(states, masks, flags, strict=True)
    ]
    tokens, valid = torch.cat(cleaned, dim=1), torch.cat(masks, dim=1)
    order = torch.argsort((~valid).to(torch.int32), dim=1, stable=True)
    places = torch.arange(valid.shape[1], device=valid.device)
    count = valid.sum(dim=1, keepdim=True)
    return torch.take_along_dim(tokens, order.unsqueeze(-1), dim=1), places.unsqueeze(0) < count


def _check(states: Sequence[torch.Tensor], masks: Sequence[torch.Tensor]) -> None:
    where = f"states {[list(x.shape) for x in states]}, masks {[list(x.shape) for x in masks]}"
    if not states or len(states) != len(masks):
        raise PortError("token streams and masks differ in number, or there are none", where=where)
    fits = all(
        state.ndim == 3 and mask.shape == state.shape[:2] for state, mask in zip(states, masks, strict=True)
    )
    if not fits or len({(state.shape[0], state.shape[2]) for state in states}) > 1:
        raise PortError(
            "token streams and masks do not fit each other", where=where,
            fix="give states [batch, tokens, width] and masks [batch, tokens] of one batch and width",
        )  # fmt: skip
