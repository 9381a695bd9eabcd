"""The text encoders of HunyuanVideo-1.5 as its pipelines call them, against torch in every valid token."""

import pytest
import torch
from transformers import Qwen2_5_VLTextConfig, T5Config, T5EncoderModel
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

import tpuport

TOKENS = 9
MASK = (torch.arange(TOKENS) < torch.tensor([[TOKENS], [5]])).long()


def qwen():
    torch.manual_seed(0)
    config = Qwen2_5_VLTextConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, bos_token_id=None, eos_token_id=None,
        rope_parameters={"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4},
    )  # fmt: skip
    return Qwen2_5_VLTextModel(config).eval().requires_grad_(False)


def byt5():
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"
    )
    return T5EncoderModel(config).eval().requires_grad_(False)


@pytest.fixture(autouse=True)
def enabled():
    tpuport.enable()
    yield
    tpuport.disable()


def agree(build, mask, **options):
    """Every floating output, of two batches of prompts through one program."""
    model = build()
    compiled = tpuport.compile(tpuport.port(build()))
    for seed in range(2):
        ids = torch.randint(0, 50, (2, TOKENS), generator=torch.Generator().manual_seed(seed))
        theirs = model(input_ids=ids, attention_mask=mask, **options)
        ours = compiled(input_ids=ids, attention_mask=mask, **options)
        assert type(ours) is type(theirs)
        pairs = [(ours.last_hidden_state, theirs.last_hidden_state)]
        if options:
            assert len(ours.hidden_states) == len(theirs.hidden_states)
            pairs += zip(ours.hidden_states, theirs.hidden_states, strict=True)
        for got, expected in pairs:
            got, expected = tpuport.to_cpu(got)[mask.bool()], expected[mask.bool()]
            assert (got - expected).abs().max() < 1e-5 * expected.abs().max()
    assert compiled.program.compilations == 1


def test_hidden_states_of_the_language_model():
    agree(qwen, MASK, output_hidden_states=True)


def test_glyphs_with_a_mask_of_numbers():
    agree(byt5, MASK.float())
