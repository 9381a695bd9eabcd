"""Whisper's own `generate` on a ported model: the tokens that it gives on the CPU."""

import copy
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch
from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
    pipeline,
)

import tpuport
from tpuport.errors import PortError
from tpuport.generation import decoder_for

# Of models that ask for int64, where `tpuport.enable` is not in force.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
# Texts are 0 to 99, timestamps 109 to 159.
_END, _START, _ENGLISH, _GERMAN, _TRANSCRIBE, _TRANSLATE, _PREVIOUS, _SILENCE, _NO_TIMESTAMPS = range(
    100, 109
)
_FRAMES = 100  # of one segment
_GENERATION: dict[str, Any] = {
    "lang_to_id": {"<|en|>": _ENGLISH, "<|de|>": _GERMAN},
    "task_to_id": {"transcribe": _TRANSCRIBE, "translate": _TRANSLATE},
    "is_multilingual": True, "no_timestamps_token_id": _NO_TIMESTAMPS, "prev_sot_token_id": _PREVIOUS,
    "max_initial_timestamp_index": 10, "alignment_heads": [[0, 0]], "return_timestamps": False, "max_length": 40,
    "suppress_tokens": [1, 2, _START, _ENGLISH, _GERMAN, _TRANSCRIBE, _TRANSLATE, _PREVIOUS, _SILENCE],
    "begin_suppress_tokens": [20, _END],
}  # fmt: skip


class Pair(NamedTuple):
    reference: Any
    ported: Any


def build() -> WhisperForConditionalGeneration:
    config = WhisperConfig(
        vocab_size=160, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8,
        max_source_positions=_FRAMES // 2, max_target_positions=96, pad_token_id=_END, bos_token_id=_END,
        eos_token_id=_END, decoder_start_token_id=_START, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    reference = WhisperForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(3)
    for name, parameter in reference.named_parameters():
        if parameter.ndim > 1 and "embed_positions" not in name:
            parameter.data = 0.25 * torch.randn(parameter.shape, generator=generator)
    for name, value in _GENERATION.items():
        setattr(reference.generation_config, name, value)
    return reference


@pytest.fixture(scope="module")
def whisper() -> Pair:
    reference = build()
    mesh = tpuport.create_mesh(devices=jax.devices()[:1])
    return Pair(reference, tpuport.port(copy.deepcopy(reference), mesh=mesh))


def features(frames: int) -> torch.Tensor:
    """Two recordings [2, 8, frames]."""
    return torch.randn(2, 8, frames, generator=torch.Generator().manual_seed(5))


def test_language_and_task(whisper: Pair) -> None:
    spoken = features(_FRAMES)
    for options in ({"language": "en", "task": "translate"}, {"language": ["de", "en"]}):
        wanted = whisper.reference.generate(spoken, **options)
        assert torch.equal(whisper.ported.generate(spoken, **options), wanted)
    assert torch.equal(tpuport.generate(whisper.ported, spoken, **options), wanted)
    decoder = decoder_for(whisper.ported)
    assert (decoder.prefill.compilations, decoder.advance.compilations) == (1, 1)


@pytest.mark.slow  # test_assisted_decoding.py
def test_an_assistant_drafts(whisper: Pair) -> None:
    """As distilled models do. Its own `generate` suppresses other tokens then, here as in torch."""
    assistants = []
    for _ in range(2):
        assistant = copy.deepcopy(whisper.reference)
        generator = torch.Generator().manual_seed(4)
        for parameter in assistant.parameters():
            parameter.data += 0.01 * torch.randn(parameter.shape, generator=generator)
        assistant.generation_config.num_assistant_tokens = 4
        assistants.append(assistant)
    tpuport.port(assistants[1], mesh=tpuport.create_mesh(devices=jax.devices()[:1]))
    spoken = features(_FRAMES)[:1]
    for language in ("en", "de"):
        wanted = whisper.reference.generate(spoken, assistant_model=assistants[0], language=language)
        actual = whisper.ported.generate(spoken, assistant_model=assistants[1], language=language)
        assert torch.equal(actual, wanted)
    assert len(decoder_for(whisper.ported).assisted) == 1
    with pytest.raises(PortError, match="rules of timestamps"):
        whisper.ported.generate(spoken, assistant_model=assistants[1], return_timestamps=True)


def test_the_language_is_detected(whisper: Pair) -> None:
    spoken = features(_FRAMES)
    assert torch.equal(whisper.ported.generate(spoken), whisper.reference.generate(spoken))


@pytest.mark.slow  # test_segments_that_are_improbable_or_silent
def test_long_recordings_with_timestamps(whisper: Pair) -> None:
    """Segment by segment; the text so far, padded on the left, is the decoder's prompt."""
    spoken = features(260)
    mask = torch.ones(2, 260, dtype=torch.long)
    mask[1, 180:] = 0
    options = {"language": "en", "return_timestamps": True, "condition_on_prev_tokens": True}
    wanted = whisper.reference.generate(spoken, attention_mask=mask, **options)
    assert torch.equal(whisper.ported.generate(spoken, attention_mask=mask, **options), wanted)
    assert (wanted > _NO_TIMESTAMPS).sum() > 2


def test_what_the_loop_does_not_give_is_refused(whisper: Pair) -> None:
    with pytest.raises(PortError, match="output_attentions"):
        whisper.ported.generate(features(_FRAMES), language="en", return_token_timestamps=True)


@pytest.mark.slow  # the same loop over segments with a language and a task
def test_segments_that_are_improbable_or_silent(whisper: Pair) -> None:
    spoken = features(_FRAMES)
    options = {"language": "en", "return_timestamps": True, "temperature": (0.0,), "logprob_threshold": -0.1}
    wanted = whisper.reference.generate(spoken, **options)
    assert torch.equal(whisper.ported.generate(spoken, **options), wanted)
    # All is silence to a threshold of nothing.
    options["no_speech_threshold"] = 0.0
    quiet = whisper.reference.generate(spoken, **options)
    assert quiet.shape != wanted.shape
    assert torch.equal(whisper.ported.generate(spoken, **options), quiet)


def _tokenizer(folder: Path) -> WhisperTokenizer:
    """One token a word, and Whisper's own tokens with the ids of the model."""
    special = (
        "endoftext startoftranscript en de transcribe translate startofprev nospeech notimestamps".split()
    )
    tokens = [f"<|{name}|>" for name in special]
    names = [f"w{number}" for number in range(100)] + tokens
    names += [f"<|{number * 0.02:.2f}|>" for number in range(51)]
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(names)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    ends = dict.fromkeys(("unk_token", "bos_token", "eos_token", "pad_token"), tokens[0])
    files = {"vocab": str(folder / "vocab.json"), "merges": str(folder / "merges.txt")}
    return WhisperTokenizer(**files, **ends, additional_special_tokens=tokens[1:])


@pytest.mark.slow  # it calls `generate`, as the tests above do
def test_in_the_pipeline_of_transformers(whisper: Pair, tmp_path: Path) -> None:
    tokenizer = _tokenizer(tmp_path)
    extractor = WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    audio = np.random.default_rng(0).standard_normal(16_000).astype(np.float32)
    texts = []
    for model in whisper:
        transcribe = pipeline(
            "automatic-speech-recognition", model=model, tokenizer=tokenizer, feature_extractor=extractor
        )
        texts.append(transcribe(audio, generate_kwargs={"language": "en"}, return_timestamps=True))
    assert texts[0] == texts[1]
    assert len(texts[0]["chunks"]) > 1
