"""Greedy decoding is token for token what transformers' generate gives on the CPU."""

from collections.abc import Callable

import pytest
import torch

import tpuport

# Experts alone are compared in tests/compat too.
FAMILIES = ["gemma3", pytest.param("mixtral", marks=pytest.mark.slow)]
# Gemma 3 has the sliding window of the first and the norms of queries and keys of the second. Phi-3 only differs from
# Llama in how its projections are stored, which the tests of logits cover. test_sharded.py compares Llama's batches.
SLOW = ("llama", "mistral", "qwen3", "gpt_oss", "phi3", "gpt2")
FAMILIES += [pytest.param(family, marks=pytest.mark.slow) for family in SLOW]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_transformers(family: str, make_pair: Callable, prompts: tuple) -> None:
    reference, ported = make_pair(family)
    ids, mask = prompts
    options = {"max_new_tokens": 24, "do_sample": False}
    tokens = tpuport.generate(ported, ids, mask, **options)
    assert torch.equal(tokens, reference.generate(ids, attention_mask=mask, **options))
    assert len(set(tokens[:, 20:].flatten().tolist())) > 5, "a constant output would prove little"


@pytest.mark.slow  # the text itself is a draft of one row, in test_assisted_decoding.py
def test_one_row_equals_transformers(llama: tuple, prompts: tuple) -> None:
    ids, options = prompts[0][:1], {"max_new_tokens": 24, "do_sample": False}
    assert torch.equal(tpuport.generate(llama[1], ids, **options), llama[0].generate(ids, **options))


def test_a_model_that_takes_columns_for_positions_sees_no_other_padding(
    make_pair: Callable, prompts: tuple
) -> None:
    """Marian's decoder has no position_ids: the prompt's first column is position 0, whatever the mask says."""
    reference, ported = make_pair("marian")
    ids, mask = prompts
    options = {"max_new_tokens": 8, "forced_eos_token_id": None, "eos_token_id": []}
    expected = reference.generate(ids, attention_mask=mask, **options)
    assert torch.equal(tpuport.generate(ported, ids, mask, **options), expected)
    assert len(set(expected[:, 20:].flatten().tolist())) > 5, "a constant output would prove little"


def test_a_padded_row_gives_what_it_gives_alone(llama: tuple, prompts: tuple) -> None:
    ids, mask = prompts
    options = {"max_new_tokens": 16, "eos_token_id": []}
    together = tpuport.generate(llama[1], ids, mask, **options)
    for row, padding in enumerate((0, 7, 13)):
        alone = tpuport.generate(llama[1], ids[row : row + 1, padding:], **options)
        assert torch.equal(together[row, padding:], alone[0])


@pytest.mark.slow  # test_language_models.py in tests/compat has its logits
def test_bfloat16_weights_agree_within_its_rounding(make_pair: Callable, prompts: tuple) -> None:
    """bf16 keeps 8 bits: the rounding of a layer stays under 2 ** -4 of the largest logit."""
    reference, ported = make_pair("llama", dtype=torch.bfloat16)
    ids = prompts[0][:1]
    expected = reference(ids).logits.float()
    from tpuport import compat

    got = compat.to_torch(
        compat.as_jax(tpuport.compile(ported)(input_ids=ids, use_cache=False).logits)
    ).float()
    assert (got - expected).abs().max() <= 2**-4 * expected.abs().max()
    tokens = tpuport.generate(ported, ids, max_new_tokens=4)
    assert tokens.shape == (1, 24)
    # Each token is torch's best, or as good as that within the rounding.
    scores = reference(tokens).logits.float()[0, 19:-1]
    chosen = scores.gather(1, tokens[0, 20:, None])[:, 0]
    assert (scores.max(dim=1).values - chosen <= 2**-3 * expected.abs().max()).all()
