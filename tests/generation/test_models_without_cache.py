"""Models that the loop runs without a cache, or that return none: the tokens of transformers on the CPU."""

import logging
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    BigBirdConfig,
    BigBirdForCausalLM,
    CpmAntConfig,
    CpmAntForCausalLM,
    FlaubertConfig,
    FlaubertWithLMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MptConfig,
    MptForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    ProphetNetConfig,
    ProphetNetForCausalLM,
    XLMConfig,
    XLMWithLMHeadModel,
    XLNetConfig,
    XLNetLMHeadModel,
)

import tpuport
from tpuport.errors import PortError
from tpuport.generation import decoder_for

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")

OPTIONS: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": [], "pad_token_id": 0}
GPT = OpenAIGPTConfig(vocab_size=96, n_positions=64, n_embd=16, n_layer=1, n_head=2)
LLAMA = LlamaConfig(
    vocab_size=96, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1,
)  # fmt: skip
SMALL_BERT = BertConfig(
    vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32
)
_XLM_SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "emb_dim": 16,
    "n_layers": 1,
    "n_heads": 2,
    "max_position_embeddings": 64,
}
XLM, FLAUBERT = XLMConfig(**_XLM_SIZES), FlaubertConfig(**_XLM_SIZES)
SMALL_MPT = MptConfig(vocab_size=96, d_model=16, n_layers=1, n_heads=2, max_seq_len=64)


def make_pair(model_class: type, config: Any) -> tuple[Any, Any]:
    """A model in torch and the same one ported."""
    models = []
    for _ in range(2):
        torch.manual_seed(5)
        model = model_class(config).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data += 0.2 * torch.randn(parameter.shape)
        models.append(model)
    return models[0], tpuport.port(models[1])


def compare(model_class: type, config: Any, prompts: tuple) -> Any:
    """Generate for a padded batch as transformers does; the ported model."""
    reference, ported = make_pair(model_class, config)
    ids, mask = prompts[0] % 96, prompts[1]
    expected = reference.generate(ids, attention_mask=mask, **OPTIONS)
    assert torch.equal(tpuport.generate(ported, ids, mask, **OPTIONS), expected)
    assert len(set(expected[:, 20:].flatten().tolist())) > 4, "a constant output would prove little"
    return ported


def test_a_model_that_takes_no_cache(prompts: tuple, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tpuport"):
        ported = compare(OpenAIGPTLMHeadModel, GPT, prompts)
    assert "OpenAIGPTLMHeadModel without a cache" in caplog.text
    assert decoder_for(ported).uses_buckets, "its positions come from the mask"


@pytest.mark.slow  # the model that takes no cache above has the same loop
def test_a_model_whose_cached_call_cannot_be_traced(prompts: tuple, caplog: pytest.LogCaptureFixture) -> None:
    """MPT takes a size from the length of its cache."""
    with caplog.at_level(logging.WARNING, "tpuport"):
        ported = compare(MptForCausalLM, SMALL_MPT, prompts)
        tpuport.generate(ported, prompts[0][:1] % 96, **OPTIONS)
    assert caplog.text.count("without a cache") == 1, "it is found out once"


@pytest.mark.slow  # the model that takes no cache above
def test_an_encoder_that_writes_to_its_cache_and_returns_none(prompts: tuple) -> None:
    compare(BertLMHeadModel, SMALL_BERT, prompts)


def test_a_model_that_sees_columns_to_come_is_refused() -> None:
    class Mean(OpenAIGPTLMHeadModel):
        def forward(self, input_ids: Any = None, attention_mask: Any = None, **inputs: Any) -> Any:
            output = super().forward(input_ids, attention_mask, **inputs)
            output.logits = output.logits + output.logits.mean(dim=1, keepdim=True)
            return output

    model = tpuport.port(Mean(GPT).eval())
    with pytest.raises(PortError, match="depend on columns behind the last token"):
        tpuport.generate(model, [[5, 6, 7]], **OPTIONS)


@pytest.mark.slow  # the model that takes no cache above, and lengths in tests/compilation/test_library_checks.py
@pytest.mark.parametrize(
    ("model_class", "config"), [(XLMWithLMHeadModel, XLM), (FlaubertWithLMHeadModel, FLAUBERT)]
)
def test_a_model_that_adds_a_mask_token(model_class: type, config: Any, prompts: tuple) -> None:
    """Its logits are those of the next token; the model counts what is not the padding id, and reads no mask."""
    reference, ported = make_pair(model_class, config)
    ids, mask = prompts[0] % 96, prompts[1]
    for call in ({"attention_mask": mask}, {}):
        expected = reference.generate(ids, **call, **OPTIONS)
        assert torch.equal(ported.generate(ids, **call, **OPTIONS), expected)
        assert len(set(expected[:, ids.shape[1] :].flatten().tolist())) > 2, "a constant would prove little"
    assert not decoder_for(ported).uses_buckets, "padding in front is a part of what it reads"


@pytest.mark.slow  # the model that takes no cache above
def test_a_model_that_reads_padding_once_it_has_a_cache(
    prompts: tuple, caplog: pytest.LogCaptureFixture
) -> None:
    """Its cached steps take no mask, so that padded rows get the same tokens from its own calls alone."""
    config = ProphetNetConfig(
        vocab_size=96, hidden_size=16, num_decoder_layers=1, num_decoder_attention_heads=2, decoder_ffn_dim=16,
        max_position_embeddings=64, add_cross_attention=False, is_encoder_decoder=False,
    )  # fmt: skip
    reference, ported = make_pair(ProphetNetForCausalLM, config)
    ids, mask = prompts[0] % 96, prompts[1]
    expected = reference.generate(ids, attention_mask=torch.ones_like(ids), **OPTIONS)
    assert torch.equal(ported.generate(ids, attention_mask=torch.ones_like(ids), **OPTIONS), expected)
    assert len(set(expected[:, 20:].flatten().tolist())) > 4, "a constant output would prove little"
    options = OPTIONS | {"max_new_tokens": 2}
    expected = reference.generate(ids, attention_mask=mask, **options)
    with caplog.at_level(logging.WARNING, "tpuport"):
        assert torch.equal(ported.generate(ids, attention_mask=mask, **options), expected)
    assert "hides padding only without a cache" in caplog.text


@pytest.mark.parametrize(
    ("model_class", "config", "reason"),
    [
        (
            XLNetLMHeadModel,
            XLNetConfig(vocab_size=96, d_model=16, n_layer=1, n_head=2, d_inner=16),
            "last two",
        ),
        pytest.param(
            CpmAntForCausalLM,
            CpmAntConfig(
                vocab_size=96,
                hidden_size=16,
                num_attention_heads=2,
                dim_head=8,
                dim_ff=16,
                num_hidden_layers=1,
            ),
            "reads its whole text",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_state_that_grows_runs_on_the_host(
    model_class: type, config: Any, reason: str, prompts: tuple, caplog: pytest.LogCaptureFixture
) -> None:
    reference, ported = make_pair(model_class, config)
    call = {"input_ids": prompts[0] % 96, "attention_mask": prompts[1]}
    options = OPTIONS | {"max_new_tokens": 3}
    expected = reference.generate(**call, **options)
    assert len(set(expected[:, 20:].flatten().tolist())) > 1, "a constant output would prove little"
    with caplog.at_level(logging.WARNING, "tpuport"):
        assert torch.equal(tpuport.generate(ported, **call, **options), expected)
    assert reason in caplog.text
    assert "transformers' own loop" in caplog.text
    # It takes no list of prompts.
    with pytest.raises(PortError, match=reason):
        tpuport.generate(ported, [[5, 6, 7]], **options)


def test_block_sparse_attention_is_refused() -> None:
    config = BigBirdConfig(
        vocab_size=96, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        is_decoder=True,
    )  # fmt: skip
    with pytest.raises(PortError, match="block-sparse attention has no cache"):
        tpuport.generate(tpuport.port(BigBirdForCausalLM(config).eval()), [[5, 6, 7]], **OPTIONS)


@pytest.mark.slow  # test_class_generate.py
def test_a_generate_that_calls_that_of_transformers_runs() -> None:
    class Own(LlamaForCausalLM):
        def generate(self, *inputs: Any, **options: Any) -> Any:  # type: ignore[override]
            return super().generate(*inputs, **options)[:, 1:]

    reference, ported = make_pair(Own, LLAMA)
    ids = torch.tensor([[5, 6, 7]])
    expected = reference.generate(ids, **OPTIONS)
    assert torch.equal(tpuport.generate(ported, ids, **OPTIONS), expected)
    assert expected.shape == (1, 10)
