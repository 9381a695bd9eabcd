"""Classes whose own `generate` runs on the host, over compiled calls: the tokens that it gives in torch."""

import copy
from typing import Any

import jax
import pytest
import torch
from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    ParakeetCTCConfig,
    ParakeetForCTC,
)
from transformers.utils.generic import ModelOutput

import tpuport
from tests.cache_names import CACHE
from tpuport.generation.module_views import ModuleCalls, make_view

LLAMA = LlamaConfig(
    vocab_size=96, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, pad_token_id=0, eos_token_id=None,
)  # fmt: skip


@pytest.fixture(scope="module")
def recognizer() -> Any:
    encoder = {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64,
        "num_mel_bins": 16, "subsampling_conv_channels": 8, "subsampling_factor": 4, "conv_kernel_size": 3,
    }  # fmt: skip
    return ParakeetForCTC(ParakeetCTCConfig(vocab_size=40, pad_token_id=39, encoder_config=encoder)).eval()


@pytest.mark.parametrize(
    "options", [pytest.param({}, marks=pytest.mark.slow), {"return_dict_in_generate": True}]
)
def test_ctc(recognizer: Any, options: dict[str, bool]) -> None:
    mask = torch.ones(2, 64, dtype=torch.long)
    mask[1, 40:] = 0
    inputs = {"input_features": torch.randn(2, 64, 16), "attention_mask": mask}
    wanted = recognizer.generate(**inputs, **options)
    assert len(torch.unique(recognizer.generate(**inputs))) > 3
    model = tpuport.port(copy.deepcopy(recognizer), mesh=tpuport.create_mesh(devices=jax.devices()[:1]))
    tokens = model.generate(**inputs, **options)
    if options:
        torch.testing.assert_close(tokens.logits, wanted.logits)
        tokens, wanted = tokens.sequences, wanted.sequences
    assert torch.equal(tokens, wanted)


@pytest.fixture(scope="module")
def captioner() -> Any:
    """Its `generate` calls one module, and the `generate` of another one with what that gives."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    text = {
        **sizes, "vocab_size": 40, "encoder_hidden_size": 16, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 3,
        "pad_token_id": 0,
    }  # fmt: skip
    config = BlipConfig(text_config=text, vision_config={**sizes, "image_size": 8, "patch_size": 4})
    torch.manual_seed(0)
    model = BlipForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.5)
    return model


@pytest.mark.parametrize("beams", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_modules_that_are_called(captioner: Any, beams: int) -> None:
    images = torch.randn(2, 3, 8, 8)
    call = {"input_ids": torch.tensor([[1, 7, 8, 2], [1, 9, 6, 2]])}
    options: dict[str, Any] = {"max_new_tokens": 3, "num_beams": beams, "do_sample": False}

    def run(model: Any, images: torch.Tensor) -> torch.Tensor:
        return model.generate(images, **copy.deepcopy(call), **options)

    wanted = run(captioner, images)
    assert not torch.equal(wanted, run(captioner, -2 * images)), "the images have to matter"
    model = tpuport.port(copy.deepcopy(captioner), mesh=tpuport.create_mesh(devices=jax.devices()[:1]))
    assert torch.equal(run(model, images), wanted)
    programs = [function.program for function in model.generate.module_calls.functions.values()]
    counts = [program.compilations for program in programs]
    assert torch.equal(run(model, -2 * images), run(captioner, -2 * images))
    assert counts == [program.compilations for program in programs], "other images compile nothing"
    assert torch.equal(run(tpuport.to_cpu(model), images), wanted)


def test_steps_that_ask_for_values_share_a_program(caplog: pytest.LogCaptureFixture) -> None:
    """On the host, with the static cache that transformers has for the class."""

    class Asking(LlamaForCausalLM):
        def forward(self, input_ids: Any = None, **inputs: Any) -> Any:  # type: ignore[override]
            output = super().forward(input_ids, **inputs)
            if (input_ids == 7).any():
                output.logits = -output.logits
            return output

    torch.manual_seed(0)
    reference = Asking(LLAMA).eval()
    model = tpuport.port(copy.deepcopy(reference), mesh=tpuport.create_mesh(devices=jax.devices()[:1]))
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
    for last, programs in ((8, 2), (7, 3)):
        ids = torch.tensor([[5, 6, 9, last], [5, 5, 8, 9]])
        assert torch.equal(model.generate(ids, **options), reference.generate(ids, **options))
        assert model.forward.compiled.program.compilations == programs
    assert caplog.text.count("transformers' own loop") == 1, "it is said once"


def test_inputs_that_the_loop_on_the_device_does_not_pass_on() -> None:
    """transformers' loop, on the host: as of every other argument of a model's forward."""
    torch.manual_seed(0)
    reference = LlamaForCausalLM(LLAMA).eval()
    model = tpuport.port(copy.deepcopy(reference), mesh=tpuport.create_mesh(devices=jax.devices()[:1]))
    embedded = torch.randn(2, 4, 16)
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False}
    wanted = reference.generate(inputs_embeds=embedded, **options)
    assert not torch.equal(wanted, reference.generate(inputs_embeds=-embedded, **options))
    assert torch.equal(model.generate(inputs_embeds=embedded, **options), wanted)
    with pytest.raises(tpuport.PortError, match="needs a prompt"):
        model.generate(**options)


class KeepsItsCache(LlamaForCausalLM):
    """Its own `generate` goes on with the cache that it passed, as DiffusionGemma's does for each step of a canvas."""

    def generate(self, input_ids: torch.Tensor, max_new_tokens: int = 3) -> torch.Tensor:
        cache, tokens = DynamicCache(config=self.config), [input_ids]
        for _ in range(max_new_tokens):
            logits = self(tokens[-1], **{CACHE: cache}).logits
            tokens.append(logits[:, -1:].argmax(-1))
        return torch.cat(tokens, 1)


class MakesAnotherCache(KeepsItsCache):
    """It returns one more cache than it was passed, as Voxtral's does, which has one of its sound."""

    def forward(self, input_ids: Any = None, **inputs: Any) -> Any:  # type: ignore[override]
        output = super().forward(input_ids, **inputs)
        other = super().forward(input_ids[:, :1], **{CACHE: DynamicCache(config=self.config)})
        caches = {CACHE: output[CACHE], f"sound_{CACHE}": other[CACHE]}
        return ModelOutput(logits=output.logits, **caches)


@pytest.mark.parametrize("cls", [KeepsItsCache, MakesAnotherCache])
def test_the_cache_that_code_passed_goes_on(cls: type[LlamaForCausalLM]) -> None:
    torch.manual_seed(0)
    model = cls(LLAMA).eval()
    ids = torch.arange(5, 17).reshape(2, 6)
    wanted = model.generate(ids)
    assert torch.equal(tpuport.port(model).generate(ids), wanted)


class TakesTheSecond(LlamaForCausalLM):
    """A loop of its own behind the general `generate`, with noise, as VibeVoice's has one that makes sound."""

    def _sample(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:  # type: ignore[override]
        for _ in range(4):
            logits = self(input_ids).logits[:, -1]
            noise = torch.randn(logits.shape, device=next(self.model.parameters()).device)
            input_ids = torch.cat([input_ids, (logits + noise).topk(2).indices[:, 1:]], 1)
        return input_ids


@pytest.mark.slow  # the generate of one's own below
def test_a_loop_of_ones_own_behind_the_general_generate() -> None:
    torch.manual_seed(0)
    reference = TakesTheSecond(LLAMA).eval()
    ported = tpuport.port(copy.deepcopy(reference), mesh=tpuport.create_mesh(devices=jax.devices()[:1]))
    tokens = []
    for model in (reference, ported):
        torch.manual_seed(3)
        tokens.append(model.generate(torch.arange(5, 17).reshape(2, 6), max_new_tokens=4))
    assert torch.equal(*tokens)
    of_seeds = [tpuport.generate(ported, tokens[0], max_new_tokens=4, seed=seed) for seed in (5, 5, 6)]
    assert torch.equal(*of_seeds[:2])
    assert not torch.equal(*of_seeds[1:])


def test_a_generate_of_ones_own() -> None:
    class Own(LlamaForCausalLM):
        def generate(self, input_ids: Any, **options: Any) -> Any:  # type: ignore[override]
            hidden = self.model(input_ids).last_hidden_state
            return (hidden @ self.lm_head.weight.T + options["bias"]).argmax(-1)

    torch.manual_seed(0)
    reference = Own(LLAMA).eval()
    model = tpuport.port(copy.deepcopy(reference))
    ids, bias = torch.tensor([[5, 6, 7]]), torch.randn(96)
    wanted = reference.generate(ids, bias=bias)
    assert torch.equal(model.generate(ids, bias=bias), wanted)
    assert torch.equal(tpuport.generate(model, ids, bias=bias), wanted)
    assert torch.equal(tpuport.generate(model, {"input_ids": ids}, bias=bias), wanted)


class Vocoder(torch.nn.Module):
    """Repeats each unit as often as it predicts, as those of Seamless M4T and VITS do."""

    def __init__(self) -> None:
        super().__init__()
        self.units = torch.nn.Embedding(8, 4)
        self.lengths = torch.nn.Linear(4, 1)
        self.sound = torch.nn.Linear(4, 2)

    def forward(self, units: torch.Tensor) -> torch.Tensor:
        states = self.units(units)
        lengths = (4 * self.lengths(states)[..., 0].sigmoid()).round().int()
        return self.sound(states.repeat_interleave(lengths, dim=0))


def test_a_module_that_decides_by_its_products_runs_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Vocoder())
    units = torch.arange(8)
    expected = model[0](units)
    ported = tpuport.port(copy.deepcopy(model))
    view: Any = make_view(ported, ModuleCalls(ported))
    for _ in range(2):
        torch.testing.assert_close(view[0](units), expected)
    assert caplog.text.count("Vocoder runs on the host") == 1


class Codes(torch.nn.Module):
    """Runs the first of its layers, as quantizers of sound do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        self.last = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:2]:
            x = layer(x)
        return self.last[:2](x) + self.layers[-1](x)


def test_some_of_a_list_of_modules() -> None:
    reference = Codes()
    ported = tpuport.port(copy.deepcopy(reference))
    view: Any = make_view(ported, ModuleCalls(ported))
    x = torch.randn(2, 4)
    torch.testing.assert_close(view.encode(x), reference.encode(x))
