"""A ported model's own call."""

import pytest
import torch
import transformers

import tpuport


def test_token_ids_beyond_the_vocabulary_raise_torchs_error() -> None:
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config).eval()
    good, bad = torch.tensor([[0, 15]]), torch.tensor([[3, 16]])
    with pytest.raises(IndexError, match="index out of range in self"):
        model(bad)
    ported = tpuport.port(model)
    for wrong in (bad, torch.tensor([[-1, 3]])):
        with pytest.raises(IndexError, match="index out of range in self"):
            ported(wrong)
        with pytest.raises(IndexError, match="index out of range in self"):
            ported(input_ids=wrong)
    assert tpuport.to_cpu(ported(good)).logits.isfinite().all()
