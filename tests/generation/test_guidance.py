"""`guidance_scale` against transformers: the same tokens after a negative prompt are moved away from."""

from collections.abc import Callable

import jax
import pytest
import torch

import tpuport
from tpuport import PortError
from tpuport.generation import decoder_for

NEW = 10
_OPTIONS = {"max_new_tokens": NEW, "guidance_scale": 2.5, "pad_token_id": 0}


@pytest.fixture(scope="module")
def negative() -> torch.Tensor:
    """A negative prompt of five tokens for each of three rows."""
    return torch.randint(3, 128, (3, 5), generator=torch.Generator().manual_seed(3))


def test_with_and_without_a_negative_prompt(llama: tuple, prompts: tuple, negative: torch.Tensor) -> None:
    reference, ported = llama
    ids, mask = prompts
    free = reference.generate(ids, attention_mask=mask, max_new_tokens=NEW, eos_token_id=None)
    ends = {"eos_token_id": [2, int(free[1, 22])]}
    for given in ({}, {"negative_prompt_ids": negative}):
        expected = reference.generate(ids, attention_mask=mask, **_OPTIONS, **ends, **given)
        assert not torch.equal(expected[:, 20:22], free[:, 20:22]), "guidance changes nothing"
        assert torch.equal(tpuport.generate(ported, ids, mask, **_OPTIONS, **ends, **given), expected)
    decoder = decoder_for(ported)
    before = decoder.prefill.compilations, decoder.advance.compilations
    options = _OPTIONS | {"guidance_scale": 1.4, "negative_prompt_ids": negative[:, :3]}
    expected = reference.generate(ids, attention_mask=mask, **options)
    assert torch.equal(ported.generate(ids, attention_mask=mask, **options), expected)
    assert (decoder.prefill.compilations, decoder.advance.compilations) == before


@pytest.mark.slow  # guidance above, and test_beam_search.py
def test_beams_and_outputs(llama: tuple, prompts: tuple) -> None:
    """transformers leaves the second cache as it is when beams change their places."""
    options = _OPTIONS | {
        "num_beams": 2, "return_dict_in_generate": True, "output_scores": True, "output_logits": True,
    }  # fmt: skip
    ids, mask = prompts
    expected = llama[0].generate(ids, attention_mask=mask, **options)
    got = tpuport.generate(llama[1], ids, mask, **options)
    assert torch.equal(got.sequences, expected.sequences)
    torch.testing.assert_close(got.sequences_scores, expected.sequences_scores, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.logits[3], expected.logits[3], rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # the processors' test of several devices, and of one device with a negative prompt
def test_on_several_devices_in_chunks(make_pair: Callable, prompts: tuple, negative: torch.Tensor) -> None:
    reference, ported = make_pair("llama", mesh=tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4]))
    ids, mask = prompts
    options = _OPTIONS | {"negative_prompt_ids": negative, "max_new_tokens": 20}
    expected = reference.generate(ids, attention_mask=mask, **options)
    assert torch.equal(tpuport.generate(ported, ids, mask, max_time=1e6, **options), expected)
    assert decoder_for(ported).advance.compilations == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"negative_prompt_ids": [[5, 6]]}, "1 negative prompts, 3 prompts"),
        ({"negative_prompt_ids": [[128]] * 3}, "vocabulary of 128"),
        (
            {"negative_prompt_ids": [[0, 5]] * 3, "negative_prompt_attention_mask": [[0, 1]] * 3},
            "padded negative prompts",
        ),
        ({"negative_prompt_ids": [[5] * 250] * 3}, "a negative prompt of 250 tokens and 10 new ones"),
    ],
)
def test_what_cannot_guide_is_refused(llama: tuple, prompts: tuple, options: dict, message: str) -> None:
    with pytest.raises(PortError, match=message):
        tpuport.generate(llama[1], *prompts, **_OPTIONS, **options)
