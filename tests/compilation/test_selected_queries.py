"""OneFormer's decoder layer, which writes to a mask where it is full, beside transformers on the CPU."""

import copy

import pytest
import torch
from transformers import OneFormerConfig
from transformers.models.oneformer.modeling_oneformer import OneFormerTransformerDecoderLayer

import tpuport


@pytest.mark.parametrize("output_attentions", [True, False])
def test_a_query_that_sees_no_pixel_sees_all(output_attentions: bool) -> None:
    torch.manual_seed(0)
    config = OneFormerConfig(
        backbone_config={"model_type": "swin"}, hidden_dim=32, num_attention_heads=4, dim_feedforward=48,
        num_feature_levels=3,
    )  # fmt: skip
    reference = OneFormerTransformerDecoderLayer(config).eval()
    queries, pixels = torch.randn(5, 2, 32), torch.randn(9, 2, 32)
    positions = torch.randn(9, 2, 32)
    hidden = torch.rand(2 * 4, 5, 9) < 0.5
    hidden[0, 2] = hidden[3] = True

    def arguments(mask: torch.Tensor) -> tuple:
        # The second call is of the second level.
        return 1, queries, [pixels, -pixels, pixels], [positions] * 3, mask, torch.ones(5, 2, 32)

    # It writes to its mask.
    masks = [hidden, torch.zeros_like(hidden), torch.ones_like(hidden)]
    expected = [reference(*arguments(mask.clone()), output_attentions=output_attentions) for mask in masks]
    compiled = tpuport.compile(tpuport.port(copy.deepcopy(reference)))
    for mask, results in zip(masks, expected, strict=True):
        actual = compiled(*arguments(mask), output_attentions=output_attentions)
        assert len(actual) == len(results)
        for ours, theirs in zip(actual, results, strict=True):
            torch.testing.assert_close(tpuport.to_cpu(ours), theirs.detach(), rtol=1e-4, atol=1e-5)
    assert compiled.program.compilations == 1
