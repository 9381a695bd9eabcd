"""Two processes with four devices each load a checkpoint and generate what one process generates."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import tpuport

GENERATE = """
import numpy as np, torch
from transformers import AutoModelForCausalLM

def generate(model, **options):
    tokens = tpuport.generate(model, torch.from_numpy(prompts["ids"]), torch.from_numpy(prompts["mask"]), **options)
    return tokens.tolist()

class Impatient:
    "Ends the first row when the first process has lost its patience; the second never does."
    def __call__(self, input_ids, scores):
        stop = torch.zeros(len(input_ids), dtype=torch.bool)
        stop[0] = meeting[2] == 0 and input_ids.shape[1] >= 14
        return stop

model = tpuport.load(AutoModelForCausalLM, arguments[0], mesh=tpuport.create_mesh(dp=2, tp=4))
prompts = np.load(arguments[1])
answer({
    "greedy": generate(model, max_new_tokens=20),
    "sampled": generate(model, max_new_tokens=20, do_sample=True, temperature=0.8, seed=3),
    "stopped": generate(model, max_new_tokens=20, stopping_criteria=[Impatient()]),
})
"""
NEW = 20


@pytest.fixture
def saved(tmp_path: Path) -> torch.nn.Module:
    """A random Llama with clear winners, saved in tmp_path / "llama"."""
    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(tmp_path / "llama")
    return model


@pytest.mark.slow
def test_a_llama_says_the_same(run_two: Callable, saved: torch.nn.Module, tmp_path: Path) -> None:
    ids = torch.randint(3, 128, (3, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :4] = mask[2, :8] = ids[1, :4] = ids[2, :8] = 0
    np.savez(tmp_path / "prompts.npz", ids=ids.numpy(), mask=mask.numpy())
    expected = saved.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False)
    alone = tpuport.load(AutoModelForCausalLM, tmp_path / "llama")
    assert torch.equal(tpuport.generate(alone, ids, mask, max_new_tokens=NEW), expected)
    samples = tpuport.generate(alone, ids, mask, max_new_tokens=NEW, do_sample=True, temperature=0.8, seed=3)
    assert not torch.equal(samples, expected)
    assert expected.shape[1] == 11 + NEW
    assert len(set(expected[:, 11:].flatten().tolist())) > 5, "a constant output would prove little"
    stopped = expected.clone()
    stopped[0, 14:] = 0
    for answer in run_two(GENERATE, tmp_path / "llama", tmp_path / "prompts.npz", timeout=300):
        assert answer["greedy"] == expected.tolist()
        assert answer["sampled"] == samples.tolist()
        assert answer["stopped"] == stopped.tolist()
