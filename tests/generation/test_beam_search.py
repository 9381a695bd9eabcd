"""Beam search in the loop against transformers' `_beam_search`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.generation.utils import GenerateBeamDecoderOnlyOutput

import tpuport
from tpuport import PortError
from tpuport.generation import beam_search, decoder_for

NEW = 14
# Ends that some beams choose early.
_OPTIONS = {
    "num_beams": 3, "max_new_tokens": NEW, "eos_token_id": [33, 95], "pad_token_id": 0,
    "return_dict_in_generate": True, "output_scores": True,
}  # fmt: skip
_VARIANTS = [
    {},
    {"num_return_sequences": 3, "early_stopping": True},
    {"num_return_sequences": 2, "early_stopping": "never", "length_penalty": 1.7},
    {"num_return_sequences": 3, "early_stopping": False, "length_penalty": -0.8},
    {"num_return_sequences": 3, "early_stopping": "never", "length_penalty": 0.0, "repetition_penalty": 1.3},
    {"num_return_sequences": 3, "min_new_tokens": 6, "pad_token_id": 5, "max_new_tokens": 9},
]


def _assert_equal(got: Any, expected: Any) -> None:
    assert torch.equal(got.sequences, expected.sequences)
    torch.testing.assert_close(got.sequences_scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)
    assert torch.equal(got.beam_indices, expected.beam_indices)


def test_sequences_and_scores_of_a_padded_batch(llama: tuple, prompts: tuple) -> None:
    reference, ported = llama
    ids, mask = prompts
    tpuport.generate(ported, ids, mask, **_OPTIONS)
    decoder = decoder_for(ported)
    before = decoder.prefill.compilations, decoder.advance.compilations
    lengths = set()
    for variant in _VARIANTS:
        options = _OPTIONS | variant
        expected = reference.generate(ids, attention_mask=mask, **options)
        _assert_equal(tpuport.generate(ported, ids, mask, **options), expected)
        lengths |= set((expected.beam_indices >= 0).sum(dim=1).tolist())
    assert len(lengths) > 3, "the sequences are all as long: the test shows little"
    assert (decoder.prefill.compilations, decoder.advance.compilations) == before


@pytest.mark.slow  # the scores above, and those of every step in test_step_outputs.py
def test_scores_and_logits_of_every_step(llama: tuple, prompts: tuple) -> None:
    reference, ported = llama
    ids, mask = prompts
    # More steps than are on the device at a time, and no processor but one.
    options = _OPTIONS | {
        "output_logits": True, "max_new_tokens": 20, "eos_token_id": 95, "no_repeat_ngram_size": 2,
        "num_return_sequences": 3,
    }  # fmt: skip
    expected = reference.generate(ids, attention_mask=mask, **options)
    got = tpuport.generate(ported, ids, mask, **options)
    assert type(got) is GenerateBeamDecoderOnlyOutput
    _assert_equal(got, expected)
    for name in ("scores", "logits"):
        assert len(got[name]) == len(expected[name])
        for ours, theirs in zip(got[name], expected[name], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # test_sharded.py, with beams on one device above
def test_on_several_devices(make_pair: Callable, prompts: tuple) -> None:
    """Three prompts fill up a batch of two devices with a fourth, which must not go on for the others."""
    mesh = tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4])
    reference, ported = make_pair("llama", mesh=mesh)
    ids, mask = prompts
    options = _OPTIONS | {"num_return_sequences": 3}
    expected = reference.generate(ids, attention_mask=mask, **options)
    _assert_equal(tpuport.generate(ported, ids, mask, **options), expected)


@pytest.mark.slow  # the scores above, and the draws below
def test_sampled_beams_differ_and_follow_the_seed(llama: tuple, prompts: tuple) -> None:
    options = _OPTIONS | {"do_sample": True, "num_return_sequences": 3, "temperature": 1.5, "top_k": 1}
    ids, mask = prompts
    first = tpuport.generate(llama[1], ids, mask, seed=1, **options)
    assert torch.equal(tpuport.generate(llama[1], ids, mask, seed=1, **options).sequences, first.sequences)
    other = tpuport.generate(llama[1], ids, mask, seed=2, **options)
    assert first.sequences.shape != other.sequences.shape or not torch.equal(first.sequences, other.sequences)
    # transformers' top-k leaves three tokens, one more than there are ends.
    assert (first.scores[0] > -jnp.inf).sum(dim=1).tolist() == [3] * 9


def test_draws_are_those_without_replacement() -> None:
    """The second of two draws of 20,000 prompts, against torch's."""
    logits = torch.tensor([2.0, 1.0, 0.5, -1.0, -torch.inf, 0.0])
    rows = 20_000
    drawn = torch.multinomial(
        torch.softmax(logits, -1).expand(rows, -1), 2, generator=torch.Generator().manual_seed(0)
    )
    keys = jax.random.split(jax.random.key(3), rows)
    sums = jnp.tile(jnp.asarray(logits.numpy()), (rows, 1))
    values, best = beam_search._best_or_drawn(sums, 2, keys, jnp.bool_(True))
    np.testing.assert_array_equal(values, np.asarray(sums)[0][np.asarray(best)])
    for place in range(2):
        wanted = np.bincount(drawn[:, place].numpy(), minlength=6) / rows
        share = np.bincount(np.asarray(best)[:, place], minlength=6) / rows
        assert np.abs(share - wanted).max() < 0.02


def test_a_search_cannot_be_streamed(llama: tuple, prompts: tuple) -> None:
    class Streamer:
        def put(self, value: torch.Tensor) -> None: ...

        def end(self) -> None: ...

    with pytest.raises(PortError, match="cannot be streamed"):
        tpuport.generate(llama[1], prompts[0], num_beams=2, max_new_tokens=2, streamer=Streamer())
