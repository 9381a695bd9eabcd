"""Longformer with global tokens, padding and a length that is no multiple of its window, beside transformers."""

import copy

import pytest
import torch
from transformers import LongformerConfig, LongformerModel

import tpuport

CONFIG = LongformerConfig(
    vocab_size=96, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
    attention_window=[4, 8], max_position_embeddings=64, pad_token_id=1,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_global_tokens_padding_and_neither() -> None:
    torch.manual_seed(5)
    model = LongformerModel(CONFIG).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data += 0.3 * torch.randn(parameter.shape)
    ids = torch.randint(3, 96, (2, 19))
    mask = torch.ones_like(ids)
    mask[1, 13:] = 0
    is_global = torch.zeros_like(ids)
    is_global[0, [0, 9]] = 1
    is_global[1, 3] = 1
    compiled = tpuport.compile(tpuport.port(copy.deepcopy(model)))
    results = []
    for options in (
        {"attention_mask": mask, "global_attention_mask": is_global},
        {"attention_mask": mask},
        {},
    ):
        with torch.no_grad():
            expected = model(ids, **options)
        actual = compiled(ids, **options)
        torch.testing.assert_close(
            actual.last_hidden_state.cpu(), expected.last_hidden_state, rtol=1e-4, atol=1e-4
        )
        torch.testing.assert_close(actual.pooler_output.cpu(), expected.pooler_output, rtol=1e-4, atol=1e-4)
        results.append(expected.last_hidden_state[0])
    assert not torch.allclose(results[0], results[1], atol=1e-2), (
        "global tokens change nothing: the test shows little"
    )
