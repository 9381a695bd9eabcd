"""Qwen4-Exp's indexer: which keys a query sees, and what the model generates, against transformers on the CPU."""

from typing import Any

import pytest
import torch
from transformers import Qwen4ExpForCausalLM, Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextQSAIndexer

import tpuport
from tpuport import compat
from tpuport.patches import registry

CONFIG = Qwen4ExpTextConfig(
    vocab_size=96, hidden_size=32, num_hidden_layers=2, layer_types=["linear_attention", "indexed_attention"],
    num_attention_heads=2, num_key_value_heads=1, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=2,
    linear_key_head_dim=8, linear_value_head_dim=8, moe_intermediate_size=16, shared_expert_intermediate_size=16,
    num_experts=4, num_experts_per_tok=2, indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=16,
    indexer_budget=4, indexer_compress_ratio=2, ple_layer_ids=[], max_position_embeddings=128, pad_token_id=0,
    eos_token_id=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    """A model in torch and the same one ported."""
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        model = Qwen4ExpForCausalLM(CONFIG).eval()
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "A_log" not in name:
                parameter.data += 0.2 * torch.randn(parameter.shape)
        models.append(model)
    return models[0], tpuport.port(models[1])


def test_the_selected_keys() -> None:
    """Of two blocks among up to eight, with a padded row and a mask of another form, in one program."""
    torch.manual_seed(4)
    indexer = Qwen4ExpTextQSAIndexer(CONFIG, 1).eval()
    rows, tokens, width = 2, 17, 8
    angles = torch.rand(rows, tokens, width // 2).repeat(1, 1, 2)
    visible = torch.ones(tokens, tokens, dtype=torch.bool).tril().repeat(rows, 1, 1, 1)
    visible[1, ..., :5] = False
    visible[0, :, 8:, 2:5] = False  # queries that see other blocks than those before them
    hidden = torch.randn(rows, tokens, CONFIG.hidden_size)
    inputs = (hidden, (angles.cos(), angles.sin()), visible, None)
    expected = indexer(*inputs)
    ported = tpuport.port(indexer)
    assert "qwen4-exp.indexer" in registry.applied()
    actual = tpuport.compile(ported)(*inputs)
    assert torch.equal(compat.to_torch(compat.as_jax(actual)), expected)
    assert not torch.equal(expected & visible, visible), "the budget leaves keys out"


@pytest.mark.slow  # its relative is the test above
def test_forward_and_generate(pair: tuple[Any, Any]) -> None:
    reference, ported = pair
    ids = torch.randint(2, 96, (2, 19), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    expected = reference(ids, attention_mask=mask).logits
    actual = tpuport.compile(ported)(ids, attention_mask=mask).logits
    torch.testing.assert_close(compat.to_torch(compat.as_jax(actual)), expected, rtol=1e-4, atol=1e-4)
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": [], "pad_token_id": 0}
    tokens = reference.generate(ids, attention_mask=mask, **options)
    assert torch.equal(ported.generate(ids, attention_mask=mask, **options), tokens)
    assert len(set(tokens[:, 19:].flatten().tolist())) > 4, "a constant output would prove little"
