"""Prompts in chunks, and what all rows begin with computed once: the tokens of whole prompts, with less work."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport.generation import decoder_for, sampling
from tpuport.generation.generation_options import read_options
from tpuport.generation.loop_state import PromptParts
from tpuport.generation.partial_prompts import share_prefix
from tpuport.generation.prompts import Prompts

OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": None, "pad_token_id": 0}
CONFIG = LlamaConfig(
    vocab_size=128, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=2048, pad_token_id=0, eos_token_id=2,
)  # fmt: skip


def _make_small(mesh: Any = None) -> tuple[Any, Any]:
    models = []
    for _ in range(2):
        torch.manual_seed(4)
        model = LlamaForCausalLM(CONFIG).eval()
        for parameter in model.parameters():
            parameter.data += 0.3 * torch.randn(parameter.shape)
        models.append(model)
    return models[0], tpuport.port(models[1], mesh=mesh)


@pytest.fixture(scope="module")
def small() -> tuple[Any, Any]:
    """A Llama of one layer: in torch, and ported."""
    return _make_small()


@pytest.mark.parametrize("family", ["small", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_chunks(family: str, small: tuple, make_pair: Callable, prompts: tuple) -> None:
    """Gemma 3 goes on with rings of its windows."""
    reference, ported = small if family == "small" else make_pair(family)
    ids, mask = (rows[1:] for rows in prompts)
    options = OPTIONS | {"prefill_chunk_size": 9}
    expected = reference.generate(ids, attention_mask=mask, **OPTIONS)
    assert torch.equal(ported.generate(ids, attention_mask=mask, **options), expected)
    decoder = decoder_for(ported)
    before = decoder.prefill.compilations
    shorter = ported.generate(ids[:, 3:], attention_mask=mask[:, 3:], **options)
    assert torch.equal(shorter[:, 17:], expected[:, 20:])
    assert decoder.prefill.compilations == before, "another prompt of the bucket"


def _with_prefix(prefix: int, lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts, padded on the left, that begin with as many equal tokens and go on with others."""
    generator = torch.Generator().manual_seed(prefix)
    shared = torch.randint(3, 128, (prefix,), generator=generator)
    columns = prefix + max(lengths)
    ids, mask = torch.zeros(len(lengths), columns, dtype=torch.long), torch.zeros(len(lengths), columns)
    for row, length in enumerate(lengths):
        text = torch.cat([shared, torch.randint(3, 128, (length,), generator=generator)])
        ids[row, columns - len(text) :] = text
        mask[row, columns - len(text) :] = 1
    return ids, mask.long()


@pytest.mark.parametrize("family", ["small", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_what_all_rows_begin_with_runs_once(family: str, small: tuple, make_pair: Callable) -> None:
    reference, ported = small if family == "small" else make_pair(family)
    decoder = decoder_for(ported)
    before = decoder.prefill.compilations
    for prefix, lengths in ((70, [5, 1, 20]), (65, [7, 26, 3])):
        ids, mask = _with_prefix(prefix, lengths)
        expected = reference.generate(ids, attention_mask=mask, **OPTIONS)
        assert torch.equal(ported.generate(ids, attention_mask=mask, share_prefix=True, **OPTIONS), expected)
    assert decoder.prefill.compilations == before + 1, "prefixes of about the same length share a program"


@pytest.mark.slow
def test_all_rows_of_one_prompt_and_rows_that_share_nothing(small: tuple) -> None:
    reference, ported = small
    prompt = _with_prefix(70, [5])[0]
    for options in ({"num_beams": 2}, {"do_sample": True, "num_return_sequences": 3, "seed": 1}):
        call = OPTIONS | options
        expected = tpuport.generate(ported, prompt, **call)
        assert torch.equal(tpuport.generate(ported, prompt, share_prefix=True, **call), expected)
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    assert torch.equal(ported.generate(ids, share_prefix=True, **OPTIONS), reference.generate(ids, **OPTIONS))


@pytest.mark.slow
def test_on_several_devices_and_in_chunks() -> None:
    reference, ported = _make_small(tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4]))
    ids, mask = _with_prefix(70, [5, 1, 20])
    expected = reference.generate(ids, attention_mask=mask, **OPTIONS)
    options = OPTIONS | {"prefill_chunk_size": 24}
    assert torch.equal(tpuport.generate(ported, ids, mask, share_prefix=True, **options), expected)


def test_the_tokens_that_are_shared() -> None:
    def shared(*rows: list[int]) -> tuple[int, int]:
        columns = max(map(len, rows))
        tokens, mask = np.zeros((len(rows), columns), np.int32), np.zeros((len(rows), columns), bool)
        for row, text in enumerate(rows):
            tokens[row, columns - len(text) :], mask[row, columns - len(text) :] = text, True
        prompts, count = share_prefix(Prompts(tokens, mask, np.zeros(0), len(rows), columns))
        assert [
            list(tokens[mask]) for tokens, mask in zip(prompts.tokens, prompts.mask, strict=True)
        ] == list(rows)
        return count, prompts.tokens.shape[1]

    ones = [1] * 100
    assert shared([*ones, 2], [*ones, 3, 4]) == (96, 128)
    assert shared(ones, [*ones, 5]) == (96, 128)
    assert shared(ones, ones[:64]) == (32, 128), "a token of each row is left"
    assert shared(ones, [2, *ones]) == (0, 101)
    assert shared(ones) == (0, 100)


@pytest.mark.slow  # test_chunks says that a chunk is a program of its own
def test_parts_take_less_memory_and_work(small: tuple) -> None:
    memory, work = {}, {}
    for parts in (None, PromptParts(chunk=32), PromptParts(shared=992)):
        compiled = _compile_prompt(decoder_for(small[1]), parts, rows=8, columns=1024)
        memory[parts] = compiled.memory_analysis().temp_size_in_bytes
        work[parts] = compiled.cost_analysis()["flops"]
    # Keys and values are the most of what is left.
    assert memory[PromptParts(chunk=32)] < 0.6 * memory[None], memory
    assert work[PromptParts(shared=992)] < 0.3 * work[None], work


def _compile_prompt(decoder: Any, parts: PromptParts | None, rows: int, columns: int) -> Any:
    settings = sampling.sampling_settings(read_options(decoder.model, None, {"max_new_tokens": 8}, columns))
    tokens, keys = np.ones((rows, columns), np.int32), np.zeros((rows, 2), np.uint32)
    arguments = (decoder.arrays, tokens, tokens > 0, keys, np.int32(columns), np.int32(rows), settings, {})
    return decoder.prefill.lower(
        *arguments, slots=columns + 32, **({} if parts is None else {"parts": parts})
    ).compile()
