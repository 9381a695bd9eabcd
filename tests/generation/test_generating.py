"""The host's side: stopping, streaming, compile counts, limits."""

import concurrent.futures
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    BatchEncoding,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    StoppingCriteria,
)
from transformers.generation.streamers import BaseStreamer

import tpuport
from tests.generation.character_tokens import character_tokenizer
from tpuport import PortError, compat
from tpuport.compilation.programs import program_settings
from tpuport.generation import decoder_for


class Collector(BaseStreamer):
    def __init__(self) -> None:
        self.parts: list[torch.Tensor] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.parts.append(value)

    def end(self) -> None:
        self.ended += 1


class AtLength(StoppingCriteria):
    """Row r ends at length 23 + 2 r."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids.shape[1] >= 23 + 2 * torch.arange(len(input_ids))


def test_on_a_tpu_the_loop_is_compiled_as_one_that_updates_a_cache(
    llama: tuple, prompts: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}

    def options(generation: str, updates_cache: bool) -> dict[str, str]:
        asked[generation, updates_cache] = None
        return {}

    monkeypatch.setattr(program_settings, "generation_of_kind", lambda kind: "v6e")
    monkeypatch.setattr(program_settings, "compiler_options", options)
    tpuport.generate(llama[1], *prompts, max_new_tokens=2)
    assert list(asked) == [("v6e", False), ("v6e", True)], "the prompt, and the tokens after it"


def test_several_end_ids_and_padding_after_them(llama: tuple, prompts: tuple) -> None:
    reference, ported = llama
    ids, mask = prompts
    free = reference.generate(ids, attention_mask=mask, max_new_tokens=24, eos_token_id=[127], pad_token_id=0)
    ends = [int(free[0, 24]), int(free[1, 30])]
    options = {"max_new_tokens": 24, "eos_token_id": ends, "pad_token_id": 0}
    expected = reference.generate(ids, attention_mask=mask, **options)
    assert (expected == 0).sum() > (free == 0).sum(), "no row ended early: the test shows nothing"
    assert torch.equal(tpuport.generate(ported, ids, mask, **options), expected)


@pytest.mark.slow  # the rows that end in test_step_outputs.py
def test_the_loop_stops_when_every_row_has_ended(llama: tuple, prompts: tuple) -> None:
    reference, ported = llama
    first = int(reference.generate(prompts[0][:1], max_new_tokens=3)[0, 22])
    options = {"max_new_tokens": 40, "eos_token_id": first}
    expected = reference.generate(prompts[0][:1], **options)
    assert expected.shape[1] <= 23
    assert torch.equal(tpuport.generate(ported, prompts[0][:1], **options), expected)


def test_min_new_tokens_and_penalty(llama: tuple, prompts: tuple) -> None:
    reference, ported = llama
    ids, mask = prompts
    end = int(reference.generate(ids[:1], max_new_tokens=3)[0, 22])
    options = {
        "max_new_tokens": 20,
        "min_new_tokens": 9,
        "eos_token_id": end,
        "pad_token_id": 0,
        "repetition_penalty": 1.4,
    }
    expected = reference.generate(ids, attention_mask=mask, **options)
    assert torch.equal(tpuport.generate(ported, ids, mask, **options), expected)


@pytest.mark.parametrize("ends", [[], [2]])
def test_stopping_criteria_count_from_the_token_they_ask_for(
    llama: tuple, prompts: tuple, ends: list[int]
) -> None:
    reference, ported = llama
    ids, mask = prompts
    options = {"max_new_tokens": 30, "pad_token_id": 0}
    expected = reference.generate(
        ids, attention_mask=mask, stopping_criteria=[AtLength()], eos_token_id=ends or None, **options
    )
    got = tpuport.generate(ported, ids, mask, stopping_criteria=[AtLength()], eos_token_id=ends, **options)
    assert expected.shape[1] == 27
    assert torch.equal(got, expected)


def test_stop_strings(llama: tuple, prompts: tuple) -> None:
    reference, ported = llama
    ids = prompts[0][:1]
    free = reference.generate(ids, max_new_tokens=40, eos_token_id=None)
    stop = "".join(chr(n) for n in free[0, 38:40])
    options = {"max_new_tokens": 40, "stop_strings": stop, "tokenizer": character_tokenizer()}
    expected = reference.generate(ids, eos_token_id=None, **options)
    assert expected.shape[1] <= 40
    assert torch.equal(tpuport.generate(ported, ids, eos_token_id=[], **options), expected)


def test_streaming_gives_every_token_once(llama: tuple, prompts: tuple) -> None:
    ids, mask = prompts
    streamer = Collector()
    options = {"max_new_tokens": 40, "do_sample": True, "seed": 2}
    out = tpuport.generate(llama[1], ids, mask, streamer=streamer, **options)
    assert torch.equal(streamer.parts[0], ids)
    assert torch.equal(torch.stack(streamer.parts[1:], dim=1), out[:, 20:])
    assert streamer.ended == 1
    assert torch.equal(out, tpuport.generate(llama[1], ids, mask, **options))


@pytest.mark.slow  # a stream that breaks, and tests/compilation/test_interrupts.py
def test_an_interrupted_stream_leaves_everything_usable(llama: tuple, prompts: tuple) -> None:
    class Interrupted(Collector):
        def put(self, value: torch.Tensor) -> None:
            super().put(value)
            if len(self.parts) == 5:
                raise KeyboardInterrupt

    streamer = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        tpuport.generate(llama[1], prompts[0], max_new_tokens=40, streamer=streamer)
    assert streamer.ended == 1
    out = tpuport.generate(llama[1], prompts[0][:1], max_new_tokens=8)
    assert torch.equal(out, llama[0].generate(prompts[0][:1], max_new_tokens=8))


def test_other_settings_and_prompts_of_the_bucket_compile_nothing(llama: tuple, prompts: tuple) -> None:
    ported, ids = llama[1], prompts[0][:1]
    tpuport.generate(ported, ids, max_new_tokens=20)
    decoder = decoder_for(ported)
    before = decoder.prefill.compilations, decoder.advance.compilations
    for options in (
        {"do_sample": True, "temperature": 0.7, "top_k": 5},
        {"do_sample": True, "top_p": 0.9, "min_p": 0.02, "seed": 9},
        {"repetition_penalty": 1.2, "min_new_tokens": 4, "eos_token_id": [5, 6, 7]},
        {"streamer": Collector()},
        {"stopping_criteria": [AtLength()]},
    ):
        tpuport.generate(ported, ids[:, 3:], **({"max_new_tokens": 17} | options))
    assert (decoder.prefill.compilations, decoder.advance.compilations) == before


@pytest.mark.parametrize(
    ("options", "name"),
    [({"max_new_tokens": 300}, "max_position_embeddings"), ({"max_cache_len": 24}, "max_cache_len")],
)
def test_what_does_not_fit_is_refused_before_compiling(
    llama: tuple, prompts: tuple, options: dict, name: str
) -> None:
    decoder = decoder_for(llama[1])
    before = decoder.prefill.compilations
    with pytest.raises(PortError, match=name):
        tpuport.generate(llama[1], prompts[0], **options)
    assert decoder.prefill.compilations == before


def test_without_a_length_the_model_s_own_positions_end_it(llama: tuple) -> None:
    reference, ported = llama
    ids = torch.randint(3, 128, (1, 256), generator=torch.Generator().manual_seed(4))
    with pytest.warns(UserWarning, match="model-agnostic default"):
        expected = reference.generate(ids[:, :250], eos_token_id=None)
    assert expected.shape == (1, 256)
    assert torch.equal(tpuport.generate(ported, ids[:, :250], eos_token_id=[]), expected)
    with pytest.raises(PortError, match=r"leaves 0 to generate(.|\n)*max_position_embeddings"):
        tpuport.generate(ported, ids)
    with pytest.raises(PortError, match="do not fit max_position_embeddings"):
        tpuport.generate(ported, ids[:, :250], max_new_tokens=20)


@pytest.mark.parametrize("pad", [-1, 128])
def test_padding_is_a_token_where_a_row_may_need_it(llama: tuple, prompts: tuple, pad: int) -> None:
    ids, mask = prompts
    options = {"max_new_tokens": 4, "pad_token_id": pad}
    before = decoder_for(llama[1]).prefill.compilations
    with pytest.raises(PortError, match=f"pad_token_id is {pad}"):
        tpuport.generate(llama[1], ids, mask, eos_token_id=2, **options)
    with pytest.raises(PortError, match=f"pad_token_id is {pad}"):
        tpuport.generate(llama[1], ids, mask, eos_token_id=[], stopping_criteria=[AtLength()], **options)
    assert decoder_for(llama[1]).prefill.compilations == before
    alone = tpuport.generate(llama[1], ids[:1], eos_token_id=2, **options)
    assert torch.equal(alone, llama[0].generate(ids[:1], eos_token_id=2, **options))


@pytest.mark.parametrize(
    ("window", "new"),
    [*(pytest.param(64, new, marks=pytest.mark.slow) for new in (20, 32)), (8, 10)],
)
def test_local_layers_are_right_or_refused(prompts: tuple, window: int, new: int) -> None:
    config = GPTNeoConfig(
        vocab_size=128, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
        window_size=window, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    reference = GPTNeoForCausalLM(config).eval()
    for parameter in reference.parameters():
        parameter.data.mul_(8.0)
    ported = GPTNeoForCausalLM(config).eval()
    ported.load_state_dict(reference.state_dict())
    tpuport.port(ported)
    ids = prompts[0][:1]
    if window == 8:
        with pytest.raises(PortError, match=r"local layers see 8 positions(.|\n)*GPTNeoForCausalLM"):
            tpuport.generate(ported, ids, max_new_tokens=new)
        return
    expected = reference.generate(ids, max_new_tokens=new, eos_token_id=None)
    assert torch.equal(tpuport.generate(ported, ids, max_new_tokens=new, eos_token_id=[]), expected)


@pytest.mark.usefixtures("small_heap")
def test_a_model_is_freed_with_its_programs(make_pair: Callable, prompts: tuple) -> None:
    model = make_pair("llama")[1]
    tpuport.generate(model, prompts[0][:1], max_new_tokens=2)
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


@pytest.mark.slow  # tests/test_porting.py changes what `generate` reads
def test_a_changed_config_makes_new_programs(make_pair: Callable, prompts: tuple) -> None:
    reference, ported = make_pair("mistral")
    ids, results = prompts[0][:1], []
    for window in (8, 3):
        for model in (reference, ported):
            model.config.sliding_window = window
        results.append(tpuport.generate(ported, ids, max_new_tokens=12, eos_token_id=[]))
        assert torch.equal(results[-1], reference.generate(ids, max_new_tokens=12, eos_token_id=None))
    assert not torch.equal(*results), "the window changes nothing: the test shows nothing"
    decoder = decoder_for(ported)
    tpuport.generate(ported, ids, max_new_tokens=12, eos_token_id=[])
    assert decoder_for(ported) is decoder
    assert decoder.prefill.compilations == 1


@pytest.mark.slow  # tests/test_porting.py changes a module without porting it again
def test_a_changed_module_is_seen_after_porting_again(make_pair: Callable, prompts: tuple) -> None:
    reference, ported = make_pair("llama")
    ids, options = prompts[0][:1], {"max_new_tokens": 12}
    before = tpuport.generate(ported, ids, eos_token_id=[], **options)
    for model in (reference, ported):
        model.model.rotary_emb.attention_scaling = 3.0
    expected = reference.generate(ids, eos_token_id=None, **options)
    assert not torch.equal(before, expected), "the scaling changes nothing: the test shows nothing"
    assert torch.equal(tpuport.generate(tpuport.port(ported), ids, eos_token_id=[], **options), expected)


def test_what_a_tokenizer_gives_may_come_as_it_is(llama: tuple, prompts: tuple) -> None:
    ids, mask = prompts
    expected = tpuport.generate(llama[1], ids, mask, max_new_tokens=5)
    encoded = BatchEncoding({"input_ids": ids, "attention_mask": mask})
    assert torch.equal(tpuport.generate(llama[1], encoded, max_new_tokens=5), expected)
    with pytest.raises(PortError, match=r"BatchEncoding with input_ids, token_type_ids"):
        tpuport.generate(llama[1], BatchEncoding({"input_ids": ids, "token_type_ids": mask}))


def test_ids_may_be_on_the_device(llama: tuple, prompts: tuple) -> None:
    ids = prompts[0][:1]
    on_device = compat.wrap(compat.to_jax(ids))
    got = tpuport.generate(llama[1], on_device, max_new_tokens=5)
    assert torch.equal(got, tpuport.generate(llama[1], ids, max_new_tokens=5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda ported: tpuport.compile(ported), "CompiledFunction(.|\n)*the ported model itself"),
        (lambda ported: None, "this is a NoneType"),
        (lambda ported: tpuport.port(torch.nn.Linear(2, 2)), "this is a Linear"),
        (lambda ported: tpuport.port(LlamaModel(ported.config)), "no head(.|\n)*AutoModelForCausalLM"),
    ],
)
def test_what_is_no_language_model_is_named(
    llama: tuple, prompts: tuple, make: Callable, message: str
) -> None:
    with pytest.raises(PortError, match=message):
        tpuport.generate(make(llama[1]), prompts[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stopping_criteria": AtLength()}, "not a list of StoppingCriteria"),
        ({"stopping_criteria": [5]}, "not a list of StoppingCriteria"),
        ({"streamer": object()}, r"put\(token_ids\)"),
        ({"seed": "a"}, "seed='a'"),
    ],
)
def test_bad_companions_are_refused(llama: tuple, prompts: tuple, options: dict, message: str) -> None:
    decoder = decoder_for(llama[1])
    before = decoder.prefill.compilations
    with pytest.raises(PortError, match=message):
        tpuport.generate(llama[1], prompts[0], max_new_tokens=2, **options)
    assert decoder.prefill.compilations == before


@pytest.mark.slow  # tests/compilation/test_lost_values.py
def test_a_state_in_an_attribute_is_named() -> None:
    """By the line that assigns it in a call, and not by that of the constructor."""

    class Remembering(LlamaForCausalLM):
        def __init__(self, config: LlamaConfig) -> None:
            super().__init__(config)
            self.last: Any = None

        def forward(self, *inputs: Any, **options: Any) -> Any:
            output = super().forward(*inputs, **options)
            if self.last is not None:
                output.logits = output.logits + self.last.mean()
            self.last = output.logits
            return output

    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = tpuport.port(Remembering(config).eval())
    line = (
        r"(?s)last was assigned inside of the loop.*test_generating\.py, line \d+, in \S*Remembering\.forward"
    )
    with pytest.raises(PortError, match=line):
        tpuport.generate(model, torch.tensor([[5, 6]]), max_new_tokens=3)


@pytest.mark.slow  # tests/trace_errors/test_verbs.py has `generate` name two lines
def test_the_line_that_cannot_be_traced_is_named(make_pair: Callable, prompts: tuple) -> None:
    ported = make_pair("llama")[1]
    inner = ported.model.norm.forward
    ported.model.norm.forward = lambda x: inner(x) if x.sum().item() else x
    with pytest.raises(
        PortError, match=r"(?s)cannot be traced: `\.item.*where: .*test_generating\.py, line \d+.*TPU201"
    ):
        tpuport.generate(ported, prompts[0], max_new_tokens=2)


@pytest.mark.parametrize("part", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_a_stream_that_breaks_is_ended(llama: tuple, prompts: tuple, part: int) -> None:
    class Broken(Collector):
        def put(self, value: torch.Tensor) -> None:
            super().put(value)
            if len(self.parts) == part:
                raise OSError("the reader has gone")

    streamer = Broken()
    with pytest.raises(OSError, match="gone"):
        tpuport.generate(llama[1], prompts[0], max_new_tokens=40, streamer=streamer)
    assert streamer.ended == 1


@pytest.mark.slow  # eight threads in test_load.py
def test_two_threads_at_once(make_pair: Callable, prompts: tuple) -> None:
    """Neither sees the other's traced weights, though both trace the one module at the same time."""
    reference, ported = make_pair("llama")
    lengths = [5, 45]
    with concurrent.futures.ThreadPoolExecutor(len(lengths)) as pool:
        calls = [pool.submit(tpuport.generate, ported, prompts[0][:1], max_new_tokens=n) for n in lengths]
        results = [call.result(timeout=300) for call in calls]
    for new, result in zip(lengths, results, strict=True):
        assert torch.equal(result, reference.generate(prompts[0][:1], max_new_tokens=new))
