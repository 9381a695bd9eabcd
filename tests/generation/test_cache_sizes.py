"""Cache sizes by the formula, and as the programs make them."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    FalconConfig,
    Gemma3nTextConfig,
    LlamaConfig,
    MambaConfig,
    PretrainedConfig,
)

import tpuport
from tpuport import PortError
from tpuport.generation import decoder_for, sampling
from tpuport.generation.decoding_cache import _sizes
from tpuport.generation.generation_options import read_options
from tpuport.generation.prompts import Prompt, pad_prompts

_LATENT = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "moe_intermediate_size": 16, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "topk_group": 1, "max_position_embeddings": 256,
}  # fmt: skip
_FALCON = {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
OTHERS: dict[str, PretrainedConfig] = {
    "falcon, one head": FalconConfig(**_FALCON),
    "falcon, few heads": FalconConfig(**_FALCON, new_decoder_architecture=True, num_kv_heads=2),
    "gemma3n, shared": Gemma3nTextConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, sliding_window=8, num_kv_shared_layers=2, hidden_size_per_layer_input=8,
        layer_types=["sliding_attention", "full_attention"] * 2, vocab_size_per_layer_input=128, laurel_rank=4,
        activation_sparsity_pattern=[0.0] * 4, altup_num_inputs=2, pad_token_id=0,
    ),
    "deepseek_v2": DeepseekV2Config(**_LATENT, n_group=1),
    "deepseek_v3": DeepseekV3Config(**_LATENT, n_group=2),
}  # fmt: skip


def test_seven_billion_at_4096_is_the_known_two_gigabytes() -> None:
    """Llama-2-7B, fp16, 4096 positions: 2 GiB; with 8 KV heads a quarter of it."""
    config = LlamaConfig(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32)
    assert tpuport.kv_cache_bytes(config, 1, 4096, torch.float16) == 2 * 1024**3
    config = LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8
    )
    assert tpuport.kv_cache_bytes(config, 1, 4096, torch.float16) == 1024**3 // 2


def _prompt_cache_bytes(
    model: Any, ids: np.ndarray, mask: np.ndarray, slots: int, kv_cache: str | None
) -> int:
    """Bytes of the arrays that the prompt's program makes; it is traced and not compiled."""
    decoder = decoder_for(model).with_kv_cache(kv_cache)
    options = read_options(model, None, {"max_new_tokens": 8}, ids.shape[1])
    prompts = pad_prompts(Prompt(ids.astype(np.int32), mask.astype(bool)), options, seed=0, row_multiple=1)
    state = jax.eval_shape(
        functools.partial(decoder.run_prompt, slots=slots),
        decoder.arrays, prompts.tokens, prompts.mask, prompts.keys, np.int32(prompts.tokens.shape[1]),
        np.int32(len(ids)), sampling.sampling_settings(options),
    )  # fmt: skip
    layers = [layer for layer in state.cache.layers if layer.keys is not None]
    arrays = [array for layer in layers for array in layer.arrays().values()]
    return sum(array.size * array.dtype.itemsize for array in arrays)


# The caches of Llama, Gemma 3n, DeepSeek-V2 and Falcon with one head have the same layers.
SLOW_FAMILIES = ("mixtral", "mistral", "gpt2", "gemma3", "deepseek_v3", "falcon, few heads")
# Of the others, int8 changes the bytes of a head in the same way.
INT8_FAMILIES = ("llama", "deepseek_v2")
CASES = [
    pytest.param(family, kv_cache, marks=[] if is_quick else pytest.mark.slow)
    for family in ("llama", "mistral", "gemma3", "gpt2", "mixtral", *OTHERS)
    for kv_cache, is_quick in ((None, family not in SLOW_FAMILIES), ("int8", family in INT8_FAMILIES))
]


@pytest.mark.parametrize(("family", "kv_cache"), CASES)
def test_the_formula_gives_what_is_allocated(
    family: str, kv_cache: str | None, configs: dict, prompts: tuple
) -> None:
    config = (configs | OTHERS)[family]
    model = tpuport.port(AutoModelForCausalLM.from_config(config).eval())
    ids, mask = (tensor.numpy() for tensor in prompts)
    nbytes = _prompt_cache_bytes(model, ids, mask, 64, kv_cache)
    assert nbytes == tpuport.kv_cache_bytes(config, len(ids), 64, torch.float32, kv_cache=kv_cache) > 0


def test_a_model_is_asked_once() -> None:
    config = LlamaConfig(**_FALCON | {"num_hidden_layers": 5, "num_key_value_heads": 2})
    before = len(_sizes)
    sizes = {tpuport.kv_cache_bytes(config, 1, n, torch.bfloat16) // n for n in (32, 64, 128)}
    assert sizes == {5 * 2 * 2 * 8 * 2}
    assert len(_sizes) == before + 1


@pytest.mark.parametrize(("batch", "length"), [(-1, 64), (0, 64), (1, 0), (True, 64)])
def test_rows_and_positions_are_counted(batch: int, length: int) -> None:
    with pytest.raises(PortError, match="batch" if length else "length"):
        tpuport.kv_cache_bytes(LlamaConfig(), batch, length, torch.float32)


def test_a_model_with_another_cache_is_refused() -> None:
    with pytest.raises(PortError, match="cache"):
        tpuport.kv_cache_bytes(MambaConfig(num_hidden_layers=1), 1, 64, torch.float32)
