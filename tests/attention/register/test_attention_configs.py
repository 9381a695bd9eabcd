"""Which parts of a model of transformers attend through tpuport: those that can choose, and have chosen."""

import pytest
import torch
import transformers
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers import masking_utils as masks

import tpuport
from tpuport import attention, compat
from tpuport.attention.register.transformers_interface import NAME


def test_use_is_undone_at_the_end_of_the_block() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes))
    before = model.config._attn_implementation
    with attention.use_in_model(model):
        assert model.config._attn_implementation == NAME
    assert model.config._attn_implementation == before


class FixedAttention(transformers.PreTrainedModel):
    """A model whose attention cannot be chosen, around others: `inner`'s can, `shared`'s has the outer config."""

    config_class = LlamaConfig

    def __init__(self, config: LlamaConfig, inner: LlamaConfig) -> None:
        super().__init__(config)
        self.inner, self.shared = LlamaModel(inner), LlamaModel(config)
        self.post_init()

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return False


def test_a_model_inside_of_another_chooses_for_itself() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = FixedAttention(LlamaConfig(vocab_size=32, **sizes), LlamaConfig(vocab_size=32, **sizes))
    names = [part.config._attn_implementation for part in (model, model.inner, model.shared)]
    with attention.use_in_model(model):
        assert model.inner.config._attn_implementation == NAME
        assert [model.config._attn_implementation, model.shared.config._attn_implementation] == names[::2]
    assert [part.config._attn_implementation for part in (model, model.inner, model.shared)] == names


class ConcatenatesMasks(transformers.PreTrainedModel):
    """Attention that torch's fused one cannot compute: every query also sees a key that is not in the mask."""

    config_class = LlamaConfig
    _supports_sdpa = False
    _supports_attention_backend = True

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.query = torch.nn.Linear(16, 16)
        self.is_causal = True
        self.post_init()

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        mask = masks.create_causal_mask(self.config, x, attention_mask, None)
        # The bias of one more key, as a number that is added to its score.
        more = torch.full((x.shape[0], 1, x.shape[1], 1), -0.5)
        mask = torch.cat([mask, more.to(mask)], dim=-1)
        keys = torch.cat([x, x[:, :1]], dim=1)[:, None]
        function = AttentionInterface().get_interface(self.config._attn_implementation, eager_attention)
        out, _ = function(self, self.query(x)[:, None], keys, keys, mask, scaling=0.25)
        return out.reshape(x.shape)


def eager_attention(module, query, key, value, mask, scaling, **_):
    weights = torch.softmax(query @ key.transpose(-1, -2) * scaling + mask, dim=-1)
    return (weights @ value).transpose(1, 2), weights


@pytest.mark.parametrize("padded", [False, True])
def test_a_model_without_fused_attention_computes_with_numbers_in_its_mask(padded: bool) -> None:
    config = LlamaConfig(hidden_size=16, num_attention_heads=1, num_hidden_layers=1, vocab_size=8)
    model = ConcatenatesMasks(config).eval()
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 5, [0, 0, 1, 1, 1]]) if padded else None
    with torch.no_grad():
        expected = model(x, mask)
    got = tpuport.to_cpu(tpuport.compile(tpuport.port(model))(x, mask))
    tokens = torch.ones(2, 5, dtype=torch.bool) if mask is None else mask.bool()
    torch.testing.assert_close(got[tokens], expected[tokens], atol=1e-6, rtol=0)


def test_a_part_for_which_transformers_chose_no_attention_keeps_its_own():
    """It makes no mask for such a part, as for Fun-ASR-Nano's projector, so that padding counts there in torch too."""
    config = transformers.FunAsrNanoConfig(
        audio_config={
            "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1,
            "num_timestamp_prediction_layers": 1, "num_mel_bins": 4, "num_stacked_frames": 2,
        },
        adaptor_config={
            "hidden_size": 32, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1,
            "projector_hidden_size": 32,
        },
        text_config={
            "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2,
            "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 64,
        },
    )  # fmt: skip
    model = transformers.FunAsrNanoModel(config).eval()
    projector = model.multi_modal_projector
    assert projector.config._attn_implementation is None
    features, mask = torch.randn(2, 6, 32), torch.ones(2, 6, dtype=torch.long)
    mask[1, 4:] = 0
    with torch.no_grad():
        expected = projector(features, mask)
    tpuport.port(model)
    with attention.use_in_model(model):
        actual = projector(features.to("jax"), mask.to("jax"))
    torch.testing.assert_close(compat.to_torch(compat.as_jax(actual)), expected, atol=2e-6, rtol=1e-5)
