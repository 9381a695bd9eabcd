"""XLM and FlauBERT, which assert that no row is longer than its columns, against transformers on the CPU."""

from typing import Any

import pytest
import torch
from transformers import FlaubertConfig, FlaubertWithLMHeadModel, XLMConfig, XLMWithLMHeadModel

import tpuport
from tpuport import compat

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "emb_dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.parametrize(
    ("model_class", "config_class"),
    [
        (XLMWithLMHeadModel, XLMConfig),
        pytest.param(FlaubertWithLMHeadModel, FlaubertConfig, marks=pytest.mark.slow),
    ],
)
def test_a_program_serves_every_length(model_class: type, config_class: type) -> None:
    torch.manual_seed(5)
    config = config_class(**SIZES)
    reference = model_class(config).eval()
    ported = model_class(config).eval()
    ported.load_state_dict(reference.state_dict())
    model = tpuport.port(ported)
    # In a function of the user's own, whose own checks would ask for values.
    compiled = tpuport.compile(lambda ids, attention_mask=None: model(ids, attention_mask=attention_mask))
    for length in (4, 2):
        ids = torch.arange(5, 17).reshape(2, 6)
        ids[:, length:] = config.pad_index
        for inputs in ({}, {"attention_mask": (ids != config.pad_index).long()}):
            expected = reference(ids, **inputs).logits
            actual = compiled(ids, **inputs).logits
            torch.testing.assert_close(compat.to_torch(compat.as_jax(actual)), expected, rtol=1e-5, atol=1e-5)
    # With a mask and without: the lengths decide nothing.
    assert compiled.program.compilations == 2
