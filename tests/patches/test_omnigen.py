"""OmniGen's rotary table for short and long prompts, against diffusers' own code."""

import pytest
import torch
from diffusers.models.transformers.transformer_omnigen import OmniGenSuScaledRotaryEmbedding

import tpuport
from benchmarks import tiny_diffusers
from tpuport.patches.omnigen import rotary_forward

FACTORS = {"long_factor": [2.0, 3.0, 4.0, 5.0], "short_factor": [1.0, 1.1, 1.2, 1.3]}


@pytest.mark.parametrize("longest", [128, 16])
@pytest.mark.parametrize("first", [0, 9])
def test_table(longest, first):
    embedding = OmniGenSuScaledRotaryEmbedding(8, longest, 16, rope_scaling=FACTORS)
    positions = torch.arange(first, first + 8).expand(2, 8)  # up to 16, from where factors are the long ones
    expected = embedding(torch.zeros(2, 8, 8), positions)
    for ours, theirs in zip(
        rotary_forward(embedding, torch.zeros(2, 8, 8), positions), expected, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_model():
    torch.manual_seed(0)
    model, (inputs, *_) = tiny_diffusers.build("OmniGenTransformer2DModel")
    with torch.no_grad():
        expected = model(**inputs).sample
    tpuport.enable()
    try:
        compiled = tpuport.compile(tpuport.port(model))
        torch.testing.assert_close(tpuport.to_cpu(compiled(**inputs).sample), expected, rtol=1e-3, atol=1e-4)
    finally:
        tpuport.disable()
