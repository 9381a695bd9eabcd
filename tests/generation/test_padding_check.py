"""Models that take no positions: padding in front of a prompt only where they hide it, which they are asked."""

from typing import Any

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, BloomModel

import tpuport
from tpuport.generation import decoder_for

CONFIG = BloomConfig(vocab_size=96, hidden_size=64, n_layer=2, n_head=4)
OPTIONS: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": [], "pad_token_id": 0}


class _Columns(BloomModel):
    def build_alibi_tensor(self, attention_mask: Any, num_heads: int, dtype: Any) -> torch.Tensor:
        columns = torch.arange(attention_mask.shape[1], device=attention_mask.device)
        biases = super().build_alibi_tensor(attention_mask, num_heads, dtype)
        return biases + (3 * (columns % 5)).to(dtype)


class CountingColumns(BloomForCausalLM):
    """Its biases depend on the number of a column, whether or not that is padding."""

    def __init__(self, config: BloomConfig) -> None:
        super().__init__(config)
        self.transformer = _Columns(config)


@pytest.mark.parametrize(("model_class", "hides"), [(BloomForCausalLM, True), (CountingColumns, False)])
def test_a_model_of_linear_biases(model_class: type, hides: bool) -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(5)
        model = model_class(CONFIG).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data += 0.5 * torch.randn(parameter.shape)
        models.append(model)
    ported = tpuport.port(models[1])
    ids = expected = torch.arange(5, 12)[None]
    # transformers' generate leaves out a mask of ones, and BLOOM makes its biases in another place then.
    for _ in range(OPTIONS["max_new_tokens"]):
        logits = models[0](expected, attention_mask=torch.ones_like(expected), use_cache=False).logits
        expected = torch.cat([expected, logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(tpuport.generate(ported, ids, **OPTIONS), expected)
    assert len(set(expected[0, 7:].tolist())) > 2, "a constant output would prove little"
    assert decoder_for(ported).uses_buckets == hides
