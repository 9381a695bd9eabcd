"""Tiny transformers models whose configuration or inputs the names of fields alone do not tell."""

import pytest
import torch

from benchmarks import tiny_models


@pytest.mark.parametrize(
    "name",
    [
        "BeitModel",  # outputs of four stages
        "Blip2QFormerModel",  # takes what another model embeds
        # A table of its own stages, and outputs of layers that a small backbone does not have.
        pytest.param("CvtForImageClassification", marks=pytest.mark.slow),
        pytest.param("DepthAnythingForDepthEstimation", marks=pytest.mark.slow),
        "EsmcForMaskedLM",  # a vocabulary of 64
        "T5ForSequenceClassification",  # reads the last token, and makes the decoder's ids itself
        "VoxtralEncoder",  # no mask
    ],
)
def test_a_model_computes_something_of_its_inputs(name):
    tiny = tiny_models.build(f"transformers:{name}")
    first_call = tiny.inputs[0]
    other_call = {key: value.flip(0) for key, value in first_call.items()}
    with torch.no_grad():
        result, other = (tiny.call(**call)[0] for call in (first_call, other_call))
    assert torch.isfinite(result).all()
    assert result.std() > 0
    assert not torch.equal(result, other)


def test_a_model_that_is_a_part_of_another_gets_the_arguments_that_it_has_there():
    tiny = tiny_models.build("transformers:VipLlavaModel")
    assert type(tiny.call).__name__ == "VipLlavaModel"
    assert {"input_ids", "pixel_values"} <= tiny.inputs[0].keys()
    with torch.no_grad():
        assert torch.isfinite(tiny.call(**tiny.inputs[0]).last_hidden_state).all()


def test_a_call_that_torch_does_not_take_is_none_of_the_inputs():
    """BrosSpadeEE cannot do without a mask, which others are also called without."""
    tiny = tiny_models.build("transformers:BrosSpadeEEForTokenClassification")
    assert len(tiny.inputs) == 2
    assert all("attention_mask" in call for call in tiny.inputs)
