"""Prompts for the compiled programs: left-padded to a bucket, rows repeated, one random
key a row.
"""

import collections
import operator
import types
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tpuport import compat
from tpuport.errors import PortError
from tpuport.generation.generation_options import Options
from tpuport.generation.model_errors import NoLoop
from tpuport.generation.model_inputs import arrays_of


class Prompt(NamedTuple):
    """What a model begins with, read and checked.

    Attributes:
        tokens: int32 [B, P], of an encoder-decoder its decoder's prompt; mask: bool of
            the same shape, False at padding.
        inputs: those of an encoder by name, and further ones of the model, [B, ...]
            each, or a `Setting`.
        contents: of each row's inputs, what its random draws depend on.
        source_length: as in `Prompts`, before the bucket's padding.
    """

    tokens: np.ndarray
    mask: np.ndarray
    inputs: Mapping[str, Any] = types.MappingProxyType({})
    contents: Sequence[bytes] = ()
    source_length: int | None = None


class Prompts(NamedTuple):
    """A padded batch.

    Attributes:
        tokens: int32 [rows, bucket]; mask: bool of the same shape; keys: random key
            data [rows, 2].
        real_rows: how many rows the user asked for; more fill up the batch to a
            multiple of dp.
        length: of the prompt, before the bucket's own left padding.
        inputs: further inputs of the model, [rows, ...] each, or a `Setting`.
        source_length: columns of the encoder's token ids before the bucket's padding; 0
            for an encoder that reads none, None for a model without an encoder.
        padding_is_context: whether logits processors see the padding of the user's
            tokens, as transformers' do.
    """

    tokens: np.ndarray
    mask: np.ndarray
    keys: np.ndarray
    real_rows: int
    length: int
    inputs: Mapping[str, Any] = types.MappingProxyType({})
    source_length: int | None = None
    padding_is_context: bool = True

    @property
    def first_columns(self) -> np.ndarray:
        """int32 [rows], where the context of each row begins."""
        if not self.padding_is_context:
            return self.mask.argmax(axis=1).astype(np.int32)
        return np.full(len(self.tokens), self.tokens.shape[1] - self.length, np.int32)


def bucket_length(length: int) -> int:
    """The fixed length that serves `length` tokens: multiples of 32, then of an eighth
    of the next power of two.
    """
    # Few lengths mean few programs, and an eighth bounds what is computed in vain.
    step = max(32, 1 << max((length - 1).bit_length() - 3, 0))
    return -(-length // step) * step


def read_token_ids(input_ids: Any) -> torch.Tensor:
    """Integers [batch, length] on the host, from a tensor of torch, torchax, NumPy or
    jax, or from nested lists.

    PortError for anything else: text, ragged lists, floats, another rank, or nothing.
    """
    ids = _read_tensor(input_ids, "input_ids")
    is_integer = not (
        ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool
    )
    if ids.ndim != 2 or not is_integer or 0 in ids.shape:
        raise PortError(
            "input_ids must be integers [batch, length], both at least 1",
            where=f"{ids.dtype} {tuple(ids.shape)}",
            fix="give a batch, of one prompt too: [[1, 2, 3]], or input_ids[None] of a tensor [length]",
        )
    return ids


def _read_mask(value: Any) -> np.ndarray:
    """Which positions are tokens, from numbers that are zero for padding; PortError for
    fractions and the like.
    """
    mask = _read_tensor(value, "attention_mask").cpu()
    is_float = mask.dtype.is_floating_point
    if mask.dtype.is_complex or (
        is_float and not bool(((mask == 0) | (mask == 1)).all())
    ):
        raise PortError(
            "attention_mask has numbers between zero and one, or that are none",
            where=f"attention_mask, {mask.dtype}",
            fix="give 1 for a token and 0 for padding",
        )
    return mask.to(torch.bool).numpy()


def _check_dense(tensor: torch.Tensor, name: str) -> None:
    """PortError for a tensor that is not an array of numbers."""
    kind = None
    if tensor.is_nested:
        kind = "nested"
    elif tensor.is_quantized:
        kind = "quantised"
    elif tensor.device.type == "meta":
        kind = "meta"
    elif tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
    if kind is not None:
        raise PortError(
            f"{name} is a {kind} tensor",
            where=name,
            fix="give a dense tensor [batch, length] with values",
        )


def _read_tensor(value: Any, name: str) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and not compat.is_ported(value):
        _check_dense(value, name)
    try:
        return (
            compat.to_torch(value)
            if compat.is_ported(value)
            else torch.as_tensor(value)
        )
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise PortError(
            f"{name} is not a tensor, and cannot be converted to one",
            where=f"{name}={value!r:.60}",
            fix="give integers: a tensor [batch, length], or lists, [[1, 2, 3]]. Text goes through a tokenizer first: "
            'tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")',
        ) from None


def pad_list(
    prompts: Any, *, on_right: bool = False
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Token ids and mask, padded on the left, of a list of prompts of different
    lengths; None for anything else.

    Args:
        on_right: pad on the right, as for an encoder.
    """
    if not isinstance(prompts, list | tuple) or not prompts:
        return None
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in prompts]
    are_lists = all(isinstance(row, list | tuple) for row in rows)
    if not are_lists or any(
        isinstance(token, list | tuple) for row in rows for token in row
    ):
        return None
    if len(set(map(len, rows))) == 1:
        return None
    length = max(map(len, rows))
    tokens = [list(row)[:: -1 if on_right else 1] for row in rows]
    # Padding is known by the mask, whatever id it has.
    ids = _read_tensor([[0] * (length - len(row)) + row for row in tokens], "input_ids")
    mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in tokens])
    return (ids.flip(1), mask.flip(1)) if on_right else (ids, mask)


def without_padding(
    tokens: torch.Tensor, mask: np.ndarray, options: Options
) -> list[torch.Tensor]:
    """Each row of generated tokens from its first token to its end; `mask` is that of
    the prompts.
    """
    rows = []
    for number, row in enumerate(tokens):
        prompt = mask[number // options.num_return_sequences]
        generated = row[len(prompt) :]
        ends = np.flatnonzero(np.isin(generated, options.eos))
        if len(ends):
            generated = generated[: ends[0] + 1]
        rows.append(
            torch.cat([row[: len(prompt)][torch.from_numpy(prompt)], generated])
        )
    return rows


def check_only_left(mask: np.ndarray) -> None:
    """PortError unless the padding of each row comes before its first token."""
    rows = np.flatnonzero(
        (np.diff(mask.astype(np.int8), axis=1) < 0).any(axis=1)
    ).tolist()
    if rows:
        raise PortError(
            "a model of your own takes prompts without masked tokens among them",
            where=f"attention_mask, rows {rows}",
            fix="give a list of prompts, each as long as it is",
        )


def check_prompt(
    input_ids: Any,
    attention_mask: Any,
    pad: int | None,
    eos: tuple[int, ...],
    vocabulary: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Prompt tokens and mask as NumPy [B, P]; see `read_token_ids`.

    Without a mask, tokens equal to the padding id are padding, unless that id also ends
    sequences.

    Raises:
        PortError: wrong rank or dtype, an empty prompt, ids outside the vocabulary, a
            mask of another shape, or padding on the right, after which decoding would
            go on from a padding token.
    """
    tokens = read_token_ids(input_ids).cpu().numpy()
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        raise PortError(
            f"input_ids from {tokens.min()} to {tokens.max()} do not fit the vocabulary of {vocabulary}",
            fix=f"give token ids from 0 to {vocabulary - 1}: of the tokenizer that this model was trained with",
        )
    mask = np.ones(tokens.shape, bool)
    if attention_mask is not None:
        mask = _read_mask(attention_mask)
    elif pad is not None and pad not in eos:
        mask = tokens != pad
    if mask.shape != tokens.shape:
        raise PortError(
            f"attention_mask is {mask.shape}, input_ids are {tokens.shape}",
            where="attention_mask",
        )
    # A softmax over no position at all is not a number.
    empty_rows = np.flatnonzero(~mask.any(axis=1)).tolist()
    if empty_rows:
        raise PortError(
            "a prompt has no token but padding",
            where=f"rows {empty_rows}",
            fix="leave it out, or give it a token",
        )
    padded_rows = np.flatnonzero(~mask[:, -1]).tolist()
    if padded_rows:
        raise PortError(
            "a prompt ends in padding",
            where=f"rows {padded_rows}",
            fix='pad on the left: tokenizer.padding_side = "left"',
        )
    return tokens.astype(np.int32), mask


def pad_prompts(
    prompt: Prompt,
    options: Options,
    seed: int,
    row_multiple: int,
    *,
    uses_buckets: bool = True,
    padding_is_context: bool = True,
    takes_padding: bool = True,
) -> Prompts:
    """Repeat rows for num_return_sequences or num_beams, pad to the bucket on the left,
    and fill the batch up.

    The number of rows becomes a multiple of `row_multiple`.
    Without buckets the length stays as it is, with programs of its own.

    Args:
        padding_is_context: as in `Prompts`.
        takes_padding: whether a row may be padded at all.

    Raises:
        PortError: prompts of several lengths for a model whose result depends on the
            padding in front of a prompt, or that takes no padding.
    """
    tokens, mask, inputs, contents, source_length = prompt
    if not takes_padding and not mask.all():
        raise NoLoop(
            "this model hides padding only without a cache, transformers runs it with one, and that one cannot be "
            "traced",
            where=f"attention_mask, rows {np.flatnonzero(~mask.all(axis=1)).tolist()}",
            fix="generate once for each length of the prompts",
        )
    if not uses_buckets and not padding_is_context and not mask.all():
        raise PortError(
            "prompts of several lengths cannot share a batch: what this model says depends on padding in front of a "
            "prompt",
            where="input_ids",
            fix="generate once for each length, or give a padded batch, whose rows are then what transformers gives",
        )
    real_rows, length = options.rows_per_prompt * tokens.shape[0], tokens.shape[1]
    numbers = np.repeat(np.arange(tokens.shape[0]), options.rows_per_prompt)
    # A row that fills up is a copy of the last, so that it is as harmless as a real
    # one.
    numbers = np.pad(numbers, (0, -real_rows % row_multiple), mode="edge")
    tokens, mask = tokens[numbers], mask[numbers]
    columns = bucket_length(length) if uses_buckets else length
    padding = ((0, 0), (columns - length, 0))
    keys = row_keys(
        tokens, mask, seed, [contents[number] for number in numbers] if contents else ()
    )
    return Prompts(
        tokens=np.pad(tokens, padding),
        mask=np.pad(mask, padding),
        keys=keys,
        real_rows=real_rows,
        length=length,
        inputs=dict(inputs)
        | {name: array[numbers] for name, array in arrays_of(inputs).items()},
        source_length=source_length,
        padding_is_context=padding_is_context,
    )


def check_seed(seed: Any) -> int:
    """The seed; PortError unless it is an integer of 64 bits, signed or not."""
    try:
        number = operator.index(seed)
    except TypeError:
        number = None
    if number is None or isinstance(seed, bool) or not -(2**63) <= number < 2**64:
        raise PortError(
            "the seed is not an integer of 64 bits", where=f"seed={seed!r:.60}"
        )
    return number


def row_keys(
    tokens: np.ndarray, mask: np.ndarray, seed: int, contents: Sequence[bytes] = ()
) -> np.ndarray:
    """Key data [rows, 2]: of a row from the seed, its own tokens, and how many equal
    rows are above it.

    So a prompt draws the same tokens alone, in any batch, and in any row of it.
    `contents` has what belongs to the prompts beside their tokens.
    """
    counts: collections.Counter[bytes] = collections.Counter()
    folds = np.zeros((len(tokens), 2), np.uint32)
    for row, (ids, is_token) in enumerate(zip(tokens, mask, strict=True)):
        text = ids[is_token].astype("<i4").tobytes()
        if contents:
            text += contents[row]
        # Equal rows, such as those of num_return_sequences, differ by their number.
        folds[row] = zlib.crc32(text), counts[text]
        counts[text] += 1
    # jax makes a key of 32 bits, and seeds have 64, as torch's do.
    low, high = seed % 2**32, (seed >> 32) % 2**32
    base = jax.random.key(low)
    if high:
        base = jax.random.fold_in(base, np.uint32(high))

    def fold_row(fold: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(base, fold[0]), fold[1])

    keys = jax.vmap(fold_row)(jnp.asarray(folds))
    # Plain data, because several processes may not share an array of one device.
    return np.asarray(jax.random.key_data(keys))
