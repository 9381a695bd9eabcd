"""A user's processors, watermarks and criteria of beams, which the host computes in each step."""

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from transformers import (
    LogitsProcessor,
    StoppingCriteria,
    SynthIDTextWatermarkingConfig,
    WatermarkingConfig,
)
from transformers.generation import NoRepeatNGramLogitsProcessor

import tpuport
from tpuport import PortError
from tpuport.generation import decoder_for

NEW = 10
_OPTIONS = {"max_new_tokens": NEW, "pad_token_id": 0}


class Favour(LogitsProcessor):
    """Favours what is three tokens back, more in each call; knows how long the sequence is."""

    def __init__(self, bias: float) -> None:
        self.bias = bias
        self.lengths: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.lengths.append(input_ids.shape[1])
        bias = self.bias * len(self.lengths)
        return scores.scatter_add(1, input_ids[:, -3:-2], torch.full((len(scores), 1), bias))


class EndsWith(StoppingCriteria):
    """Ends sequences whose last token is this one."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids[:, -1] == self.token


def _multiples(row: int, ids: torch.Tensor) -> list[int]:
    """Multiples of a number that depends on the row and on what has been generated."""
    return list(range(1, 128, 3 + row + int(ids[-1]) % 2))


def _both(pair: tuple, prompts: tuple, **options: Any) -> tuple[Any, Any]:
    """What transformers gives, and what tpuport gives; options that are functions make a new value for each."""
    ids, mask = prompts
    results = []
    for generate in (pair[0].generate, lambda ids, **kwargs: tpuport.generate(pair[1], ids, **kwargs)):
        values = {name: value() if name == "logits_processor" else value for name, value in options.items()}
        results.append(generate(ids, attention_mask=mask, **_OPTIONS, **values))
    return results[0], results[1]


def test_a_processor_of_a_user_and_another_compile_once(llama: tuple, prompts: tuple) -> None:
    ids, mask = prompts
    free = llama[0].generate(ids, attention_mask=mask, **_OPTIONS, eos_token_id=[])
    options = {"eos_token_id": int(free[1, 24]), "repetition_penalty": 1.2}
    expected, got = _both(llama, prompts, logits_processor=lambda: [Favour(0.3)], **options)
    assert not torch.equal(expected[:, :26], free[:, :26])
    assert torch.equal(got, expected)
    decoder = decoder_for(llama[1])
    before = decoder.prefill.compilations, decoder.advance.compilations
    expected, got = _both(llama, prompts, logits_processor=lambda: [Favour(-1.0), Favour(0.5)], **options)
    assert torch.equal(got, expected)
    assert (decoder.prefill.compilations, decoder.advance.compilations) == before
    processor = Favour(0.3)
    llama[1].generate(ids, attention_mask=mask, logits_processor=[processor], **_OPTIONS)
    assert processor.lengths == list(range(20, 20 + NEW))


@pytest.mark.slow  # a processor of a user above, and test_beam_search.py
def test_allowed_tokens_of_beams(llama: tuple, prompts: tuple) -> None:
    options = {
        "prefix_allowed_tokens_fn": _multiples,
        "eos_token_id": 95,
        "num_beams": 2,
        "num_return_sequences": 2,
    }
    expected, got = _both(llama, prompts, **options)
    assert torch.equal(got, expected)


@pytest.mark.slow  # test_generating.py stops by criteria, and test_beam_search.py
def test_criteria_of_beams(llama: tuple, prompts: tuple) -> None:
    # Short sequences are the best.
    options = {"num_beams": 2, "num_return_sequences": 2, "eos_token_id": 95, "length_penalty": -2.0}
    free = llama[0].generate(prompts[0], attention_mask=prompts[1], **_OPTIONS, **options)
    criteria = [EndsWith(int(free[0, prompts[0].shape[1] + 3]))]
    expected, got = _both(llama, prompts, stopping_criteria=criteria, **options)
    assert not torch.equal(expected, free), "no sequence ends: the test shows nothing"
    assert torch.equal(got, expected)


@pytest.mark.parametrize(
    "config",
    [
        WatermarkingConfig(bias=4.0),
        WatermarkingConfig(bias=4.0, seeding_scheme="selfhash"),
        SynthIDTextWatermarkingConfig(ngram_len=3, keys=[7, 11, 13]),
    ],
    ids=["lefthash", "selfhash", "synthid"],
)
def test_watermarks(llama: tuple, prompts: tuple, config: Any) -> None:
    free = llama[0].generate(prompts[0], attention_mask=prompts[1], **_OPTIONS, eos_token_id=[])
    expected, got = _both(llama, prompts, watermarking_config=config, eos_token_id=[])
    assert not torch.equal(expected, free), "the watermark changes nothing: the test shows nothing"
    assert torch.equal(got, expected)


@pytest.mark.slow  # the processors' test of several devices, and the other tests of the host's functions
def test_on_several_devices(make_pair: Callable, prompts: tuple) -> None:
    mesh = tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4])
    pair = make_pair("llama", mesh=mesh)
    expected, got = _both(pair, prompts, logits_processor=lambda: [Favour(0.3)], eos_token_id=[])
    assert torch.equal(got, expected)


def test_what_a_processor_raises_is_raised(llama: tuple, prompts: tuple) -> None:
    class Broken(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError("of the user")

    with pytest.raises(ZeroDivisionError, match="of the user"):
        tpuport.generate(llama[1], prompts[0], logits_processor=[Broken()], **_OPTIONS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logits_processor": Favour(1.0)}, "not a list of LogitsProcessors"),
        ({"logits_processor": [5]}, "cannot be called"),
        ({"prefix_allowed_tokens_fn": 5}, "cannot be called"),
        (
            {"logits_processor": [NoRepeatNGramLogitsProcessor(2)], "no_repeat_ngram_size": 3},
            "no_repeat_ngram_size makes a NoRepeatNGramLogitsProcessor",
        ),
        ({"watermarking_config": {"greenlist_ratio": 3.0}}, "watermarking_config"),
    ],
)
def test_what_is_no_function_is_refused(llama: tuple, prompts: tuple, options: dict, message: str) -> None:
    with pytest.raises(PortError, match=message):
        tpuport.generate(llama[1], prompts[0], max_new_tokens=2, **options)
