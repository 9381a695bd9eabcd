"""Language models that nobody changed, one forward pass each under jit, against torch."""

import jax
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tpuport import compat

_SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_ONE_LAYER = {"num_hidden_layers": 1}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_MORE_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LAYERS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}

FAST = {
    "llama": _ONE_LAYER,
    "gpt_oss": {**_EXPERTS, **_LAYERS},
    "qwen3_moe": {**_ONE_LAYER, **_MORE_EXPERTS},
    "mamba": {**_ONE_LAYER, "state_size": 8},
}
# Also those whose layers a fast one has too.
SLOW = {
    "mistral": {"sliding_window": 4},
    "gemma3_text": _LAYERS,
    "gpt2": _GPT2,
    "qwen3": {},
    "phi3": {},
    "mixtral": _EXPERTS,
    "apertus": {},
    "bamba": {**_MAMBA2, "attn_layer_indices": [1]},
    "bloom": {"n_layer": 2, "n_head": 4},
    "cohere2": {"sliding_window": 4},
    "deepseek_v3": {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "q_lora_rank": 16,
        "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1,
        "moe_intermediate_size": 24, "n_shared_experts": 1, "num_key_value_heads": 4,
    },
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24},
    "falcon_h1": {**_MAMBA2, "mamba_d_ssm": 64},
    "gemma2": {"sliding_window": 4},
    "glm4_moe": {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "gpt_neox": {},
    "granitemoe": _EXPERTS,
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "num_experts": 2},
    "lfm2": {},
    "llama4_text": {"num_local_experts": 2, "intermediate_size_mlp": 48, "attention_chunk_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 8, "n_groups": 2, "chunk_size": 8, "expand": 2},
    "minimax": {**_EXPERTS, "block_size": 8},
    "nemotron": {},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "phimoe": _EXPERTS,
    "qwen3_next": {
        **_MORE_EXPERTS, "shared_expert_intermediate_size": 24, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
    },
    "recurrent_gemma": {"lru_width": 32, "attention_window_size": 8, "block_types": ["recurrent", "attention"]},
    "rwkv": {"attention_hidden_size": 32, "context_length": 64},
    "stablelm": {},
}  # fmt: skip


def build(name, options, dtype=torch.float32):
    """A random model, and a padded batch of three prompts."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **{**_SIZES, **options})
    model = AutoModelForCausalLM.from_config(config).eval().to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.1)
    tokens = torch.randint(3, 90, (3, 11))
    mask = torch.ones_like(tokens)
    mask[1, :4] = mask[2, :1] = 0
    return model, {"input_ids": tokens, "attention_mask": mask, "use_cache": False}


def ported_logits(model, inputs):
    arrays = {
        name: compat.to_jax(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    tensors = {
        name: compat.to_jax(value) for name, value in inputs.items() if isinstance(value, torch.Tensor)
    }

    @jax.jit
    def forward(arrays, tensors):
        with compat.environment(), torch.no_grad():
            keywords = {**inputs, **compat.as_torch(tensors)}
            return compat.as_jax(
                torch.func.functional_call(model, compat.as_torch(arrays), (), keywords).logits
            )

    return compat.to_torch(forward(arrays, tensors))


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_logits_are_those_of_torch(name):
    model, inputs = build(name, {**FAST, **SLOW}[name])
    with torch.no_grad():
        reference = model(**inputs).logits
    seen = inputs["attention_mask"].bool()
    torch.testing.assert_close(ported_logits(model, inputs)[seen], reference[seen], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3_text", "gpt2"))]
)
def test_bfloat16_is_as_near_to_float32_as_in_torch(name):
    model, inputs = build(name, {**FAST, **SLOW}[name], torch.bfloat16)
    with torch.no_grad():
        reference = model(**inputs).logits
        mine = ported_logits(model, inputs)
        exact = model.float()(**inputs).logits
    assert mine.dtype == torch.bfloat16
    seen = inputs["attention_mask"].bool()
    error, allowed = ((logits.float() - exact)[seen].abs().max() for logits in (mine, reference))
    assert error < 1.5 * allowed
