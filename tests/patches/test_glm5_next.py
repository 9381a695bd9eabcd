"""GLM-5-Next's indexer: which keys a query sees, and what a query gets that sees none, against transformers."""

import pytest
import torch
from transformers import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextIndexer, Glm5NextTextModel

import tpuport
from tpuport import compat
from tpuport.patches import registry

CONFIG = Glm5NextTextConfig(
    vocab_size=96, hidden_size=32, num_hidden_layers=2, q_lora_rank=16, index_topk=8, index_head_dim=16,
    index_n_heads=2, index_kpool=4,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_the_selected_keys() -> None:
    """Of two pools among up to four, with a row that is padded on the left, and one on the right."""
    torch.manual_seed(4)
    indexer = Glm5NextTextIndexer(CONFIG, 1).eval()
    for parameter in indexer.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    rows, tokens = 3, 17
    mask = torch.ones(rows, tokens, dtype=torch.bool)
    mask[1, :6] = False
    mask[2, -6:] = False
    inputs = (torch.randn(rows, tokens, 32), torch.randn(rows, tokens, 16), mask, None)
    expected = indexer(*inputs)
    ported = tpuport.port(indexer)
    assert "glm5-next.indexer" in registry.applied()
    actual = compat.to_torch(compat.as_jax(tpuport.compile(ported)(*inputs)))
    assert torch.equal(actual.sort().values, expected.sort().values)
    assert (expected >= 0).sum(-1).max() < tokens, "the budget leaves keys out"


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.parametrize("attention", [pytest.param("sdpa", marks=pytest.mark.slow), "eager"])
def test_queries_of_padding(attention: str) -> None:
    """They see no key: zeros of torch's fused attention, and the mean of the values of the model's own."""
    torch.manual_seed(5)
    config = Glm5NextTextConfig(
        vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, layer_types=["indexed_attention"],
        mlp_layer_types=["dense"], indexer_types=["full"], num_attention_heads=2, num_key_value_heads=2,
        qk_nope_head_dim=16, qk_rope_head_dim=0, v_head_dim=16, q_lora_rank=16, kv_lora_rank=16, index_topk=8,
        index_head_dim=16, index_n_heads=2, index_kpool=4, pad_token_id=0, attn_implementation=attention,
    )  # fmt: skip
    model = Glm5NextTextModel(config).eval()
    inputs = {
        "input_ids": torch.arange(20).view(2, 10),
        "attention_mask": torch.ones(2, 10, dtype=torch.long),
    }
    inputs["attention_mask"][1, -3:] = 0
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
    ported = tpuport.port(model)
    assert "glm5-next.mask" in registry.applied()
    actual = compat.to_torch(compat.as_jax(tpuport.compile(ported)(**inputs).last_hidden_state))
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)
