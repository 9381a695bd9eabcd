"""GenerationConfig in, checked options out."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

import tpuport
from tpuport import PortError
from tpuport.generation.generation_options import read_options


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"num_beams": 0}, "num_beams"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences=3(.|\n)*num_beams=3"),
        ({"num_beams": 2, "early_stopping": "always"}, "early_stopping='always'"),
        ({"length_penalty": "a"}, "length_penalty='a'"),
        ({"no_repeat_ngram_size": 2.5}, "no_repeat_ngram_size=2.5"),
        ({"bad_words_ids": [3]}, r"list of lists(.|\n)*bad_words_ids=\[3\]"),
        ({"forced_eos_token_id": -1}, "forced_eos_token_id=-1"),
        (
            {"forced_eos_token_id": [3, 4], "suppress_tokens": [4, 3, 9]},
            r"forced_eos_token_id=\[3, 4\], suppress_tokens",
        ),
        ({"forced_bos_token_id": 3, "suppress_tokens": [3]}, r"forced_bos_token_id=\[3\], suppress_tokens"),
        ({"forced_bos_token_id": [3]}, r"forced_bos_token_id=\[3\]"),
        ({"output_attentions": True}, "output_attentions"),
        ({"return_dict_in_generate": 1}, "return_dict_in_generate=1"),
        ({"typical_p": 0.0, "do_sample": True}, "typical_p=0.0"),
        ({"top_h": 1.5, "do_sample": True}, "top_h=1.5"),
        ({"encoder_repetition_penalty": 0}, "encoder_repetition_penalty=0"),
        ({"exponential_decay_length_penalty": 3}, "exponential_decay_length_penalty=3"),
        (
            {"exponential_decay_length_penalty": (3, 1.5), "eos_token_id": []},
            "exponential_decay_length_penalty(.|\n)*eos_token_id",
        ),
        ({"sequence_bias": {(3,): 1}}, "sequence_bias"),
        ({"suppress_tokens": ["a"]}, "suppress_tokens='a'"),
        ({"renormalize_logits": "yes"}, "renormalize_logits='yes'"),
        ({"guidance_scale": "2"}, "guidance_scale='2'"),
        ({"assistant_model": []}, "does not support these arguments(.|\n)*assistant_model"),
        ({"penalty_alpha": 0.6}, "penalty_alpha=0.6 .contrastive search, which transformers has taken out"),
        ({"dola_layers": "low"}, "dola_layers='low' .DoLa"),
        ({"constraints": [1]}, "constrained beam search"),
        ({"token_type_ids": torch.ones(1, 2)}, "does not support these arguments(.|\n)*token_type_ids"),
        ({"sequence_bias": torch.ones(2, 2)}, "sequence_bias=tensor"),
        ({"cache_implementation": "quantized"}, "quantized"),
        ({"assistant_ensemble_weight": 0.5}, "assistant_ensemble_weight=0.5"),
        ({"prefill_chunk_size": 0}, "prefill_chunk_size=0"),
        ({"prompt_lookup_num_tokens": -1}, "prompt_lookup_num_tokens=-1"),
        ({"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 0}, "max_matching_ngram_size=0"),
        ({"max_new_tokns": 3}, "max_new_tokns"),
        ({"temperature": 0.0, "do_sample": True}, "temperature(.|\n)*do_sample=False"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"num_return_sequences": 2}, "num_return_sequences=2"),
        ({"max_length": 5}, "max_length"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 4.5}, "max_new_tokens=4.5"),
        ({"max_new_tokens": "4"}, "max_new_tokens='4'"),
        ({"max_new_tokens": True}, "max_new_tokens=True"),
        ({"max_length": "40"}, "max_length='40'"),
        ({"min_new_tokens": -3}, "min_new_tokens"),
        ({"min_new_tokens": "2"}, "min_new_tokens='2'"),
        ({"top_k": 2.5}, "top_k=2.5"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": "hot"}, "temperature='hot'"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty=nan"),
        ({"max_time": "1"}, "max_time='1'"),
        ({"eos_token_id": "a"}, "eos_token_id='a'"),
        ({"eos_token_id": [2, 2.5]}, "eos_token_id=2.5"),
        ({"pad_token_id": "a"}, "pad_token_id='a'"),
        ({"stop_strings": 5}, "stop_strings=5"),
        ({"stop_strings": ["a", 5]}, "stop_strings"),
        ({"do_sample": "yes"}, "do_sample='yes'"),
        ({"num_return_sequences": "2"}, "num_return_sequences='2'"),
        ({"max_cache_len": "2"}, "max_cache_len='2'"),
        ({"max_new_tokens": 2, "min_new_tokens": 3}, "min_new_tokens"),
    ],
)
def test_what_cannot_be_honoured_is_named(model: torch.nn.Module, options: dict[str, Any], name: str) -> None:
    with pytest.raises(PortError, match=name):
        read_options(model, None, options, prompt_length=5)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"use_cache": False},
        {"bad_words_ids": []},
        {"decoder_start_token_id": 2},
        {"max_new_tokens": 4.0},
        {"eos_token_id": -1, "pad_token_id": 0},
    ],
)
def test_what_changes_no_token_is_let_pass(model: torch.nn.Module, options: dict[str, Any]) -> None:
    model.generation_config = GenerationConfig()
    got = read_options(model, None, options, prompt_length=5)
    assert got.max_new == options.get("max_new_tokens", 20)
    assert got.eos == ()


def test_assisted_decoding_is_said_to_be_plain(
    model: torch.nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    model.generation_config = GenerationConfig()
    read_options(model, None, {"assistant_early_exit": 3}, prompt_length=5)
    assert "assistant_early_exit: generate decodes token by token" in caplog.text


def test_ids_and_counts_fit_the_device(model: torch.nn.Module) -> None:
    got = read_options(
        model, None, {"eos_token_id": torch.tensor([3, 2**40]), "top_k": 2**40}, prompt_length=5
    )
    assert (got.eos, got.pad, got.top_k) == ((3,), 3, 2**31 - 1)


def test_an_option_of_the_checkpoint_is_called_that(model: torch.nn.Module) -> None:
    model.generation_config = GenerationConfig(num_beam_groups=4)
    with pytest.raises(
        PortError,
        match=r"num_beam_groups=4 .*\(of the checkpoint's generation_config\.json\)\n.*num_beam_groups=1",
    ):
        read_options(model, None, {}, prompt_length=5)
    with pytest.raises(PortError, match=r"num_beam_groups=4 \(diverse[^(]*\)\n"):
        read_options(model, None, {"num_beam_groups": 4}, prompt_length=5)
    assert read_options(model, None, {"num_beam_groups": 1}, prompt_length=5).max_new == 20
    model.generation_config = GenerationConfig()


def test_what_from_pretrained_is_given_for_the_config_is_no_option(
    model: torch.nn.Module, tmp_path: Path
) -> None:
    """transformers puts it into the generation config as well, and its `generate` does not look at it."""
    model.save_pretrained(tmp_path)
    smaller = LlamaForCausalLM.from_pretrained(tmp_path, num_hidden_layers=1)
    assert "num_hidden_layers" in vars(smaller.generation_config)
    assert read_options(smaller, None, {}, prompt_length=5).max_new == 20
    smaller.generation_config.no_option_at_all = 3
    with pytest.raises(PortError, match=r"no_option_at_all=3 \(of the checkpoint's") as refused:
        read_options(smaller, None, {}, prompt_length=5)
    assert "num_hidden_layers" not in str(refused.value)


def test_every_unsupported_option_is_named_at_once(model: torch.nn.Module) -> None:
    with pytest.raises(
        PortError,
        match=r"token_healing=True.*output_attentions=True|output_attentions=True.*token_healing=True",
    ):
        read_options(model, None, {"token_healing": True, "output_attentions": True}, prompt_length=5)


def test_options_win_over_the_config_and_that_over_the_models_own(model: torch.nn.Module) -> None:
    model.generation_config = GenerationConfig(
        temperature=0.5, top_p=0.5, do_sample=True, eos_token_id=[3, 4]
    )
    given = GenerationConfig(top_p=0.7, max_length=12)
    got = read_options(model, given, {"min_p": 0.1}, prompt_length=5)
    assert (got.temperature, got.top_p, got.min_p, got.top_k) == (0.5, 0.7, 0.1, 50)
    assert (got.max_new, got.eos, got.pad) == (7, (3, 4), 3)
    assert read_options(model, given, {"max_new_tokens": 2, "min_length": 6}, prompt_length=5).min_new == 1


def test_defaults_are_those_of_transformers(model: torch.nn.Module) -> None:
    model.generation_config = GenerationConfig()
    got = read_options(model, None, {}, prompt_length=5)
    assert (got.max_new, got.do_sample, got.top_p, got.repetition_penalty, got.pad) == (
        20,
        False,
        1.0,
        1.0,
        None,
    )


def test_a_model_on_the_host_is_an_error_that_says_what_to_do(model: torch.nn.Module) -> None:
    with pytest.raises(PortError, match=r"tpuport\.port"):
        tpuport.generate(model, torch.tensor([[5, 6]]), max_new_tokens=2)
