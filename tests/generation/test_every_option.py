"""Every field of GenerationConfig: it gives what it gives in transformers, changes nothing there, or is refused."""

import copy
import inspect
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin

import tpuport
from tests.cache_names import CACHE
from tests.generation.character_tokens import character_tokenizer
from tpuport import PortError

Options = dict[str, Any]
BASE: Options = {
    "max_new_tokens": 8, "pad_token_id": 0, "return_dict_in_generate": True, "output_scores": True,
}  # fmt: skip
SAMPLED: Options = {"do_sample": True, "top_k": 0}
BEAMS: Options = {"num_beams": 3}
# Ends that some beams choose early.
ENDING_BEAMS: Options = {
    "num_beams": 3, "num_return_sequences": 3, "eos_token_id": [33, 95], "max_new_tokens": 14,
}  # fmt: skip
# In place of a token that a row chooses early.
END = -100


# By field, options that have an effect in transformers, beside those that the effect needs.
EQUAL: dict[str, tuple[Options, Options]] = {
    "max_length": ({"max_length": 25}, {"max_length": 30, "max_new_tokens": None}),
    "max_new_tokens": ({"max_new_tokens": 5}, {}),
    "min_length": ({"min_length": 26}, {"eos_token_id": END}),
    "min_new_tokens": ({"min_new_tokens": 6}, {"eos_token_id": END}),
    "early_stopping": ({"early_stopping": True}, ENDING_BEAMS),
    "max_time": ({"max_time": 1e-9}, {}),
    "stop_strings": ({"stop_strings": END}, {"tokenizer": character_tokenizer()}),
    "do_sample": ({"do_sample": True}, {}),
    "num_beams": (BEAMS, {}),
    "temperature": ({"temperature": 0.3}, SAMPLED),
    "top_k": ({"top_k": 4}, {"do_sample": True}),
    "top_p": ({"top_p": 0.6}, SAMPLED),
    "min_p": ({"min_p": 0.2}, SAMPLED),
    "top_h": ({"top_h": 0.4}, SAMPLED),
    "typical_p": ({"typical_p": 0.5}, SAMPLED),
    "epsilon_cutoff": ({"epsilon_cutoff": 0.02}, SAMPLED),
    "eta_cutoff": ({"eta_cutoff": 0.02}, SAMPLED),
    "repetition_penalty": ({"repetition_penalty": 1.6}, {}),
    "encoder_repetition_penalty": ({"encoder_repetition_penalty": 1.6}, {}),
    "length_penalty": ({"length_penalty": -2.0}, ENDING_BEAMS),
    "no_repeat_ngram_size": ({"no_repeat_ngram_size": 1}, {}),
    "encoder_no_repeat_ngram_size": ({"encoder_no_repeat_ngram_size": 1}, {}),
    "bad_words_ids": ({"bad_words_ids": [[END], [9, 17]]}, {}),
    "renormalize_logits": ({"renormalize_logits": True}, {}),
    "forced_bos_token_id": ({"forced_bos_token_id": 77}, {}),
    "forced_eos_token_id": ({"forced_eos_token_id": 77}, {}),
    "remove_invalid_values": ({"remove_invalid_values": True}, {"sequence_bias": {(5,): float("inf")}}),
    "exponential_decay_length_penalty": (
        {"exponential_decay_length_penalty": (2, 3.0)}, {"eos_token_id": 2},
    ),
    "suppress_tokens": ({"suppress_tokens": [END]}, {}),
    "begin_suppress_tokens": ({"begin_suppress_tokens": list(range(3, 60))}, {}),
    "sequence_bias": ({"sequence_bias": {(33,): 9.5, (8, 40): -4.0}}, {}),
    "guidance_scale": ({"guidance_scale": 2.5}, {}),
    "watermarking_config": ({"watermarking_config": {"bias": 5.0, "seeding_scheme": "selfhash"}}, {}),
    "num_return_sequences": ({"num_return_sequences": 2}, SAMPLED),
    "output_scores": ({"output_scores": True}, {"output_scores": False}),
    "output_logits": ({"output_logits": True}, {}),
    "return_dict_in_generate": ({"return_dict_in_generate": True}, {"return_dict_in_generate": False}),
    "pad_token_id": ({"pad_token_id": 99}, {"eos_token_id": END}),
    "eos_token_id": ({"eos_token_id": END}, {}),
}  # fmt: skip
# Of these a prompt of one token shows the effect.
_ONE_TOKEN = {"forced_bos_token_id"}

# By field, options that leave the tokens and scores of transformers as they are.
WITHOUT_EFFECT: dict[str, Options] = {
    "use_cache": {"use_cache": False},
    "cache_implementation": {"cache_implementation": "dynamic"},
    "max_cache_len": {"max_cache_len": 32},
    "bos_token_id": {"bos_token_id": 7},
    "decoder_start_token_id": {"decoder_start_token_id": 7},
    "num_assistant_tokens": {"num_assistant_tokens": 3},
    "num_assistant_tokens_schedule": {"num_assistant_tokens_schedule": "constant"},
    "assistant_confidence_threshold": {"assistant_confidence_threshold": 0.9},
    "assistant_lookbehind": {"assistant_lookbehind": 3},
    "target_lookbehind": {"target_lookbehind": 3},
    "max_matching_ngram_size": {"max_matching_ngram_size": 3},
    "compile_config": {"compile_config": None},
    "disable_compile": {"disable_compile": True},
    "transformers_version": {"transformers_version": "5.0.0"},
    # Beam search refuses it, here as there.
    "low_memory": {"low_memory": True},
}
# By field, other ways to the same tokens; transformers drafts for one row only.
OTHER_WAYS: dict[str, Options] = {
    "prefill_chunk_size": {"prefill_chunk_size": 7},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
    "assistant_early_exit": {"assistant_early_exit": 1},
    "use_mtp": {"use_mtp": True},
}
# By field, a value that is an error, whose message has the field and the reason.
REFUSED: Options = {
    "cache_config": {"nbits": 4},
    "output_attentions": True,
    "output_hidden_states": True,
    "token_healing": True,
    "is_assistant": True,
    "assistant_ensemble_weight": 0.5,
    "speculation_type": "dflash",
    "continuous_batching_config": {"block_size": 16},
    "penalty_alpha": 0.6,
    "dola_layers": "low",
    "diversity_penalty": 0.5,
    "num_beam_groups": 2,
    "constraints": [1],
    "force_words_ids": [[5]],
}


def test_each_field_of_transformers_is_in_one_of_the_tables() -> None:
    """A field that a new version of transformers adds must be read, or refused with a reason, on purpose."""
    tables = (EQUAL, WITHOUT_EFFECT, OTHER_WAYS, REFUSED)
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))
    assert {name for name in vars(GenerationConfig()) if not name.startswith("_")} == set(names)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_with_a_reason(llama: tuple, prompts: tuple, name: str) -> None:
    with pytest.raises(PortError, match=rf"(?s){name}=.+ \([^)]{{10,}}"):
        tpuport.generate(llama[1], *prompts, max_new_tokens=2, **{name: REFUSED[name]})


# Keywords of transformers' `generate` beside its fields, by what becomes of them; those that it hides in `**kwargs`
# are the last two. The equal ones have tests in test_step_functions.py, test_guidance.py, test_generating.py and
# test_assisted_decoding.py.
EQUAL_KEYWORDS = {
    "inputs", "generation_config", "logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn",
    "assistant_model", "streamer", "negative_prompt_ids", "negative_prompt_attention_mask", "tokenizer",
}  # fmt: skip
REFUSED_KEYWORDS = {"custom_generate": "another/loop", "assistant_tokenizer": character_tokenizer()}


def test_each_keyword_of_transformers_is_known(llama: tuple, prompts: tuple) -> None:
    ported = llama[1]
    keywords = {*inspect.signature(GenerationMixin.generate).parameters, "tokenizer", "assistant_tokenizer"}
    assert keywords - {"self", "kwargs"} == EQUAL_KEYWORDS | REFUSED_KEYWORDS.keys() | {"synced_gpus"}
    options = {"attention_mask": prompts[1], "max_new_tokens": 2}
    for name, value in REFUSED_KEYWORDS.items():
        with pytest.raises(PortError, match=name):
            ported.generate(prompts[0], **options, **{name: value})
    plain = ported.generate(prompts[0], **options)
    assert torch.equal(ported.generate(prompts[0], **options, synced_gpus=True), plain)


def test_an_unknown_field_is_refused(llama: tuple, prompts: tuple) -> None:
    """Also one of a newer transformers, which may change the tokens."""
    config = GenerationConfig(max_new_tokens=2)
    vars(config)["of_tomorrow"] = 3
    with pytest.raises(PortError, match="of_tomorrow=3"):
        tpuport.generate(llama[1], *prompts, generation_config=config)


def _generate(call: Any, prompts: tuple, name: str, options: Options) -> Any:
    ids, mask = prompts
    if name in _ONE_TOKEN:
        ids, mask = ids[:, -1:], mask[:, -1:]
    torch.manual_seed(0)
    return call(ids, attention_mask=mask, **options)


def _compare(pair: tuple, prompts: tuple, name: str, options: Options) -> tuple[Any, Any]:
    """What a ported model gives, and transformers: the same, where tokens are drawn with the same draws."""
    ours = _generate(pair[1].generate, prompts, name, options)
    with pytest.MonkeyPatch.context() as patch:
        if options.get("do_sample"):
            repeat_draws(patch, ours, 1 if name in _ONE_TOKEN else prompts[0].shape[1])
        theirs = _generate(pair[0].generate, prompts, name, options)
    assert_equal(ours, theirs)
    return ours, theirs


def with_end(options: Options, end: int) -> Options:
    """The options with a token, or its character, in place of END."""
    if options.get("stop_strings") == END:
        return options | {"stop_strings": chr(end)}
    if options.get("bad_words_ids"):
        return options | {"bad_words_ids": [[end], [9, 17]]}
    replaced = {name: end if value == END else value for name, value in options.items()}
    return replaced | ({"suppress_tokens": [end]} if "suppress_tokens" in options else {})


def repeat_draws(patch: pytest.MonkeyPatch, output: Any, prompt: int) -> None:
    """Let torch draw the tokens that an output has after so many columns."""
    sequences = output if isinstance(output, torch.Tensor) else output["sequences"]
    columns = iter(sequences[:, prompt:].unbind(1))
    patch.setattr(torch, "multinomial", lambda probabilities, num_samples: next(columns)[:, None])


def assert_equal(ours: Any, theirs: Any) -> None:
    """The same tokens and scores."""
    if isinstance(theirs, torch.Tensor):
        assert torch.equal(ours, theirs)
        return
    assert _names(ours) == _names(theirs)
    assert torch.equal(ours["sequences"], theirs["sequences"])
    for name in {"scores", "logits"} & theirs.keys():
        assert len(ours[name]) == len(theirs[name])
        for got, expected in zip(ours[name], theirs[name], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def _names(output: Any) -> set[str]:
    """What an output has, but for the cache, which tpuport does not return."""
    return {name for name in output if name != CACHE}


def differ(first: Any, second: Any) -> bool:
    """Whether an option has an effect that the comparison with transformers would show."""
    if type(first) is not type(second) or not isinstance(first, dict):
        return type(first) is not type(second)
    if _names(first) != _names(second) or not torch.equal(first["sequences"], second["sequences"]):
        return True
    return not torch.allclose(first["scores"][0], second["scores"][0], rtol=1e-4, atol=1e-4)


# Each compiles its own programs; test_processed_generation.py has most of them in one.
SAMPLE = {"output_scores", "stop_strings", "top_p"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SAMPLE else pytest.mark.slow) for name in EQUAL]
)
def test_what_has_an_effect_has_it_as_in_transformers(llama: tuple, prompts: tuple, name: str) -> None:
    reference = llama[0]
    plain = reference.generate(prompts[0], attention_mask=prompts[1], max_new_tokens=8)
    end = int(plain[1, 22])
    options, needed = (with_end(part, end) for part in EQUAL[name])
    base = BASE | needed
    _, expected = _compare(llama, prompts, name, base | options)
    assert differ(expected, _generate(reference.generate, prompts, name, base)), "the option changes nothing"


@pytest.mark.parametrize(
    ("of_model", "options"),
    [
        (
            {"eos_token_id": END, "repetition_penalty": 1.6},
            {"eos_token_id": None, "repetition_penalty": None},
        ),
        (
            {"top_k": 4, "temperature": 0.3},
            {"top_k": None, "temperature": None, "do_sample": True, "max_new_tokens": 1},
        ),
    ],
)
def test_none_takes_the_place_of_what_the_model_has(
    llama: tuple, prompts: tuple, of_model: Options, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, mask = prompts
    end = int(llama[0].generate(ids, attention_mask=mask, max_new_tokens=8)[1, 22])
    outputs = []
    for model in llama:
        config = copy.deepcopy(model.generation_config)
        config.update(**with_end(of_model, end))
        monkeypatch.setattr(model, "generation_config", config)
        outputs.append(model.generate(ids, attention_mask=mask, **BASE | options))
    expected, actual = outputs
    if not options.get("do_sample"):
        assert end in expected.sequences[1, :-1], "the model's end would show nothing"
        assert torch.equal(actual.sequences, expected.sequences)
    torch.testing.assert_close(actual.scores[0], expected.scores[0])


def test_what_has_no_effect_has_none(llama: tuple, prompts: tuple) -> None:
    reference, ported = llama
    plain = _generate(reference.generate, prompts, "", BASE)
    for name, options in WITHOUT_EFFECT.items():
        theirs = _generate(reference.generate, prompts, name, BASE | options)
        assert not differ(theirs, plain), name
        assert_equal(_generate(ported.generate, prompts, name, BASE | options), plain)


# Options that are used together.
PAIRS: dict[str, Options] = {
    "beams without repetition": {**BEAMS, "no_repeat_ngram_size": 2, "bad_words_ids": [[5]], "output_logits": True},
    "beams that return all and end": {**ENDING_BEAMS, "length_penalty": 0.5, "min_new_tokens": 4},
    "beams with guidance": {**BEAMS, "guidance_scale": 1.8, "repetition_penalty": 1.2},
    "beams that stop at a string": {**ENDING_BEAMS, "stop_strings": "\x21\x11", "tokenizer": character_tokenizer()},
    "guidance with processors": {"guidance_scale": 1.8, "no_repeat_ngram_size": 2, "sequence_bias": {(33,): 2.5}},
    "samples of filtered scores": {**SAMPLED, "num_return_sequences": 2, "top_p": 0.8, "min_p": 0.02},
    "samples with a penalty": {"do_sample": True, "temperature": 0.6, "repetition_penalty": 1.4, "top_k": 9},
    "a watermark on samples": {"do_sample": True, "watermarking_config": {"bias": 3.0}, "renormalize_logits": True},
    "a prompt in chunks with processors": {"prefill_chunk_size": 7, "no_repeat_ngram_size": 1, "min_new_tokens": 8},
    "a forced end after few tokens": {"forced_eos_token_id": 77, "max_new_tokens": 4, "suppress_tokens": [11, 98]},
}  # fmt: skip


@pytest.mark.slow  # each option above, and most of them in one program in test_processed_generation.py
@pytest.mark.parametrize("name", PAIRS)
def test_options_together(llama: tuple, prompts: tuple, name: str) -> None:
    options = BASE | PAIRS[name]
    got, expected = _compare(llama, prompts, name, options)
    if "num_beams" in options:
        torch.testing.assert_close(got.sequences_scores, expected.sequences_scores, rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # test_assisted_decoding.py
def test_a_prefix_in_chunks_with_drafts_and_samples(llama: tuple, prompts: tuple) -> None:
    """What tpuport alone has: a draw is the same, however the prompt is divided and the tokens drafted."""
    options = {"max_new_tokens": 8, "do_sample": True, "seed": 3, "num_return_sequences": 2}
    expected = tpuport.generate(llama[1], *prompts, **options)
    ways = {"prefill_chunk_size": 7, "prompt_lookup_num_tokens": 3, "share_prefix": True}
    for name, value in ways.items():
        assert torch.equal(tpuport.generate(llama[1], *prompts, **options, **{name: value}), expected), name


@pytest.mark.slow  # test_partial_prompts.py and test_assisted_decoding.py
@pytest.mark.parametrize("name", OTHER_WAYS)
def test_another_way_leads_to_the_same_tokens(llama: tuple, prompts: tuple, name: str) -> None:
    ids = prompts[0][:1]
    expected = llama[0].generate(ids, max_new_tokens=8)
    assert torch.equal(llama[1].generate(ids, max_new_tokens=8, **OTHER_WAYS[name]), expected)
