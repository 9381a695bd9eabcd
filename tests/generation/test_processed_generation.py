"""`generate` with transformers' processors in the loop, end to end."""

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch

import tpuport
from tpuport import PortError
from tpuport.generation import decoder_for

# Each changes what greedy decoding gives; together they are one program.
_OPTIONS = {
    "no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 3, "encoder_repetition_penalty": 1.2,
    "bad_words_ids": [[5], [9, 17]], "sequence_bias": {(33,): 3.5, (8, 40): -4.0}, "suppress_tokens": [11, 12],
    "begin_suppress_tokens": [20], "forced_eos_token_id": 2, "exponential_decay_length_penalty": (6, 1.3),
    "repetition_penalty": 1.1, "remove_invalid_values": True, "renormalize_logits": True,
}  # fmt: skip
NEW = 20


def _compilations(model: Any) -> tuple[int, int]:
    decoder = decoder_for(model)
    return decoder.prefill.compilations, decoder.advance.compilations


def test_padded_batches_equal_transformers_and_values_compile_nothing(llama: tuple, prompts: tuple) -> None:
    reference, ported = llama
    ids, mask = prompts
    plain = reference.generate(ids, attention_mask=mask, max_new_tokens=NEW)
    first = reference.generate(ids, attention_mask=mask, max_new_tokens=NEW, **_OPTIONS)
    assert not torch.equal(first, plain), "the options change nothing: the test shows nothing"
    assert torch.equal(tpuport.generate(ported, ids, mask, max_new_tokens=NEW, **_OPTIONS), first)
    before = _compilations(ported)
    # A token that a row chooses soon, so that it ends before the others.
    others = _OPTIONS | {
        "no_repeat_ngram_size": 3, "bad_words_ids": [[4], [6], [7, 8, 9]], "sequence_bias": {(30, 31): 2.0},
        "suppress_tokens": [3, 4, 5], "forced_eos_token_id": [2, 3], "eos_token_id": [2, int(first[1, 25])],
        "exponential_decay_length_penalty": [3, 1.1], "max_new_tokens": NEW + 2,
    }  # fmt: skip
    expected = reference.generate(ids, attention_mask=mask, **others)
    assert torch.equal(tpuport.generate(ported, ids, mask, **others), expected)
    assert (expected == 0).sum() > (ids == 0).sum(), "no row ended early: the test shows nothing"
    assert _compilations(ported) == before


def test_without_options_the_programs_are_what_they_were(llama: tuple, prompts: tuple) -> None:
    ported, ids = llama[1], prompts[0][:1]
    tpuport.generate(ported, ids, max_new_tokens=NEW)
    before = _compilations(ported)
    neutral = {"no_repeat_ngram_size": 0, "bad_words_ids": [], "typical_p": 0.3, "forced_eos_token_id": None}
    tpuport.generate(ported, ids, max_new_tokens=NEW, **neutral)
    assert _compilations(ported) == before


@pytest.mark.slow  # the streams of test_generating and the batches of the test above
def test_streamed_in_chunks(llama: tuple, prompts: tuple) -> None:
    class Collector:
        def __init__(self) -> None:
            self.parts: list[torch.Tensor] = []

        def put(self, value: torch.Tensor) -> None:
            self.parts.append(value)

        def end(self) -> None: ...

    ids, mask = prompts
    streamer = Collector()
    out = tpuport.generate(llama[1], ids, mask, streamer=streamer, max_new_tokens=NEW, **_OPTIONS)
    expected = llama[0].generate(ids, attention_mask=mask, max_new_tokens=NEW, **_OPTIONS)
    assert torch.equal(out, expected)
    assert torch.equal(torch.stack(streamer.parts[1:], dim=1), out[:, ids.shape[1] :])


@pytest.mark.slow  # test_logits_processors.py compares the forced beginning
def test_a_prompt_of_one_token_has_a_forced_beginning(llama: tuple) -> None:
    options = {"forced_bos_token_id": 77, "begin_suppress_tokens": [20], "max_new_tokens": 5}
    ids = torch.tensor([[5], [9]])
    expected = llama[0].generate(ids, **options)
    assert expected[:, 1].tolist() == [77, 77]
    assert torch.equal(tpuport.generate(llama[1], ids, **options), expected)


def test_prompts_of_other_lengths_are_what_each_is_alone(llama: tuple, prompts: tuple) -> None:
    """transformers takes no such list; padding that a user did not write is no token that may not repeat."""
    # Each row begins with 0, which the list is padded with.
    options = {
        "no_repeat_ngram_size": 1,
        "eos_token_id": [],
        "max_new_tokens": 8,
        "sequence_bias": {(0,): 90.0},
    }
    rows = [prompts[0][0].tolist(), [4, 9, 8]]
    together = tpuport.generate(llama[1], rows, **options)
    for row, got in zip(rows, together, strict=True):
        expected = llama[0].generate(torch.tensor([row]), **(options | {"eos_token_id": None}))
        assert expected[0, len(row)] == 0
        assert torch.equal(got, expected[0])


@pytest.mark.slow  # test_sharded.py, with the options on one device above
def test_on_several_devices(make_pair: Callable, prompts: tuple) -> None:
    mesh = tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4])
    reference, ported = make_pair("llama", mesh=mesh)
    ids, mask = prompts
    expected = reference.generate(ids, attention_mask=mask, max_new_tokens=NEW, **_OPTIONS)
    assert torch.equal(tpuport.generate(ported, ids, mask, max_new_tokens=NEW, **_OPTIONS), expected)


@pytest.mark.slow  # tests/generation/test_logits_processors.py compares each filter
def test_filters_leave_the_only_token(llama: tuple, prompts: tuple) -> None:
    """So low a share that each filter leaves the most probable token: sampling is greedy then."""
    ids = prompts[0][:1]
    expected = llama[0].generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None)
    filters = {"top_h": 1e-6, "epsilon_cutoff": 0.99, "eta_cutoff": 0.99}
    out = tpuport.generate(llama[1], ids, max_new_tokens=8, do_sample=True, eos_token_id=[], **filters)
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    "name", ["sequence_bias", "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id"]
)
def test_tokens_outside_of_the_vocabulary_are_refused(llama: tuple, prompts: tuple, name: str) -> None:
    values = {"sequence_bias": {(3, 128): 1.0}, "bad_words_ids": [[128]]}
    with pytest.raises(PortError, match=rf"128 tokens, and these are not among them: \[128\](.|\n)*{name}"):
        tpuport.generate(llama[1], prompts[0], max_new_tokens=2, **{name: values.get(name, 128)})
