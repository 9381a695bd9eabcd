"""Small random models of the families that generation is promised for."""

from collections.abc import Callable

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MarianConfig,
    MegatronBertConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen3Config,
)

import tpuport

_SIZES = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_SLIDING = ["sliding_attention", "full_attention"]
CONFIGS: dict[str, PretrainedConfig] = {
    # Of the tests that are not about the family: one layer, as each of them compiles it.
    "llama": LlamaConfig(**_SIZES | {"num_hidden_layers": 1}),
    "mistral": MistralConfig(**_SIZES | {"num_hidden_layers": 1}, sliding_window=8),
    "qwen3": Qwen3Config(**_SIZES, head_dim=8),
    "gemma3": Gemma3TextConfig(**_SIZES, head_dim=8, sliding_window=8, layer_types=_SLIDING, query_pre_attn_scalar=8),
    "phi3": Phi3Config(**_SIZES),
    "gpt2": GPT2Config(
        vocab_size=128, n_embd=32, n_layer=2, n_head=4, n_positions=256, pad_token_id=0, bos_token_id=1, eos_token_id=2
    ),
    "gpt_oss": GptOssConfig(
        **_SIZES, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=8, layer_types=_SLIDING,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    "marian": MarianConfig(
        vocab_size=128, d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=64, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, max_position_embeddings=256, is_encoder_decoder=False,
    ),
    "megatron_bert": MegatronBertConfig(**_SIZES, is_decoder=False),
    "mixtral": MixtralConfig(**_SIZES, num_local_experts=4, num_experts_per_tok=2),
}  # fmt: skip

Pair = tuple[torch.nn.Module, torch.nn.Module]


def _weights(model: torch.nn.Module) -> None:
    """Weights large enough that greedy decoding has clear winners, and every parameter (sinks, biases) takes part."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        # GPT-2's table is its head too: were it as large as the layers, each token would call for itself.
        scale = 0.02 if "wte" in name else 0.2 if parameter.ndim > 1 else 0.1
        offset = 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0  # norms
        parameter.data = offset + scale * torch.randn(parameter.shape, generator=generator)


@pytest.fixture(scope="session")
def configs() -> dict[str, PretrainedConfig]:
    """The configs by family name."""
    return CONFIGS


@pytest.fixture(scope="session")
def make_pair() -> Callable[..., Pair]:
    """A torch model on the host and the same model ported, by family name; `mesh` and `dtype` as in tpuport.port."""

    def make(family: str, mesh: object = None, dtype: torch.dtype | None = None) -> Pair:
        models = []
        for _ in range(2):
            model = AutoModelForCausalLM.from_config(CONFIGS[family]).eval()
            _weights(model)
            model.tie_weights()
            models.append(model)
        if dtype is not None:
            models[0].to(dtype)
        return models[0], tpuport.port(models[1], mesh=mesh, dtype=dtype)

    return make


@pytest.fixture(scope="session")
def llama(make_pair: Callable[..., Pair]) -> Pair:
    """One Llama pair for the tests that are not about the family."""
    return make_pair("llama")


@pytest.fixture
def prompts() -> tuple[torch.Tensor, torch.Tensor]:
    """Three prompts of 20, 13 and 7 tokens, padded on the left: ids and mask [3, 20]."""
    ids = torch.randint(3, 128, (3, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 7, 13)):
        mask[row, :padding] = 0
        ids[row, :padding] = 0
    return ids, mask
