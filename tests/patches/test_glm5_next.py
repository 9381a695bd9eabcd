"""GLM-5-Next's indexer: which keys a query sees, against transformers on the CPU."""

import pytest
import torch
from transformers import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextIndexer

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
