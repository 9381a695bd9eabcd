"""Prompts made ready for the compiled programs: left-padded to a bucket, rows repeated, one random key a row."""

import zlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

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


def checked(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    pad: int | None,
    eos: tuple[int, ...],
    vocabulary: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Prompt tokens and mask as NumPy [B, P], the mask inferred from the padding id as transformers does.

    Raises:
        PortError: wrong rank or dtype, an empty prompt, ids outside the vocabulary, a mask of another shape, or
            padding on the right, after which decoding would go on from a padding token.
    """
    ids = torch.as_tensor(input_ids)
    if ids.ndim != 2 or ids.dtype.is_floating_point or ids.dtype == torch.bool or 0 in ids.shape:
        raise PortError(
            "input_ids must be integers [batch, length], both at least 1",
            where=f"{ids.dtype} {tuple(ids.shape)}",
        )
    tokens = ids.cpu().numpy()
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        raise PortError(
            f"input_ids from {tokens.min()} to {tokens.max()} do not fit the vocabulary of {vocabulary}",
            fix="use the tokenizer of this checkpoint",
        )
    if attention_mask is None:
        infer = pad is not None and pad not in eos and bool((tokens == pad).any())
        mask = tokens != pad if infer else np.ones(tokens.shape, bool)
    else:
        mask = torch.as_tensor(attention_mask).cpu().numpy().astype(bool)
    if mask.shape != tokens.shape:
        raise PortError(
            f"attention_mask is {mask.shape}, input_ids are {tokens.shape}", where="attention_mask"
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
    # A row of filling is a copy of the first, so that it is as harmless as a real one.
    tokens, mask = (np.pad(x, (fill, (0, 0)), mode="edge") if rows > real else x for x in (tokens, mask))
    left = ((0, 0), (columns - length, 0))
    return Prompts(np.pad(tokens, left), np.pad(mask, left), row_keys(tokens, mask, seed), real, length)


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
    base = jax.random.key(seed)
    keys = jax.vmap(lambda f: jax.random.fold_in(jax.random.fold_in(base, f[0]), f[1]))(jnp.asarray(folds))
    # Plain data, because several processes may not share an array of one device.
    return np.asarray(jax.random.key_data(keys))
