"""xformers' attention and the masks for it, computed by
`F.scaled_dot_product_attention`.

Shapes: B batch, Q query length, T key length, H query heads, D head dimension, M length
of one tensor.
"""

import itertools
from collections.abc import Sequence
from types import NoneType
from typing import Any, Self

import torch
from torch.nn import functional

from tpuport.base.mappings import without
from tpuport.base.plurals import count_noun
from tpuport.errors import PortError
from tpuport.gpu.attention_packages import INSTEAD, refuse
from tpuport.gpu.packed_sequences import Sequences, packed_attention


class LowerTriangularMask:
    """xformers' causal mask: the first query is aligned with the first key."""


class BlockDiagonalMask:
    """xformers' mask of sequences laid end to end, whose lengths are numbers."""

    # How many keys before and after its position a query sees, and whether positions
    # are counted from the last query and key of a sequence.
    _window = (-1, -1)
    _from_end = False

    def __init__(
        self, q_lengths: Sequence[int], k_lengths: Sequence[int], k_room: Sequence[int]
    ) -> None:
        # Keys have room of their own where padding follows each sequence.
        self._lengths = list(q_lengths), list(k_lengths)
        self._room = list(q_lengths), list(k_room)
        self._batch_sizes = [1] * len(self._lengths[0])

    @classmethod
    def from_seqlens(
        cls,
        q_seqlen: Sequence[int],
        kv_seqlen: Sequence[int] | None = None,
        *,
        device: Any = None,
    ) -> Self:
        """The mask of sequences with these lengths; the device is that of the queries
        when it is used.
        """
        del device
        kv_seqlen = q_seqlen if kv_seqlen is None else kv_seqlen
        _check_same_count(q_seqlen, kv_seqlen)
        return cls(q_seqlen, kv_seqlen, kv_seqlen)

    @classmethod
    def from_tensor_list(
        cls, tensors: Sequence[torch.Tensor]
    ) -> tuple[Self, torch.Tensor]:
        """The mask of tensors [B, M, ...], each of B sequences, and the tensors laid
        end to end, [1, sum of B * M, ...].
        """
        lengths = [[tensor.shape[1]] * tensor.shape[0] for tensor in tensors]
        mask = cls.from_seqlens(list(itertools.chain.from_iterable(lengths)))
        mask._batch_sizes = [tensor.shape[0] for tensor in tensors]
        rows = [tensor.reshape(1, -1, *tensor.shape[2:]) for tensor in tensors]
        return mask, torch.cat(rows, dim=1)

    def split(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors that `from_tensor_list` has laid end to end."""
        lengths = iter(self._lengths[0])
        taken = [
            list(itertools.islice(lengths, size)) for size in self._batch_sizes
        ]  # fmt: skip
        parts = tensor.split([sum(lengths) for lengths in taken], dim=1)
        return [
            part.reshape(len(lengths), -1, *tensor.shape[2:])
            for part, lengths in zip(parts, taken, strict=True)
        ]

    def make_causal(self) -> "BlockDiagonalCausalMask":
        """The mask whose first query of a sequence sees its first key only."""
        return self._remade(BlockDiagonalCausalMask)

    def make_causal_from_bottomright(self) -> "BlockDiagonalCausalFromBottomRightMask":
        """The mask whose last query of a sequence sees all of its keys, and each
        earlier one a key less.
        """
        return self._remade(BlockDiagonalCausalFromBottomRightMask)

    def _remade(self, cls: Any) -> Any:
        made = cls(*self._lengths, self._room[1])
        made._batch_sizes = self._batch_sizes
        return made

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        """[1, Q, H, D], of q [1, Q, H, D], k and v [1, T, H, D].

        Raises:
            PortError: the tensors have another batch or other lengths than the mask.
        """
        for name, tensor, room in zip("qk", (q, k), self._room, strict=True):
            if tensor.shape[:2] != (1, sum(room)):
                raise PortError(
                    f"a {type(self).__name__} of {sum(room)} rows",
                    where=f"{name} {list(tensor.shape)}",
                    fix="lay the sequences end to end in a batch of 1",
                )
        queries, keys = (
            _sequences(lengths, room, q.device)
            for lengths, room in zip(self._lengths, self._room, strict=True)
        )
        if self._lengths[0] == self._lengths[1] == self._room[1]:
            keys = queries
        q, k, v = (tensor.squeeze(0) for tensor in (q, k, v))
        return packed_attention(
            q, k, v, queries, keys, self._window, self._from_end, **options
        ).unsqueeze(0)  # fmt: skip


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Causal in each sequence, from its first query and key on."""

    _window = (-1, 0)


class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask):
    """Causal in each sequence, from its last query and key back."""

    _window = (-1, 0)
    _from_end = True


class BlockDiagonalPaddedKeysMask(BlockDiagonalMask):
    """Sequences of keys that each begin at a multiple of a number, followed by
    padding.
    """

    @classmethod
    def from_seqlens(  # type: ignore[override]
        cls,
        q_seqlen: Sequence[int],
        kv_padding: int,
        kv_seqlen: Sequence[int],
        causal_diagonal: Any = None,
        *,
        device: Any = None,
    ) -> Self:
        """The mask of sequences with these lengths and `kv_padding` rows for keys
        each.
        """
        del device, causal_diagonal  # xformers ignores the latter
        _check_same_count(q_seqlen, kv_seqlen)
        return cls(q_seqlen, kv_seqlen, [kv_padding] * len(kv_seqlen))


class BlockDiagonalCausalWithOffsetPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    """The same, causal in each sequence from its last query and key back."""

    _window = (-1, 0)
    _from_end = True


def _check_same_count(q_seqlen: Sequence[int], kv_seqlen: Sequence[int]) -> None:
    if len(q_seqlen) != len(kv_seqlen):
        raise PortError(
            f"{count_noun(len(q_seqlen), 'sequence')} of queries and {len(kv_seqlen)} of keys",
            where="q_seqlen, kv_seqlen",
            fix="give a length of queries and a length of keys for each sequence",
        )


def _sequences(
    lengths: Sequence[int], room: Sequence[int], device: torch.device
) -> Sequences:
    starts = list(itertools.accumulate(room, initial=0))[:-1]
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    return Sequences(
        *(torch.tensor(rows, dtype=torch.int32, device=device) for rows in (starts, ends))
    )  # fmt: skip


def memory_efficient_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    **others: Any,
) -> torch.Tensor:
    """xformers' function: query [B, Q, H, D], key and value [B, T, H, D] ->
    [B, Q, H, D]; or all without H.

    Args:
        attn_bias: numbers to add, [B, H, Q, T], or a mask of this module.
        others: `op` is a matter of speed and ignored.

    Raises:
        PortError: another kind of mask, or option.
    """
    refuse(
        "memory_efficient_attention",
        **without(others, {"op"}),
    )
    known = (LowerTriangularMask, BlockDiagonalMask, torch.Tensor, NoneType)
    if not isinstance(attn_bias, known):
        raise PortError(
            f"a mask of type {type(attn_bias).__name__} has no equivalent in plain torch",
            where="attn_bias",
            fix=INSTEAD,
        )
    tensors = [query, key, value]
    has_heads = query.ndim == 4
    if not has_heads:
        tensors = [tensor.unsqueeze(2) for tensor in tensors]
    if isinstance(attn_bias, BlockDiagonalMask):
        out = attn_bias.attend(*tensors, dropout_p=p, scale=scale)
    else:
        causal = isinstance(attn_bias, LowerTriangularMask)
        out = functional.scaled_dot_product_attention(
            *(tensor.transpose(1, 2) for tensor in tensors), attn_mask=None if causal else attn_bias, dropout_p=p,
            is_causal=causal, scale=scale,
        ).transpose(1, 2)  # fmt: skip
    if not has_heads:
        out = out.squeeze(2)
    return out
