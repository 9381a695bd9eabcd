"""Classes of the user's own whose forward collects arguments that it does not name: tokens are transformers'."""

import copy
import inspect
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import tpuport
from tpuport.generation.forward_signature import forward_parameters


class Passing(LlamaForCausalLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class Naming(LlamaForCausalLM):
    def forward(self, input_ids: Any = None, cache: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().forward(input_ids=input_ids, cache=cache, **kwargs)


class Twice(Passing):
    def forward(self, input_ids: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().forward(input_ids=input_ids, **kwargs)


class WithTable(GPT2LMHeadModel):
    """Takes the number of a column for a position, as transformers gives it none."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class WithEncoder(BartForConditionalGeneration):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


_TOKENS = {"vocab_size": 96, "pad_token_id": 0, "eos_token_id": None, "bos_token_id": 1}
LLAMA = LlamaConfig(
    **_TOKENS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2,
)  # fmt: skip
GPT2 = GPT2Config(**_TOKENS, n_embd=32, n_layer=2, n_head=4, n_positions=64)
BART = BartConfig(
    vocab_size=96, pad_token_id=0, eos_token_id=2, bos_token_id=1, decoder_start_token_id=2, d_model=32,
    encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32,
    decoder_ffn_dim=32, max_position_embeddings=64, forced_eos_token_id=None, init_std=0.3,
)  # fmt: skip


@pytest.mark.parametrize(
    ("cls", "config"),
    [(Passing, LLAMA), (Naming, LLAMA), (Twice, LLAMA), (WithTable, GPT2), (WithEncoder, BART)],
)
def test_padded_prompts_have_their_mask(cls: type, config: Any) -> None:
    reference = cls(copy.deepcopy(config)).eval()
    ids, mask = torch.randint(5, 96, (2, 9)), torch.ones(2, 9, dtype=torch.int64)
    padding = slice(5, None) if config.is_encoder_decoder else slice(None, 4)
    ids[1, padding], mask[1, padding] = 0, 0
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False}
    expected = reference.generate(ids, attention_mask=mask, **options)
    unmasked = reference.generate(ids, attention_mask=torch.ones_like(mask), **options)
    assert not torch.equal(unmasked, expected), "the mask changes nothing: the test shows nothing"
    ported = tpuport.port(copy.deepcopy(reference))
    assert torch.equal(tpuport.generate(ported, ids, mask, **options), expected)
    assert torch.equal(ported.generate(ids, attention_mask=mask, **options), expected)


def test_a_class_of_transformers_takes_what_it_names() -> None:
    model = LlamaForCausalLM(LLAMA)
    named = inspect.signature(LlamaForCausalLM.forward).parameters
    assert set(forward_parameters(model)) == set(named) - {"self", "kwargs"}


def test_what_only_a_name_asks_for_is_not_taken() -> None:
    parameters = forward_parameters(Passing(LLAMA))
    assert {"input_ids", "attention_mask", "use_cache"} <= set(parameters)
    assert {"position_ids", "logits_to_keep", "args", "kwargs"}.isdisjoint(parameters)
