"""`tpuport.check` on a Llama of transformers, and with defects planted in it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport.attention.register import transformers_interface
from tpuport.verification import CheckFinding
from tpuport.verification.checking import Check
from tpuport.verification.model_runs import Arguments


@pytest.mark.slow  # test_check.py plants the same in a small model
def test_a_llama_passes_and_defects_in_it_are_blamed_to_lines_of_transformers(
    replace_operator: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, :3] = 0
    inputs = {"input_ids": torch.randint(0, 50, (2, 8)), "attention_mask": mask}
    result = tpuport.check(model, inputs, mesh=tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4]))
    assert result.ok, result.to_text()

    def blamed() -> CheckFinding:
        run = Check(model, Arguments.of(inputs), None, None)
        run.carry_out(("torch", "values", "compare"))
        [finding] = [finding for finding in run.findings if finding.kind == "result"]
        return finding

    with monkeypatch.context() as planted:
        attend = transformers_interface.attend
        planted.setattr(
            transformers_interface,
            "attend",
            lambda query, key, value, mask, **settings: attend(query, key, value, None, **settings),
        )
        finding = blamed()
        assert finding.source is not None
        assert finding.source.function == "LlamaAttention.forward"
        assert "attention_interface" in finding.source.code
    replace_operator(torch.Tensor.cos, lambda x: jnp.cos(x * 1.01))
    finding = blamed()
    assert finding.source is not None
    assert finding.source.function.startswith("LlamaRotaryEmbedding.forward")
    assert "cos()" in finding.source.code
