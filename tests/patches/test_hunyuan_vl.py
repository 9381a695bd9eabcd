"""The placeholders of HunYuan-VL's images, against transformers' own selection of them."""

from types import SimpleNamespace

import pytest
import torch
from transformers.models.hunyuan_vl.modeling_hunyuan_vl import HunYuanVLModel

import tpuport
from tpuport.patches import hunyuan_vl

MODEL: object = SimpleNamespace(config=SimpleNamespace(image_token_id=5))
IDS = torch.tensor([[1, 5, 5, 2], [5, 1, 2, 3]])
EMBEDS = torch.randn(2, 4, 6)
ORIGINAL = HunYuanVLModel.get_placeholder_mask


def test_placeholders_are_counted() -> None:
    features = torch.randn(3, 6)
    expected = ORIGINAL(MODEL, IDS, EMBEDS, features)  # type: ignore[arg-type]
    compiled = tpuport.compile(lambda *tensors: hunyuan_vl.placeholder_mask(ORIGINAL, MODEL, *tensors))
    assert torch.equal(tpuport.to_cpu(compiled(IDS, EMBEDS, features)), expected)


def test_features_of_another_number_of_placeholders_are_refused() -> None:
    with pytest.raises(ValueError, match="do not match"):
        hunyuan_vl.placeholder_mask(ORIGINAL, MODEL, IDS, EMBEDS, torch.randn(4, 6))
