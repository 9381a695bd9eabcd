"""Valid tokens first: the static form of selecting tokens with boolean masks and
concatenating them again.

Research models that take several padded token streams often concatenate, one sample at
a time, `a[mask_a]`, `b[mask_b]`, `a[~mask_a]`, `b[~mask_b]`. The lengths of those reads
depend on values, so no such program can be compiled; their concatenation has the same
length for every mask. One stable sort by validity gives the same order. Shapes: B
batch, N tokens of one stream, S tokens of all streams, E model width.
"""

from collections.abc import Sequence

import torch

from tpuport.errors import PortError


def valid_first(
    states: Sequence[torch.Tensor],
    masks: Sequence[torch.Tensor],
    zero_padding: bool | Sequence[bool] = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Traced. Concatenate the streams, in every sample valid tokens before padding,
    otherwise in their order.

    So stream 1's valid tokens come first, then stream 2's, and so on; then stream 1's
    padding, stream 2's, and so on.

    Args:
        states: [B, N_i, E] each.
        masks: [B, N_i] each; nonzero (or True) for valid tokens.
        zero_padding: whether padding becomes zeros, for all streams or for each.

    Returns:
        The tokens [B, S, E] and the boolean mask of valid ones [B, S]. The mask
        compares positions with the number of valid tokens, which attention recognizes
        as padding.

    Raises:
        PortError: there is no stream, or the shapes do not match.
    """
    _check(states, masks)
    if isinstance(zero_padding, bool):
        zero_padding = [zero_padding] * len(states)
    masks = [mask.to(torch.bool) for mask in masks]
    streams = list(states)
    for index, is_zeroed in enumerate(zero_padding):
        if is_zeroed:
            mask = masks[index].unsqueeze(-1)
            streams[index] = torch.where(
                mask, streams[index], torch.zeros_like(streams[index])
            )
    tokens = torch.cat(streams, dim=1)
    # The order of the streams decides ties, so both concatenations must agree.
    valid = torch.cat(masks, dim=1)
    # Stable: valid tokens, and padding, keep their order.
    order = torch.argsort((~valid).to(torch.int32), dim=1, stable=True)
    positions = torch.arange(valid.shape[1], device=valid.device)
    count = valid.sum(dim=1, keepdim=True)
    return torch.take_along_dim(
        tokens, order.unsqueeze(-1), dim=1
    ), positions.unsqueeze(0) < count


def _check(states: Sequence[torch.Tensor], masks: Sequence[torch.Tensor]) -> None:
    where = f"states {[list(x.shape) for x in states]}, masks {[list(x.shape) for x in masks]}"
    if not states or len(states) != len(masks):
        raise PortError(
            "token streams and masks differ in number, or there are none", where=where
        )
    # A set for each property: it has one element if all streams agree.
    ranks = {state.ndim for state in states}
    masks_match = all(
        mask.shape == state.shape[:2] for state, mask in zip(states, masks, strict=True)
    )
    sizes = {(state.shape[:1], state.shape[2:]) for state in states}
    if ranks != {3} or not masks_match or len(sizes) > 1:
        raise PortError(
            "token streams and masks do not fit each other", where=where,
            fix="give states [batch, tokens, width] and masks [batch, tokens] of one batch and width",
        )  # fmt: skip
