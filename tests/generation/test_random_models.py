"""Models that draw random numbers themselves, in the loop of `generate`."""

import functools
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport

CONFIG = LlamaConfig(
    vocab_size=97, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1,
)  # fmt: skip


class Noisy(LlamaForCausalLM):
    """Its logits are noise alone."""

    @functools.wraps(LlamaForCausalLM.forward)
    def forward(self, **inputs: Any) -> Any:
        output = super().forward(**inputs)
        output.logits = torch.randn_like(output.logits)
        return output


def test_each_step_and_row_draws_its_own() -> None:
    model = tpuport.port(Noisy(CONFIG).eval())
    prompt = torch.arange(6).reshape(2, 3)

    def generate(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return tpuport.generate(model, prompt, max_new_tokens=12, do_sample=False, eos_token_id=None)[:, 3:]

    tokens = generate(0)  # compiles, which must draw nothing
    for _ in range(3):
        assert torch.equal(generate(0), tokens)
    assert not torch.equal(generate(1), tokens)
    assert not torch.equal(tokens[0], tokens[1])
    # Twelve draws among 97 tokens.
    assert min(len(row.unique()) for row in tokens) > 6
