"""Tiny quantised checkpoints."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from tpuport import checkpoint, compat

IDS = torch.arange(18).reshape(2, 9) % 64


@pytest.fixture(scope="session")
def llama():
    """A random model, whose linear layers have 64, 128 or 32 outputs."""
    from transformers import LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        dtype="float32",
    )
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="session")
def linear_layers():
    """A function from a model to the names and modules of its linear layers, but not of the head."""

    def find(model):
        return [
            (name, module)
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and name != "lm_head"
        ]

    return find


@pytest.fixture
def write_checkpoint(tmp_path, llama):
    """A function from tensors and a `quantization_config` to a directory with these."""

    def write(tensors, quantization, metadata=None):
        directory = tmp_path / "checkpoint"
        directory.mkdir(exist_ok=True)
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            directory / "model.safetensors",
            metadata,
        )
        config = llama.config.to_dict() | {"quantization_config": quantization}
        (directory / "config.json").write_text(json.dumps(config))
        return directory

    return write


@pytest.fixture
def assert_logits(assert_described):
    """A function that loads a checkpoint and compares its logits with those of a model of torch."""

    def check(directory, expected, **options):
        model = checkpoint.load(AutoModelForCausalLM, directory, **options)
        with torch.no_grad():
            reference = expected(IDS).logits
        logits = compat.to_torch(compat.as_jax(compat_call(model)))
        torch.testing.assert_close(logits, reference, rtol=1e-5, atol=1e-5)
        assert_described(directory, model)
        return model

    def compat_call(model):
        from tpuport import compile

        return compile(model)(IDS, use_cache=False).logits

    return check
