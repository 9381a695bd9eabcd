"""BLT's patches of bytes in arrays of fixed shape, and its hashes of 64 bits in numbers
of 32.

Where a patch begins follows from what the model computes, and so does how many there
are. Here there is a column for as many patches as the bytes may have; those that no row
has are marked, and no byte belongs to them. The transformer over patches is causal, so
that these columns, which are the last ones, change no other. Shapes: B rows, S bytes, P
columns of patches, G bytes of a group, D digits.
"""

from typing import Any, Final

import torch

from tpuport.errors import PortError

# The length of a patch that no row has.
_ABSENT: Final = torch.iinfo(torch.int32).min
_DIGIT: Final = 256
_DIGITS: Final = 8


def hash_groups(
    token_ids: torch.Tensor,
    group_size: int = 2,
    prime: int = 1000000007,
    max_hash: int = 30000,
) -> torch.Tensor:
    """Traced. As `byte_group_hash_function`: of each group of bytes that ends at a
    byte, [B, S] -> [B, S].

    The sum of bytes times powers of a prime overflows as integers of 64 bits do, and
    devices have 32: it is computed digit by digit.
    """
    if max_hash * _DIGIT > torch.iinfo(torch.int32).max:
        raise PortError(
            f"hashes below {max_hash} do not fit into the device's integers",
            where="config.encoder_hash_byte_group_vocab",
            fix="use a smaller table, or run the model in torch",
        )
    windows_BSG = torch.nn.functional.pad(token_ids, (group_size - 1, 0)).unfold(
        1, group_size, 1
    )
    powers = [
        pow(prime, exponent, 2**64).to_bytes(_DIGITS, "little")
        for exponent in range(group_size)
    ]
    powers_GD = torch.tensor([list(power) for power in powers], device=token_ids.device)
    sums_BSD = (windows_BSG[..., None] * powers_GD).sum(-2)
    digits, carry = [], torch.zeros_like(token_ids)
    for column in sums_BSD.unbind(-1):
        total = column + carry
        digits.append(total % _DIGIT)
        carry = total // _DIGIT
    remainder = torch.zeros_like(token_ids)
    for digit in reversed(digits):
        remainder = (remainder * _DIGIT + digit) % max_hash
    is_negative = digits[-1] >= _DIGIT // 2
    return torch.where(is_negative, remainder - 2**64 % max_hash, remainder) % max_hash


def lengths_from_entropies(
    entropies: torch.Tensor,
    sequence_length: int,
    patch_size: int | None = None,
    threshold: Any = None,
) -> torch.Tensor:
    """Traced. As `BltPatcher.patch_lengths_from_entropies`: [B, S] -> [B, S + 1].

    The first two bytes begin a patch each, and so does a byte after one of high
    entropy.
    """
    begins = entropies[:, 1:] > threshold
    rows, count = begins.shape
    positions = torch.arange(count, device=entropies.device)
    further = torch.where(begins, positions, count).sort(dim=1).values + 2
    first_two = torch.arange(2, device=entropies.device).expand(rows, 2)
    starts_BP = torch.cat([first_two, further], dim=1)
    patches = begins.sum(1).max() + 2
    columns = torch.arange(count + 2, device=entropies.device)
    # The last column has none behind it, and the last patch ends with the text.
    next_starts_BP = torch.where(
        columns == patches - 1, sequence_length, starts_BP.roll(-1, dims=1)
    )
    return torch.where(columns < patches, next_starts_BP - starts_BP, _ABSENT)


def split_lengths(
    patch_lengths: torch.Tensor, max_patch_length: int | None
) -> torch.Tensor:
    """Traced. As `process_patch_lengths`, [B, P] -> [B, P]: no patch is longer than the
    most.

    All patches together have at most P bytes, so that there are not more than P parts.
    """
    if max_patch_length is None:
        return patch_lengths
    lengths = patch_lengths.clamp(min=0)
    parts = (lengths + max_patch_length - 1) // max_patch_length
    ends = parts.cumsum(1)
    columns = torch.arange(lengths.shape[1], device=lengths.device)
    # Which patch each part is of; columns behind the last part have none.
    patch = (ends[:, None] <= columns[:, None]).sum(-1).clamp(max=lengths.shape[1] - 1)
    parts_before = columns - (ends - parts).gather(1, patch)
    rest = lengths.gather(1, patch) - parts_before * max_patch_length
    total = ends[:, -1:]
    split = torch.where(columns < total, rest.clamp(max=max_patch_length), 0)
    return torch.where(columns < total.max(), split, _ABSENT).to(patch_lengths.dtype)


def patch_of_each_byte(
    self: Any, patch_lengths: torch.Tensor, seq_len: int
) -> torch.Tensor:
    """Traced. As `BltModel._patch_ids_from_lengths`, [B, P] -> [B, S]: the last patch
    that has begun.
    """
    is_patch = patch_lengths != _ABSENT
    lengths = torch.where(is_patch, patch_lengths, 0)
    starts = lengths.cumsum(-1) - lengths
    positions = torch.arange(seq_len, device=patch_lengths.device)
    has_begun = (starts[:, None] <= positions[:, None]) & is_patch[:, None]
    return has_begun.sum(-1) - 1
