"""Processed logits against transformers' own processors; draws by seed."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import torch
from hypothesis import given, settings
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import tpuport
from tpuport.generation import sampling
from tpuport.generation.generation_options import Options

V, T, P = 41, 12, 5

_process = jax.jit(sampling.process_logits)


def _options(**changes: object) -> Options:
    neutral = {
        "max_new": 8, "min_new": 0, "do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
        "repetition_penalty": 1.0, "eos": (2,), "pad": 0, "num_return_sequences": 1, "stop_strings": (),
        "max_time": None, "max_cache_len": None,
    }  # fmt: skip
    return Options(**(neutral | changes))


def _expected(
    options: Options, ids: torch.Tensor, padding: torch.Tensor, logits: torch.Tensor
) -> torch.Tensor:
    chain = LogitsProcessorList()
    if options.repetition_penalty != 1.0:
        chain.append(
            RepetitionPenaltyLogitsProcessor(options.repetition_penalty, prompt_ignore_length=padding)
        )
    if options.min_new:
        chain.append(MinNewTokensLengthLogitsProcessor(P, options.min_new, list(options.eos)))
    if options.do_sample:
        if options.temperature != 1.0:
            chain.append(TemperatureLogitsWarper(options.temperature))
        if options.top_k:
            chain.append(TopKLogitsWarper(options.top_k))
        if options.top_p < 1.0:
            chain.append(TopPLogitsWarper(options.top_p))
        if options.min_p:
            chain.append(MinPLogitsWarper(options.min_p))
    return chain(ids, logits.clone())


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    filled=st.integers(P, T - 1),
    do_sample=st.booleans(),
    temperature=st.sampled_from([1.0, 0.3, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 40, 1000]),
    top_p=st.sampled_from([1.0, 0.97, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.05, 0.6, 1.0]),
    penalty=st.sampled_from([1.0, 1.3, 0.7]),
    min_new=st.sampled_from([0, 3, 7]),
    eos=st.sampled_from([(2,), (2, 7, 40)]),
)
def test_processed_logits_equal_transformers(
    seed: int, filled: int, do_sample: bool, temperature: float, top_k: int, top_p: float, min_p: float,
    penalty: float, min_new: int, eos: tuple[int, ...],
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(3, V, generator=generator)
    buffer = torch.randint(0, V, (3, T), generator=generator)
    padding = torch.randint(0, P, (3,), generator=generator)
    options = _options(
        do_sample=do_sample, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=penalty, min_new=min_new, eos=eos,
    )  # fmt: skip
    expected = _expected(options, buffer[:, :filled], padding, logits).numpy()
    columns = np.arange(T)
    present = (columns >= padding.numpy()[:, None]) & (columns < filled)
    got = _process(
        jnp.asarray(logits.numpy()), jnp.asarray(buffer.numpy(), jnp.int32), jnp.asarray(present),
        jnp.int32(filled - P), sampling.sampling_settings(options),
    )  # fmt: skip
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(expected))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_draws_follow_the_probabilities() -> None:
    """20,000 draws of one row, each with its own key: frequencies within five standard errors."""
    logits = jnp.asarray(np.random.default_rng(0).normal(size=7) * 1.5, jnp.float32)
    rows = 20_000
    keys = jax.random.key_data(jax.random.split(jax.random.key(3), rows))
    tokens = sampling.choose_tokens(
        jnp.tile(logits, (rows, 1)), keys, jnp.int32(0), sampling.sampling_settings(_options())
    )
    wanted = np.asarray(jax.nn.softmax(logits))
    found = np.bincount(np.asarray(tokens), minlength=7) / rows
    assert (np.abs(found - wanted) < 5 * np.sqrt(wanted / rows) + 1e-4).all()


def test_sampling_depends_on_seed_and_prompt_alone(llama: tuple, prompts: tuple) -> None:
    ids, mask = prompts
    options = {"max_new_tokens": 12, "do_sample": True, "temperature": 1.5, "eos_token_id": []}
    first = tpuport.generate(llama[1], ids, mask, seed=4, **options)
    assert torch.equal(first, tpuport.generate(llama[1], ids, mask, seed=4, **options))
    assert not torch.equal(first, tpuport.generate(llama[1], ids, mask, seed=5, **options))
    order = torch.tensor([2, 0, 1])
    assert torch.equal(tpuport.generate(llama[1], ids[order], mask[order], seed=4, **options), first[order])
    alone = tpuport.generate(llama[1], ids[1:2, 7:], seed=4, **options)
    assert torch.equal(alone[0], first[1, 7:])


def test_num_return_sequences_differ_from_each_other(llama: tuple, prompts: tuple) -> None:
    options = {"max_new_tokens": 12, "do_sample": True, "temperature": 2.0, "eos_token_id": []}
    out = tpuport.generate(llama[1], prompts[0][:1], num_return_sequences=3, seed=0, **options)
    assert out.shape == (3, 32)
    assert len({tuple(row.tolist()) for row in out}) == 3
    assert torch.equal(out[:1], tpuport.generate(llama[1], prompts[0][:1], seed=0, **options))
