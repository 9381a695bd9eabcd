"""Tiny random checkpoints, and a comparison of loaded models with torch's."""

import numpy as np
import pytest
import torch
from jax.sharding import AxisType, Mesh

from tpuport.quantization import quantized_weights
from tpuport.topology.targets import resolve

COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def _config(family):
    import transformers as hf

    layers = ["sliding_attention", "full_attention"]
    makers = {
        "llama": lambda: hf.LlamaConfig(**COMMON),
        "llama-tied": lambda: hf.LlamaConfig(**COMMON, tie_word_embeddings=True),
        "mistral": lambda: hf.MistralConfig(**COMMON, sliding_window=4),
        "qwen3": lambda: hf.Qwen3Config(**COMMON),
        "gemma3": lambda: hf.Gemma3TextConfig(**COMMON, sliding_window=4, layer_types=layers),
        "phi3": lambda: hf.Phi3Config(**{k: v for k, v in COMMON.items() if k != "head_dim"}, pad_token_id=0),
        "gpt2": lambda: hf.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64),
        "gpt-oss": lambda: hf.GptOssConfig(**COMMON, **EXPERTS),
        "mixtral": lambda: hf.MixtralConfig(**COMMON, **EXPERTS),
    }
    return makers[family]()


FAMILIES = ["llama", "llama-tied", "mistral", "qwen3", "gemma3", "phi3", "gpt2", "gpt-oss", "mixtral"]


# Their parameters are named, shaped and sharded as those of Llama.
LIKE_LLAMA = ("mistral", "qwen3", "gemma3")


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] if name in LIKE_LLAMA else []) for name in FAMILIES]
)
def family(request):
    return request.param


@pytest.fixture(scope="session")
def tiny_model():
    """A function from a family's name to a new random model of it; seeds give different weights."""
    from transformers import AutoModelForCausalLM

    def build(name="llama", seed=0, **overrides):
        torch.manual_seed(seed)
        config = _config(name)
        for field, value in overrides.items():
            setattr(config, field, value)
        return AutoModelForCausalLM.from_config(config).eval()

    return build


@pytest.fixture
def saved(tmp_path, tiny_model):
    """A function from a family's name to (the model, the directory that it was saved in)."""

    def save(name="llama", max_shard_size="1GB", **overrides):
        model = tiny_model(name, **overrides)
        directory = tmp_path / name
        model.save_pretrained(directory, max_shard_size=max_shard_size)
        return model, directory

    return save


@pytest.fixture(scope="session")
def mesh_of_size():
    """A function from axis sizes to a mesh of the first virtual devices."""
    import jax

    def build(dp=1, sp=1, tp=1):
        devices = np.array(jax.devices()[: dp * sp * tp]).reshape(dp, sp, tp)
        return Mesh(devices, ("dp", "sp", "tp"), axis_types=(AxisType.Auto,) * 3)

    return build


@pytest.fixture(scope="session")
def assert_same():
    """A function that compares a ported model's tensors with a torch model's, bit for bit."""
    from tpuport import compat

    def check(ported, reference):
        pairs = [
            (dict(ported.state_dict()), dict(reference.state_dict())),
            (dict(ported.named_buffers()), dict(reference.named_buffers())),
        ]
        for ours, theirs in pairs:
            assert list(ours) == list(theirs)
            for name, expected in theirs.items():
                assert compat.is_ported(ours[name]), name
                actual = compat.to_torch(compat.as_jax(ours[name]))
                assert actual.dtype == expected.dtype, name
                assert torch.equal(actual, expected), name

    return check


@pytest.fixture(scope="session")
def logits():
    """A function from a model, ported or not, to its logits for fixed tokens, as a torch tensor."""
    from tpuport import compat, compile

    tokens = torch.arange(12).reshape(2, 6)

    def run(model):
        if not compat.is_ported(next(model.parameters())):
            with torch.no_grad():
                return model(tokens).logits
        # Compiled, because operation by operation a model takes ten times as long.
        return compat.to_torch(compat.as_jax(compile(model)(tokens, use_cache=False).logits))

    return run


def describe_parts(model):
    """The shapes and dtypes of everything that quantised weights consist of, and how it is to be read."""
    return {
        name: (
            {part: (tuple(tensor.shape), weight.part_dtypes[part]) for part, tensor in weight.parts.items()},
            weight.output_block,
            weight.transposed,
            weight.levels and len(weight.levels),
        )
        for name, _, _, weight in quantized_weights(model)
    }


@pytest.fixture
def assert_described():
    """A function that compares a loaded model with what `tpuport compile` builds from its config alone."""

    def check(directory, model):
        [target] = resolve(str(directory), task="forward", dtype="float32")
        expected = describe_parts(model)
        assert expected
        assert describe_parts(target.build()) == expected

    return check
