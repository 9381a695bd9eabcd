"""Prompts made ready for the compiled programs: left-padded to a bucket, rows repeated, one random key a row."""

import operator
import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport import compat
from tpuport.errors import PortError
from tpuport.generation.options import Options


class Prompts(NamedTuple):
    """NumPy arrays: `tokens` int32 and `mask` bool [rows, bucket], key data [rows, 2]; `rows` is a multiple of dp.

    The first `real` rows were asked for; `length` is the prompt length before the bucket's own left padding.
    """

    tokens: np.ndarray
    mask: np.ndarray
    keys: np.ndarray
    real: int
    length: int


def bucket(length: int) -> int:
    """The fixed length that serves `length` tokens: multiples of 32, then of an eighth of the next power of two."""
    step = max(32, 1 << max((length - 1).bit_length() - 3, 0))
    return -(-length // step) * step


def token_ids(input_ids: Any) -> torch.Tensor:
    """Integers [batch, length] on the host, out of a tensor of torch, torchax, NumPy or jax, or out of nested lists.

    Raises:
        PortError: they are none of that: text, ragged lists, floats, another rank, or nothing.
    """
    ids = _tensor(input_ids, "input_ids")
    if ids.ndim != 2 or ids.dtype.is_floating_point or ids.dtype == torch.bool or 0 in ids.shape:
        raise PortError(
            "input_ids must be integers [batch, length], both at least 1",
            where=f"{ids.dtype} {tuple(ids.shape)}",
        )
    return ids


def _tensor(value: Any, name: str) -> torch.Tensor:
    try:
        return compat.to_torch(compat.as_jax(value)) if compat.is_ported(value) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise PortError(
            f"{name} is not a tensor, and none can be made of it",
            where=f"{name}={value!r:.60}",
            fix='give what the tokenizer gives: tokenizer(texts, padding=True, padding_side="left", '
            'return_tensors="pt")',
        ) from None


def checked(
    input_ids: Any,
    attention_mask: Any,
    pad: int | None,
    eos: tuple[int, ...],
    vocabulary: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Prompt tokens and mask as NumPy [B, P] (see `token_ids`); no mask is inferred from the padding id.

    Raises:
        PortError: wrong rank or dtype, an empty prompt, ids outside the vocabulary, a mask of another shape, or
            padding on the right, after which decoding would go on from a padding token.
    """
    tokens = token_ids(input_ids).cpu().numpy()
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        raise PortError(
            f"input_ids from {tokens.min()} to {tokens.max()} do not fit the vocabulary of {vocabulary}",
            fix="use the tokenizer of this checkpoint",
        )
    if attention_mask is None:
        infer = pad is not None and pad not in eos and bool((tokens == pad).any())
        mask = tokens != pad if infer else np.ones(tokens.shape, bool)
    else:
        mask = _tensor(attention_mask, "attention_mask").cpu().numpy().astype(bool)
    if mask.shape != tokens.shape:
        raise PortError(
            f"attention_mask is {mask.shape}, input_ids are {tokens.shape}", where="attention_mask"
        )
    if not mask.any(axis=1).all():
        rows = np.flatnonzero(~mask.any(axis=1)).tolist()
        raise PortError(
            "a prompt has no token but padding", where=f"rows {rows}", fix="leave it out, or give it a token"
        )
    if not mask[:, -1].all():
        rows = np.flatnonzero(~mask[:, -1]).tolist()
        raise PortError(
            "a prompt ends in padding",
            where=f"rows {rows}",
            fix='pad on the left: tokenizer.padding_side = "left"',
        )
    return tokens.astype(np.int32), mask


def prepare(tokens: np.ndarray, mask: np.ndarray, options: Options, seed: int, multiple: int) -> Prompts:
    """Repeat rows for num_return_sequences, pad to the bucket on the left, and fill the batch up to `multiple` rows."""
    tokens = np.repeat(tokens, options.num_return_sequences, axis=0)
    mask = np.repeat(mask, options.num_return_sequences, axis=0)
    real, length = tokens.shape
    rows, columns = -(-real // multiple) * multiple, bucket(length)
    fill = (0, rows - real)
    # A row of filling is a copy of the last, so that it is as harmless as a real one.
    tokens, mask = (np.pad(x, (fill, (0, 0)), mode="edge") if rows > real else x for x in (tokens, mask))
    left = ((0, 0), (columns - length, 0))
    return Prompts(np.pad(tokens, left), np.pad(mask, left), row_keys(tokens, mask, seed), real, length)


def checked_seed(seed: Any) -> int:
    """The seed; PortError unless it is an integer of 64 bits, signed or not."""
    try:
        number = operator.index(seed)
    except TypeError:
        number = None
    if number is None or isinstance(seed, bool) or not -(2**63) <= number < 2**64:
        raise PortError("the seed is not an integer of 64 bits", where=f"seed={seed!r:.60}")
    return number


def row_keys(tokens: np.ndarray, mask: np.ndarray, seed: int) -> np.ndarray:
    """Key data [rows, 2], a row's from the seed, its own tokens, and how many equal rows stand above it.

    So a prompt draws the same tokens alone, in any batch, and at any place in it.
    """
    counts: dict[bytes, int] = {}
    folds = np.zeros((len(tokens), 2), np.uint32)
    for row, (ids, seen) in enumerate(zip(tokens, mask, strict=True)):
        text = ids[seen].astype("<i4").tobytes()
        folds[row] = zlib.crc32(text), counts.get(text, 0)
        counts[text] = counts.get(text, 0) + 1
    # A key is made of 32 bits here, and seeds have 64, as torch's do.
    low, high = seed % 2**32, (seed >> 32) % 2**32
    base = jax.random.key(low)
    if high:
        base = jax.random.fold_in(base, np.uint32(high))
    keys = jax.vmap(lambda f: jax.random.fold_in(jax.random.fold_in(base, f[0]), f[1]))(jnp.asarray(folds))
    # Plain data, because several processes may not share an array of one device.
    return np.asarray(jax.random.key_data(keys))
