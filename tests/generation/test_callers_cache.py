"""A cache that the caller gives: chats, prefixes, and what the caller's object has afterwards, as in transformers."""

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, Qwen3NextConfig, StaticCache

import tpuport
from tests.cache_names import CACHE
from tests.generation.test_generating import AtLength
from tpuport import PortError
from tpuport.generation import decoder_for

EXACT = {"max_new_tokens": 6, "min_new_tokens": 6}
MAKERS: dict[str, Callable[[Any], Any]] = {
    "dynamic": lambda config: DynamicCache(config=config),
    "dynamic, no config": lambda config: DynamicCache(),
    "static": lambda config: StaticCache(config=config, max_cache_len=80),
}


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def _ids(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randint(3, 128, (rows, columns), generator=torch.Generator().manual_seed(seed))


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Two prompts, the second padded on the left."""
    ids = _ids(2, 12, 5)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    return ids * mask, mask


def _assert_same_cache(actual: Any, expected: Any) -> None:
    assert int(actual.get_seq_length()) == int(expected.get_seq_length())
    for layer, own in zip(actual.layers, expected.layers, strict=True):
        assert isinstance(layer, type(own))
        torch.testing.assert_close(tpuport.to_cpu(layer.keys), own.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(tpuport.to_cpu(layer.values), own.values, atol=1e-4, rtol=1e-4)


def _chat(model: Any, cache: Any, turns: int = 2) -> list[torch.Tensor]:
    """The text after each turn, of which each adds three tokens to all before."""
    (text, mask), texts = _batch(), []
    for turn in range(turns):
        output = model.generate(
            text, attention_mask=mask, return_dict_in_generate=True, **EXACT, **{CACHE: cache}
        )
        assert getattr(output, CACHE) is cache
        texts.append(output.sequences)
        text = torch.cat([output.sequences, _ids(2, 3, turn)], dim=1)
        mask = torch.nn.functional.pad(mask, (0, text.shape[1] - mask.shape[1]), value=1)
    return texts


QUICK = {("llama", "dynamic, no config"), ("mistral", "dynamic"), ("gemma3", "static")}


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        pytest.param(family, kind, marks=[] if (family, kind) in QUICK else pytest.mark.slow)
        for family in ("llama", "mistral", "gemma3", "gpt2", "gpt_oss")
        for kind in MAKERS
    ],
)
def test_a_chat_goes_on_with_its_cache(family: str, kind: str, make_pair: Callable) -> None:
    reference, ported = make_pair(family)
    theirs, ours = (MAKERS[kind](model.config) for model in (reference, ported))
    for actual, expected in zip(_chat(ported, ours), _chat(reference, theirs), strict=True):
        assert torch.equal(actual, expected)
    _assert_same_cache(ours, theirs)


def test_further_turns_compile_nothing(llama: tuple) -> None:
    decoder = decoder_for(llama[1])
    cache = StaticCache(config=llama[1].config, max_cache_len=96)
    text, counts = _ids(2, 12, 5), []
    for turn in range(4):
        text = torch.cat(
            [tpuport.generate(llama[1], text, **EXACT, **{CACHE: cache}), _ids(2, 3, turn)], dim=1
        )
        counts.append((decoder.resume.compilations, decoder.advance.compilations))
    # The first turn's cache is empty.
    assert counts[1] == counts[3]


def test_a_prefix_is_computed_once_and_copied(llama: tuple) -> None:
    reference, ported = llama
    prefix = _ids(1, 10, 1)
    caches = []
    for model in (reference, ported):
        output = model(prefix, use_cache=True, **{CACHE: DynamicCache(config=model.config)})
        caches.append(getattr(output, CACHE))
    for seed in (2, 3):
        text = torch.cat([prefix, _ids(1, 4 + seed, seed)], dim=1)
        copies = [copy.deepcopy(cache) for cache in caches]
        expected = reference.generate(text, **EXACT, **{CACHE: copies[0]})
        assert torch.equal(ported.generate(text, **EXACT, **{CACHE: copies[1]}), expected)
        _assert_same_cache(copies[1], copies[0])
        # A copy of what `generate` has written, too.
        again = torch.cat([expected, _ids(1, 2, seed)], dim=1)
        copies = [copy.deepcopy(cache) for cache in copies]
        expected = reference.generate(again, **EXACT, **{CACHE: copies[0]})
        assert torch.equal(ported.generate(again, **EXACT, **{CACHE: copies[1]}), expected)
    _assert_same_cache(caches[1], caches[0])


def test_a_cache_of_torch_and_only_new_tokens(llama: tuple) -> None:
    reference, ported = llama
    ids, mask = _batch()
    filled = getattr(reference(ids, attention_mask=mask, use_cache=True), CACHE)
    new, whole = _ids(2, 3, 9), torch.nn.functional.pad(mask, (0, 3), value=1)
    options = EXACT | {"attention_mask": whole, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    theirs, ours = copy.deepcopy(filled), copy.deepcopy(filled)
    expected = reference.generate(new, **options, **{CACHE: theirs})
    assert torch.equal(ported.generate(new, **options, **{CACHE: ours}), expected)
    _assert_same_cache(ours, theirs)
    # The ported model's own call goes on with what `generate` has written.
    last = torch.full((2, 1), 7)
    expected_logits = reference(last, **{CACHE: theirs}).logits
    torch.testing.assert_close(
        tpuport.to_cpu(ported(last, **{CACHE: ours}).logits), expected_logits, atol=1e-3, rtol=1e-3
    )


def test_beams_and_samples(llama: tuple) -> None:
    reference, ported = llama
    ids, mask = _batch()
    text = torch.cat([ids, _ids(2, 3, 4)], dim=1)
    options = EXACT | {"attention_mask": torch.nn.functional.pad(mask, (0, 3), value=1)}
    filled = getattr(reference(ids, attention_mask=mask, use_cache=True), CACHE)
    repeated = copy.deepcopy(filled)
    repeated.batch_repeat_interleave(3)
    theirs, ours = copy.deepcopy(repeated), copy.deepcopy(repeated)
    expected = reference.generate(text, num_beams=3, **options, **{CACHE: theirs})
    assert torch.equal(ported.generate(text, num_beams=3, **options, **{CACHE: ours}), expected)
    assert ours.get_seq_length() == theirs.get_seq_length()
    with pytest.raises(PortError, match="2 rows, and the batch decodes 6"):
        ported.generate(text, num_beams=3, **options, **{CACHE: copy.deepcopy(filled)})
    sample = options | {"do_sample": True, "seed": 5}
    alone = tpuport.generate(ported, text, **sample)
    assert torch.equal(tpuport.generate(ported, text, **sample, **{CACHE: filled}), alone)


def test_the_cache_ends_where_a_criterion_ends_the_text(make_pair: Callable) -> None:
    reference, ported = make_pair("mistral")
    ids = _ids(2, 19, 8)
    theirs, ours = (DynamicCache(config=model.config) for model in (reference, ported))
    options = {"max_new_tokens": 30, "min_new_tokens": 30, "stopping_criteria": [AtLength()]}
    expected = reference.generate(ids, **options, **{CACHE: theirs})
    actual = tpuport.generate(ported, ids, **options, **{CACHE: ours})
    assert torch.equal(actual, expected)
    _assert_same_cache(ours, theirs)


def test_what_cannot_go_on_is_said_before_work(llama: tuple, make_pair: Callable) -> None:
    ported = llama[1]
    text = _ids(2, 12, 5)

    def message(cache: Any, **options: Any) -> str:
        with pytest.raises(PortError) as raised:
            tpuport.generate(ported, text, **EXACT | options, **{CACHE: cache})
        return str(raised.value)

    assert "do not fit a cache of 16 columns" in message(StaticCache(config=ported.config, max_cache_len=16))
    assert "in the model's dtype" in message(DynamicCache(), kv_cache="int8")
    filled = DynamicCache(config=ported.config)
    tpuport.generate(ported, text, **EXACT, **{CACHE: filled})
    assert "17 columns, and the text 12" in message(filled)
    text = _ids(4, 20, 5)
    assert "2 rows, and the batch decodes 4" in message(filled)
    other = getattr(make_pair("qwen3")[0](text[:, :4], use_cache=True), CACHE)
    assert "not one of the model" in message(other)


def test_the_former_name_is_known(llama: tuple) -> None:
    if CACHE == "past_key_values":
        pytest.skip("it is the name of this release")
    cache = DynamicCache()
    with pytest.warns(FutureWarning, match="past_key_values"):
        output = tpuport.generate(
            llama[1], _ids(1, 4, 1), past_key_values=cache, return_dict_in_generate=True, **EXACT
        )
    assert output.past_key_values is cache


@pytest.mark.slow  # of each kind of layer; the others above
def test_other_layers_go_on_in_transformers_loop(caplog: pytest.LogCaptureFixture) -> None:
    config = Qwen3NextConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=8,
        linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, layer_types=["linear_attention", "full_attention"], pad_token_id=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    reference: Any = AutoModelForCausalLM.from_config(config).eval()
    ported: Any = tpuport.port(copy.deepcopy(reference))
    theirs, ours = (DynamicCache(config=config) for _ in range(2))
    with caplog.at_level(logging.WARNING, "tpuport"):
        actual = _chat(ported, ours, turns=2)
    assert "transformers' own loop" in caplog.text
    for text, expected in zip(actual, _chat(reference, theirs, turns=2), strict=True):
        assert torch.equal(text, expected)
    assert ours.get_seq_length() == theirs.get_seq_length()
