"""Buckets, padding checks, row keys."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tpuport import PortError
from tpuport.generation.prompts import bucket_length, check_prompt, check_seed, row_keys


@given(st.integers(1, 200_000))
def test_buckets_fit_and_waste_little(length: int) -> None:
    size = bucket_length(length)
    assert size >= length
    assert size - length < max(32, length / 4)
    assert bucket_length(size) == size


def test_buckets_are_few() -> None:
    assert len({bucket_length(n) for n in range(1, 32_769)}) <= 45


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        (torch.zeros(4, dtype=torch.long), None, "must be integers"),
        (torch.zeros(1, 0, dtype=torch.long), None, "must be integers"),
        (torch.zeros(1, 4), None, "must be integers"),
        (torch.tensor([[5, 200]]), None, "do not fit the vocabulary(.|\n)*from 0 to 127"),
        (torch.tensor([[5, -1]]), None, "do not fit the vocabulary"),
        (torch.tensor([[5, 6]]), torch.ones(1, 3), "attention_mask is"),
        (torch.tensor([[5, 6], [7, 0]]), None, "ends in padding"),
        (torch.tensor([[5, 6]]), torch.tensor([[1, 0]]), "ends in padding"),
        (torch.tensor([[5, 6]]), torch.tensor([[0, 0]]), r"no token but padding(.|\n)*rows \[0\]"),
        (None, None, "input_ids=None"),
        ("hello", None, "input_ids='hello'(.|\n)*tokenizer"),
        (5, None, "must be integers"),
        ([1, 2, 3], None, r"must be integers(.|\n)*\[\[1, 2, 3\]\]"),
        ([[5, 6], [7]], None, r"input_ids=\[\[5, 6\], \[7\]\]"),
        ([[5, 6]], "x", "attention_mask='x'"),
    ],
)
def test_bad_prompts_are_refused(ids: object, mask: object, message: str) -> None:
    with pytest.raises(PortError, match=message):
        check_prompt(ids, mask, pad=0, eos=(2,), vocabulary=128)


def test_the_mask_is_inferred_from_padding_unless_it_ends_sequences() -> None:
    ids = torch.tensor([[0, 5], [6, 7]])
    assert check_prompt(ids, None, 0, (2,), 128)[1].tolist() == [[False, True], [True, True]]
    assert check_prompt(ids, None, 0, (0,), 128)[1].all()


def test_row_keys_see_the_prompt_without_its_padding() -> None:
    tokens = np.array([[0, 5, 6], [5, 6, 7], [0, 5, 6]], np.int32)
    mask = tokens != 0
    keys = row_keys(tokens, mask, seed=1)
    assert (keys[0] == row_keys(np.array([[5, 6]], np.int32), np.ones((1, 2), bool), seed=1)[0]).all()
    assert len({tuple(key) for key in keys}) == 3


def test_seeds_have_64_bits() -> None:
    tokens = np.array([[5, 6]], np.int32)
    seeds = [5, 5 + 2**32, 2**64 - 1, 2**63, 0]
    keys = {tuple(row_keys(tokens, tokens > 0, check_seed(seed))[0]) for seed in seeds}
    assert len(keys) == len(seeds)
    assert check_seed(np.int64(-1)) == -1
    for seed in (None, 1.5, "a", True, 2**64, -(2**63) - 1):
        with pytest.raises(PortError, match="seed="):
            check_seed(seed)
