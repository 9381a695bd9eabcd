"""Positions of Reformer, which cuts a table to the largest of them, beside transformers on the CPU."""

import copy

import pytest
import torch
from transformers import ReformerConfig, ReformerModel

import tpuport

CONFIG = ReformerConfig(
    vocab_size=64, hidden_size=16, axial_pos_shape=(4, 8), axial_pos_embds_dim=(4, 12), num_attention_heads=2,
    attention_head_size=8, feed_forward_size=16, attn_layers=["local", "lsh"], num_hashes=1, num_buckets=2,
    lsh_attn_chunk_length=8, local_attn_chunk_length=8, is_decoder=False, hash_seed=0,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
def test_positions_of_a_part_of_the_table_and_of_all_of_it() -> None:
    torch.manual_seed(5)
    model = ReformerModel(CONFIG).eval()
    for weight in model.embeddings.position_embeddings.weights:  # type: ignore[union-attr]
        weight.data.normal_()
    compiled = tpuport.compile(tpuport.port(copy.deepcopy(model.embeddings)))
    for length in (9, 32):
        ids = torch.randint(64, (2, length))
        with torch.no_grad():
            expected = model.embeddings(ids)
        torch.testing.assert_close(compiled(ids).cpu(), expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match="axial_pos_shape factors"):
        compiled(torch.zeros(2, 33, dtype=torch.long))
