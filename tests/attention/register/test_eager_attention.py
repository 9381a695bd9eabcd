"""A model's own attention: found, recorded, and warned about if its scores are large."""

import logging

import pytest
import torch
from transformers.models.llama4 import modeling_llama4
from transformers.models.timesfm import modeling_timesfm

from tpuport import attention
from tpuport.attention.register import eager_attention


@pytest.mark.parametrize(
    ("owner", "function"),
    [
        (modeling_llama4.Llama4TextAttention, modeling_llama4.eager_attention_forward),
        (modeling_llama4.Llama4VisionAttention, modeling_llama4.vision_eager_attention_forward),
        (modeling_timesfm.TimesFmAttention, modeling_timesfm.simple_eager_attention_forward),
        (type("Derived", (modeling_llama4.Llama4VisionAttention,), {}), modeling_llama4.vision_eager_attention_forward),
        (torch.nn.MultiheadAttention, None),
        (torch.nn.Module, None),
    ],
)  # fmt: skip
def test_finds_the_function_that_the_forward_passes_on(owner: type, function: object) -> None:
    assert eager_attention.find_eager_attention(owner.__new__(owner)) is function


def test_large_scores_are_warned_about_once_a_class(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(eager_attention, "_warned", set())
    module = torch.nn.Identity()
    small, large = torch.empty(1, 2, 8, 4), torch.empty(1, 2, 4096, 4)
    attention.explain(clear=True)
    with caplog.at_level(logging.WARNING, "tpuport"):
        eager_attention.record_eager_call(module, small, small, small, "weights")
        assert not caplog.messages
        for _ in range(2):
            eager_attention.record_eager_call(module, large, large, large, "weights")
    (message,) = caplog.messages
    assert "Identity" in message
    assert "128 MiB" in message
    calls = attention.explain(clear=True)
    assert [(call.implementation, call.query) for call in calls] == [
        ("eager", (1, 2, 8, 4)),
        ("eager", (1, 2, 4096, 4)),
    ]
