"""Assisted decoding and prompt lookup: transformers' tokens, which are those without a draft, in fewer steps."""

import copy
import logging
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

import tpuport
from tpuport import PortError
from tpuport.generation import decoder_for, sampling
from tpuport.generation.assisted_decoder import AssistedDecoder, with_drafts
from tpuport.generation.generation_options import read_options
from tpuport.generation.prompts import Prompt, pad_prompts
from tpuport.generation.request import Request

NEW = 24
SMALL = LlamaConfig(
    vocab_size=128, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=2048, pad_token_id=0, eos_token_id=2,
)  # fmt: skip
OPTIONS: dict[str, Any] = {"max_new_tokens": NEW, "eos_token_id": None, "pad_token_id": 0}


def _make_assistant(reference: Any, noise: float, mesh: Any = None) -> tuple[Any, Any]:
    """The model with other weights, so that it drafts some of its tokens: on the host, and ported."""
    models = []
    for _ in range(2):
        model = AutoModelForCausalLM.from_config(reference.config).eval()
        model.load_state_dict(reference.state_dict())
        generator = torch.Generator().manual_seed(3)
        for parameter in model.parameters():
            parameter.data += noise * torch.randn(parameter.shape, generator=generator)
        model.generation_config.num_assistant_tokens = 4
        model.generation_config.assistant_confidence_threshold = 0.0
        models.append(model)
    return models[0], tpuport.port(models[1], mesh=mesh)


@pytest.fixture(scope="module")
def small() -> tuple[Any, Any]:
    """A Llama of one layer: in torch, and ported."""
    models = []
    for _ in range(2):
        torch.manual_seed(4)
        model = LlamaForCausalLM(SMALL).eval()
        for parameter in model.parameters():
            parameter.data += 0.3 * torch.randn(parameter.shape)
        models.append(model)
    return models[0], tpuport.port(models[1])


@pytest.fixture(scope="module")
def assistants(small: tuple) -> tuple[Any, Any]:
    """A drafting model for the Llama, that is right about some of its tokens."""
    return _make_assistant(small[0], 0.01)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths at which the model verified a draft, and at the end of which calls of the loop."""
    lengths: list[int] = []
    verify = AssistedDecoder._verify_draft

    def counted(self: Any, arrays: Any, state: Any, *others: Any) -> Any:
        jax.debug.callback(lambda length: lengths.append(int(length)), state.length)
        return verify(self, arrays, state, *others)

    monkeypatch.setattr(AssistedDecoder, "_verify_draft", counted)
    return lengths


def _assisted(ported: Any) -> list[AssistedDecoder]:
    return list(decoder_for(ported).assisted.values())  # type: ignore[arg-type]


def test_a_draft_changes_no_token(small: tuple, assistants: tuple, prompts: tuple, steps: list[int]) -> None:
    reference, ported = small
    ids, mask = prompts
    decoder_for(ported).assisted.clear()
    # Rows of a batch, which transformers does not draft for, go on together.
    together = reference.generate(ids, attention_mask=mask, **OPTIONS)
    actual = ported.generate(ids, attention_mask=mask, assistant_model=assistants[1], **OPTIONS)
    jax.effects_barrier()
    assert torch.equal(actual, together)
    assert 0 < len(steps) < 0.7 * NEW, "too few drafts are accepted to save anything"
    (assisted,) = _assisted(ported)
    # Rows end within a draft.
    options = OPTIONS | {"eos_token_id": [int(together[0, 27]), int(together[1, 31])]}
    expected = reference.generate(ids, attention_mask=mask, **options)
    assert (expected == 0).sum() > (ids == 0).sum(), "no row ended early: this shows nothing"
    assert torch.equal(
        tpuport.generate(ported, ids, mask, assistant_model=assistants[1], **options), expected
    )
    assert (assisted.prefill.compilations, assisted.advance.compilations) == (1, 1)


@pytest.mark.slow  # the same program above; test_processed_generation.py has processors without a draft
def test_a_draft_changes_no_draw(small: tuple, assistants: tuple, prompts: tuple) -> None:
    _, ported = small
    ids, mask = prompts
    decoder_for(ported).assisted.clear()
    for options in ({"do_sample": True, "temperature": 3.0, "seed": 5}, {"repetition_penalty": 1.3}):
        plain = tpuport.generate(ported, ids, mask, **OPTIONS, **options)
        drafted = tpuport.generate(ported, ids, mask, assistant_model=assistants[1], **OPTIONS, **options)
        assert torch.equal(plain, drafted), "the random keys are those of the tokens' numbers"
    (assisted,) = _assisted(ported)
    assert (assisted.prefill.compilations, assisted.advance.compilations) == (1, 1)


@pytest.mark.slow  # test_decoding_cache.py, with one model
def test_the_loop_copies_no_cache(small: tuple, assistants: tuple, prompts: tuple) -> None:
    """Both are written in place: what was rejected is written again, and nothing is rolled back."""
    model, assistant = small[1], assistants[1]
    options = read_options(model, None, {"max_new_tokens": 8}, 20)
    ids, mask = (x.numpy() for x in prompts)
    prompt = Prompt(ids.astype(np.int32), mask.astype(bool))
    request = Request(model=model, assistant_model=assistant)
    decoder = with_drafts(decoder_for(model), request, options, prompt)
    ready = pad_prompts(prompt, options, seed=0, row_multiple=1)
    chosen, columns = sampling.sampling_settings(options), np.int32(32)
    arguments = ready.tokens, ready.mask, ready.keys, columns, np.int32(3), chosen
    state = decoder.prefill(decoder.arrays, *arguments, slots=64)
    program = decoder.advance.lower(decoder.arrays, state, ready.keys, columns, np.int32(40), chosen)
    text = program.compile().as_text()
    assert "f32[3,1,64,16]" in text, "the caches have another form here"
    assert not re.findall(r"= f32\[(?:3,1|3),64,16\]\S* copy\(", text)


@pytest.mark.slow
def test_every_step_has_its_scores_and_the_streamer_every_token(
    small: tuple, assistants: tuple, prompts: tuple
) -> None:
    reference, ported = small
    ids = prompts[0][:1]
    options = OPTIONS | {"return_dict_in_generate": True, "output_scores": True}
    expected = reference.generate(ids, **options)
    actual = ported.generate(ids, assistant_model=assistants[1], max_time=1e6, **options)
    assert torch.equal(actual.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(actual.scores), torch.stack(expected.scores), rtol=1e-4, atol=1e-4)


def test_the_text_itself_is_a_draft(small: tuple, steps: list[int]) -> None:
    reference, ported = small
    decoder_for(ported).assisted.clear()
    start = torch.randint(3, 128, (1, 6), generator=torch.Generator().manual_seed(2))
    # The model's own continuation in the prompt is what it goes on with.
    text = reference.generate(start, **OPTIONS | {"max_new_tokens": 40})
    prompt = torch.cat([text, text[:, :10]], dim=1)
    options = OPTIONS | {"prompt_lookup_num_tokens": 5, "max_matching_ngram_size": 3}
    expected = reference.generate(prompt, **options)
    assert torch.equal(ported.generate(prompt, **options), expected)
    jax.effects_barrier()
    looked_up = text[0, 10:20].tolist() == expected[0, 50:60].tolist()
    assert len(steps) < NEW - (8 if looked_up else 0)


@pytest.mark.slow
def test_windows_and_learned_positions(make_pair: Callable, prompts: tuple) -> None:
    """A rejected draft may have overwritten what a ring still needs; and GPT-2 has no position after the last."""
    for family in ("gemma3", "gpt2"):
        reference, ported = make_pair(family)
        _, assistant = _make_assistant(reference, 0.02)
        ids, mask = prompts
        options = OPTIONS | {"max_new_tokens": 12}
        if family == "gpt2":
            ids = torch.randint(3, 128, (2, 244), generator=torch.Generator().manual_seed(8))
            mask = torch.ones_like(ids)
        expected = reference.generate(ids, attention_mask=mask, **options)
        assert torch.equal(
            ported.generate(ids, attention_mask=mask, assistant_model=assistant, **options), expected
        )
        assert len(_assisted(ported)) == 1


@pytest.mark.slow
def test_on_several_devices(make_pair: Callable, prompts: tuple) -> None:
    mesh = tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4])
    reference, ported = make_pair("llama", mesh=mesh)
    _, assistant = _make_assistant(reference, 0.01, mesh=mesh)
    ids, mask = prompts
    expected = reference.generate(ids, attention_mask=mask, **OPTIONS)
    assert torch.equal(
        ported.generate(ids, attention_mask=mask, assistant_model=assistant, **OPTIONS), expected
    )
    assert len(_assisted(ported)) == 1


_BERT = BertConfig(
    vocab_size=96, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)
_MAMBA = MambaConfig(vocab_size=96, hidden_size=16, num_hidden_layers=1, state_size=4)


@pytest.mark.slow  # the warnings of test_models_without_cache.py, and drafts of the text above
@pytest.mark.parametrize(
    ("model_class", "config", "reason"),
    [
        (BertLMHeadModel, _BERT, "one token at a time"),
        pytest.param(MambaForCausalLM, _MAMBA, "positions of its own mask", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_drafted_decodes_token_by_token(
    model_class: Any, config: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    ids = torch.tensor([[5, 6, 7, 5, 6]])
    torch.manual_seed(1)
    reference = model_class(config).eval()
    ported = tpuport.port(copy.deepcopy(reference))
    options = OPTIONS | {"max_new_tokens": 4}
    with caplog.at_level(logging.WARNING, "tpuport"):
        actual = ported.generate(ids, prompt_lookup_num_tokens=3, prefill_chunk_size=2, **options)
    assert reason in caplog.text
    assert "prefill_chunk_size" in caplog.text
    assert torch.equal(actual, reference.generate(ids, **options))


def test_what_is_no_assistant_is_refused(small: tuple, assistants: tuple, prompts: tuple) -> None:
    _, ported = small
    ids = prompts[0][:1]
    config = type(ported.config)(**ported.config.to_dict() | {"vocab_size": 96, "num_hidden_layers": 1})
    small = tpuport.port(LlamaForCausalLM(config).eval())
    for options, message in (
        ({"assistant_model": assistants[0]}, "not a ported model"),
        ({"assistant_model": small}, "128 and 96 tokens"),
        ({"assistant_model": assistants[1], "num_beams": 2}, "no drafts"),
        ({"prompt_lookup_num_tokens": 3, "num_beams": 2}, "no drafts"),
    ):
        with pytest.raises(PortError, match=message):
            ported.generate(ids, **OPTIONS, **options)
