"""`return_dict_in_generate`, `output_scores` and `output_logits` against transformers."""

from typing import Any

import pytest
import torch
from transformers import StoppingCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

import tpuport
from tpuport.generation.step_outputs import STEPS

_OPTIONS = {
    "max_new_tokens": STEPS + 3, "pad_token_id": 0, "return_dict_in_generate": True, "output_scores": True,
    "output_logits": True, "repetition_penalty": 1.3,
}  # fmt: skip


class AtLength(StoppingCriteria):
    """Row r ends at length 23 + 2 r."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids.shape[1] >= 23 + 2 * torch.arange(len(input_ids))


def _assert_equal(got: Any, expected: Any) -> None:
    assert type(got) is GenerateDecoderOnlyOutput
    assert torch.equal(got.sequences, expected.sequences)
    for name in ("scores", "logits"):
        assert len(got[name]) == len(expected[name])
        for ours, theirs in zip(got[name], expected[name], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("with_criteria", [False, True])
def test_every_step_of_a_padded_batch(llama: tuple, prompts: tuple, with_criteria: bool) -> None:
    """Rows that have ended go on with padding, which their scores depend on."""
    reference, ported = llama
    ids, mask = prompts
    free = reference.generate(
        ids, attention_mask=mask, max_new_tokens=8, eos_token_id=None, repetition_penalty=1.3
    )
    options = _OPTIONS | {"eos_token_id": int(free[1, 24])}
    if with_criteria:
        options["stopping_criteria"] = [AtLength()]
    expected = reference.generate(ids, attention_mask=mask, **options)
    assert (expected.sequences == 0).sum() > (ids == 0).sum(), "no row ended early: the test shows nothing"
    _assert_equal(tpuport.generate(ported, ids, mask, **options), expected)


@pytest.mark.slow  # every step of a batch, below
def test_only_what_is_asked_for(llama: tuple, prompts: tuple) -> None:
    ids = prompts[0][:1]
    plain = tpuport.generate(llama[1], ids, max_new_tokens=3, output_scores=True)
    assert isinstance(plain, torch.Tensor), "as in transformers, the class has to be asked for"
    options = {"max_new_tokens": 3, "return_dict_in_generate": True, "do_sample": True}
    got = tpuport.generate(llama[1], ids, output_scores=True, **options)
    assert (got.logits, len(got.scores), got.scores[0].shape) == (None, 3, (1, 128))
    assert torch.equal(tpuport.generate(llama[1], ids, **options).sequences, got.sequences)
