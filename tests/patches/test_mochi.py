"""Mochi's attention with any mask, against diffusers' own processor."""

import pytest
import torch
from diffusers.models.attention_processor import MochiAttention, MochiAttnProcessor2_0
from hypothesis import given, settings
from hypothesis import strategies as st

import tpuport
from tpuport import attention
from tpuport.patches.mochi import attention_call

VIDEO, TEXT = 6, 5


def build(**changes):
    torch.manual_seed(0)
    options = {
        "query_dim": 16,
        "added_kv_proj_dim": 12,
        "heads": 2,
        "dim_head": 8,
        "out_dim": 16,
        "eps": 1e-5,
    }
    module = MochiAttention(**options | changes, processor=MochiAttnProcessor2_0())
    return module.eval().requires_grad_(False)


def call(mask, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (len(mask), VIDEO, 16), (len(mask), TEXT, 12), (VIDEO, 2, 4), (VIDEO, 2, 4)
    video, text, cos, sin = (torch.randn(shape, generator=generator) for shape in shapes)
    return {
        "hidden_states": video,
        "encoder_hidden_states": text,
        "attention_mask": mask,
        "image_rotary_emb": (cos, sin),
    }


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.booleans(), min_size=TEXT, max_size=TEXT), min_size=1, max_size=3), st.booleans())
def test_any_mask(rows, context_pre_only):
    module, arguments = build(context_pre_only=context_pre_only), call(torch.tensor(rows))
    expected = module(**arguments)
    got = attention_call(module.processor, module, **arguments)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_one_program_with_padding():
    tpuport.enable()
    try:
        attention.explain(clear=True)
        host, compiled = build(), tpuport.compile(tpuport.port(build()))
        for lengths in ((5, 2), (1, 0)):
            mask = torch.arange(TEXT) < torch.tensor(lengths)[:, None]
            for ours, theirs in zip(compiled(**call(mask)), host(**call(mask)), strict=True):
                torch.testing.assert_close(tpuport.to_cpu(ours), theirs, rtol=1e-4, atol=1e-5)
        assert compiled.program.compilations == 1
        assert [record.mask for record in attention.explain(clear=True)] == ["padding"]
    finally:
        tpuport.disable()


@pytest.mark.parametrize("norm", ["norm_q", "norm_added_k"])
def test_without_norms(norm):
    module, arguments = build(), call(torch.ones(1, TEXT))
    setattr(module, norm, None)
    expected = module(**arguments)
    got = attention_call(module.processor, module, **arguments)
    torch.testing.assert_close(got[0], expected[0], rtol=1e-5, atol=1e-6)
