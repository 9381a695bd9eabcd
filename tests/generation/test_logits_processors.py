"""The loop's processors against the list that transformers itself makes of a GenerationConfig."""

import types
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from transformers import GenerationConfig, GenerationMixin, LlamaConfig

from tpuport.generation import sampling
from tpuport.generation.generation_options import read_options
from tpuport.generation.logits_processors import make_processors
from tpuport.generation.prompts import Prompts

V, ROWS, NEW = 41, 3, 9
# Of the buffer: room for the longest prompt, the bucket's padding before it, and the new tokens.
BUCKET, T = 8, 24
EOS = [2, 7]
ENCODER = 6

_process = jax.jit(sampling.process_logits)


def _expected(
    options: dict[str, Any], ids: torch.Tensor, prompt: torch.Tensor, mask: torch.Tensor,
    encoder: torch.Tensor | None, logits: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """What transformers' own list of processors gives."""
    config = GenerationConfig(**options)
    config._eos_token_tensor = torch.tensor(EOS)
    config.max_length = prompt.shape[1] + NEW
    is_encoder_decoder = encoder is not None
    owner = types.SimpleNamespace(config=LlamaConfig(is_encoder_decoder=is_encoder_decoder))
    owner._merge_criteria_processor_list = GenerationMixin._merge_criteria_processor_list.__get__(owner)
    processors = GenerationMixin._get_logits_processor(
        owner, config, input_ids_seq_length=prompt.shape[1], device="cpu",
        encoder_input_ids=prompt if encoder is None else encoder,
        model_kwargs={"decoder_attention_mask" if is_encoder_decoder else "attention_mask": mask},
    )  # fmt: skip
    return processors(ids, logits.clone())


def _check(
    options: dict[str, Any], seed: int, prompt_length: int, new_tokens: int, *,
    has_encoder: bool = False, has_invalid: bool = False,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(ROWS, V, generator=generator)
    if has_invalid:
        for column, value in enumerate((float("nan"), float("inf"), -float("inf"), float("inf"))):
            logits[:, 5 * column + seed % 5] = value
    # Few tokens, so that sequences repeat.
    ids = torch.randint(0, 4, (ROWS, prompt_length + new_tokens), generator=generator)
    padding = torch.randint(0, prompt_length, (ROWS, 1), generator=generator)
    mask = (torch.arange(prompt_length) >= padding).long()
    encoder = torch.randint(0, 4, (ROWS, ENCODER), generator=generator) if has_encoder else None
    options = options | {"eos_token_id": EOS, "max_new_tokens": NEW}
    expected = _expected(options, ids, ids[:, :prompt_length], mask, encoder, logits).numpy()

    owner = types.SimpleNamespace(config=LlamaConfig(), generation_config=None)
    request = read_options(owner, None, options, prompt_length)
    # What is before the prompt and after the last token must not matter.
    buffer = torch.randint(0, 4, (ROWS, T), generator=generator)
    first, length = BUCKET - prompt_length, BUCKET + new_tokens
    buffer[:, first:length] = ids
    present = np.zeros((ROWS, T), bool)
    present[:, first:BUCKET] = mask.numpy()
    present[:, BUCKET:length] = True
    prompts = Prompts(
        buffer[:, :BUCKET].numpy(), present[:, :BUCKET], np.zeros((ROWS, 2), np.uint32), ROWS, prompt_length
    )
    if encoder is not None:
        # The bucket of an encoder's tokens is on their right.
        inputs = {"input_ids": np.pad(encoder.numpy(), ((0, 0), (0, 3)))}
        prompts = prompts._replace(inputs=inputs, source_length=ENCODER)
    processors = make_processors(request, prompts)
    chosen = sampling.sampling_settings(request)._replace(processors=processors)
    got = _process(
        jnp.asarray(logits.numpy()), jnp.asarray(buffer.numpy(), jnp.int32), jnp.asarray(present),
        jnp.int32(new_tokens), chosen,
    )  # fmt: skip
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(expected))
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6)


_SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6)
_SCORES = {
    "sequence_bias": _SEQUENCES.map(
        lambda sequences: {tuple(sequence): 1.5 * n - 4.0 for n, sequence in enumerate(sequences)}
    ),
    "encoder_repetition_penalty": st.sampled_from([1.7, 0.6]),
    "repetition_penalty": st.sampled_from([1.0, 1.3]),
    "no_repeat_ngram_size": st.integers(1, 5),
    "encoder_no_repeat_ngram_size": st.integers(1, 5),
    "bad_words_ids": _SEQUENCES.map(lambda sequences: [*sequences, [7], [9]]),
    "min_new_tokens": st.sampled_from([0, 4]),
    "suppress_tokens": st.lists(st.integers(0, V + 5), min_size=1, max_size=8),
    "begin_suppress_tokens": st.lists(st.integers(0, V - 1), min_size=1, max_size=8),
    "exponential_decay_length_penalty": st.tuples(st.integers(0, 5), st.sampled_from([1.4, 0.7])),
}


@pytest.mark.parametrize("has_encoder", [pytest.param(False, marks=pytest.mark.slow), True])
@settings(settings.get_profile("few"))
@given(
    options=st.fixed_dictionaries(_SCORES), seed=st.integers(0, 10_000), prompt_length=st.integers(1, BUCKET),
    new_tokens=st.integers(0, NEW - 1),
)  # fmt: skip
def test_what_depends_on_tokens(
    has_encoder: bool, options: dict[str, Any], seed: int, prompt_length: int, new_tokens: int
) -> None:
    _check(options, seed, prompt_length, new_tokens, has_encoder=has_encoder)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000), prompt_length=st.sampled_from([1, 2]), new_tokens=st.integers(0, NEW - 1),
    bos=st.integers(0, V - 1), begin=st.integers(0, V - 1),
    ends=st.one_of(st.integers(0, V - 1), st.lists(st.integers(0, V - 1), min_size=1, max_size=3)),
)  # fmt: skip
def test_forced_tokens_and_invalid_scores(
    seed: int, prompt_length: int, new_tokens: int, bos: int, begin: int, ends: Any
) -> None:
    options = {
        "forced_bos_token_id": bos, "forced_eos_token_id": ends, "begin_suppress_tokens": [begin],
        "remove_invalid_values": True,
    }  # fmt: skip
    _check(options, seed, prompt_length, new_tokens, has_invalid=True)


_FILTERS = {
    "top_h": [0.1, 0.5, 0.9],
    "typical_p": [0.1, 0.6, 0.95],
    "epsilon_cutoff": [1e-3, 0.05, 0.9],
    "eta_cutoff": [1e-3, 0.05, 0.9],
}


@pytest.mark.parametrize("name", _FILTERS)
@settings(settings.get_profile("few"))
@given(
    data=st.data(), seed=st.integers(0, 10_000), temperature=st.sampled_from([0.4, 1.0, 2.5]),
    top_k=st.sampled_from([0, 5, 30]), top_p=st.sampled_from([1.0, 0.8]), min_p=st.sampled_from([None, 0.05]),
)  # fmt: skip
def test_filters(
    name: str, data: Any, seed: int, temperature: float, top_k: int, top_p: float, min_p: float | None
) -> None:
    options = {
        "do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        name: data.draw(st.sampled_from(_FILTERS[name])), "renormalize_logits": True,
    }  # fmt: skip
    _check(options, seed, 3, 2)
