"""Every field of GenerationConfig with encoder-decoders, as test_every_option.py has it with a decoder."""

import copy
from typing import Any, NamedTuple

import jax
import pytest
import torch

import tpuport
from tests.generation import test_encoder_decoder, test_whisper
from tests.generation.test_every_option import (
    BASE,
    BEAMS,
    ENDING_BEAMS,
    EQUAL,
    PAIRS,
    WITHOUT_EFFECT,
    Options,
    assert_equal,
    differ,
    repeat_draws,
    with_end,
)
from tpuport import PortError

# Of models that ask for int64, where `tpuport.enable` is not in force.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64"),
    # Of transformers, which ignores what reads an encoder's tokens if there are none.
    pytest.mark.filterwarnings("ignore:Passing `encoder_"),
]
FAMILIES = ("bart", "whisper")
# BART's has no id for padding of its own.
_BASE = {name: value for name, value in BASE.items() if name != "pad_token_id"}
_REFUSED = {"guidance_scale": 2.5, "prefill_chunk_size": 7, "low_memory": True}
# The lengths of a decoder's prompt.
_OPTIONS = EQUAL | {
    "max_length": ({"max_length": 6}, {"max_length": 9, "max_new_tokens": None}),
    "min_length": ({"min_length": 8}, {"eos_token_id": -100}),
}
_OPTIONS = {name: options for name, options in _OPTIONS.items() if name not in _REFUSED}
_TOGETHER = {name: options for name, options in PAIRS.items() if _REFUSED.keys().isdisjoint(options)}
# Whisper's own `generate` draws at temperatures above 0, and divides a recording at timestamps, which are drawn too.
_WHISPER_DRAWS = {"temperature": 0.7, "suppress_tokens": list(range(109, 160))}


class Model(NamedTuple):
    """A model in torch and the same ported, and a call of both; `prompt` columns of the tokens are the decoder's."""

    reference: Any
    ported: Any
    inputs: Options
    prompt: int

    def generate(self, model: Any, options: Options) -> Any:
        torch.manual_seed(0)
        return model.generate(**self.inputs, **options)

    def compare(self, options: Options) -> Any:
        """What transformers gives, which is what the ported model gives; if tokens are drawn, by its draws."""
        ours = self.generate(self.ported, options)
        with pytest.MonkeyPatch.context() as patch:
            if draws(options):
                repeat_draws(patch, ours, self.prompt)
            theirs = self.generate(self.reference, options)
        assert_equal(ours, theirs)
        return theirs


def draws(options: Options) -> bool:
    return bool(options.get("do_sample")) or "temperature" in options


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Model:
    # Whisper's positions are random, and with these it chooses texts and timestamps.
    torch.manual_seed(4)
    if request.param == "whisper":
        reference: Any = test_whisper.build()
        inputs = {"input_features": test_whisper.features(100), "language": "en"}
        prompt = 4
    else:
        reference = test_encoder_decoder.build(request.param)
        ids = torch.randint(3, 128, (3, 20), generator=torch.Generator().manual_seed(1))
        mask = torch.ones_like(ids)
        mask[1, 13:] = mask[2, 7:] = 0
        inputs = {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}
        prompt = 1
    mesh = tpuport.create_mesh(devices=jax.devices()[:1])
    return Model(reference, tpuport.port(copy.deepcopy(reference), mesh=mesh), inputs, prompt)


@pytest.mark.parametrize("name", _REFUSED)
def test_what_is_for_decoders_alone_is_refused(model: Model, name: str) -> None:
    options = {name: _REFUSED[name], "max_new_tokens": 2}
    with pytest.raises(PortError, match=rf"(?s){name}.+(for decoder-only models|refuses it too)"):
        model.generate(model.ported, options | (BEAMS if name == "low_memory" else {}))


# Of Whisper, whose own `generate` pads with its end, and has a prompt of several tokens and no ids to read.
_WITHOUT_EFFECT_ON_WHISPER = {
    "early_stopping", "length_penalty", "encoder_repetition_penalty", "encoder_no_repeat_ngram_size",
    "forced_bos_token_id", "exponential_decay_length_penalty", "pad_token_id",
}  # fmt: skip


@pytest.mark.slow  # test_encoder_decoder.py, whose options are in one program
@pytest.mark.parametrize("name", _OPTIONS)
def test_what_has_an_effect_has_it_as_in_transformers(model: Model, name: str) -> None:
    is_whisper = "language" in model.inputs
    plain = model.generate(model.reference, {"max_new_tokens": 8})
    end = int(plain[1, 4])
    options, needed = (_for_family(with_end(part, end), is_whisper) for part in _OPTIONS[name])
    expected = model.compare(_BASE | needed | options)
    if not (is_whisper and name in _WITHOUT_EFFECT_ON_WHISPER):
        without = model.generate(model.reference, _BASE | needed)
        assert differ(expected, without), "the option changes nothing"


def _for_family(options: Options, is_whisper: bool) -> Options:
    is_drawn = is_whisper and options.get("do_sample")
    return _WHISPER_DRAWS | options if is_drawn else options


@pytest.mark.slow  # test_every_option.py
def test_what_has_no_effect_has_none(model: Model) -> None:
    for options in WITHOUT_EFFECT.values():
        model.compare(_BASE | options)


@pytest.mark.slow  # test_every_option.py
@pytest.mark.parametrize("name", _TOGETHER)
def test_options_together(model: Model, name: str) -> None:
    model.compare(_BASE | _for_family(_TOGETHER[name], "language" in model.inputs))


@pytest.mark.slow  # test_beam_search.py
def test_sampled_beams_have_the_scores_of_transformers(model: Model) -> None:
    """Of the first token: which sequences are drawn then depends on the generator."""
    options = _BASE | ENDING_BEAMS | {"do_sample": True, "top_p": 0.8, "typical_p": 0.7}
    options = _for_family(options, "language" in model.inputs)
    ours, theirs = (model.generate(each, options) for each in (model.ported, model.reference))
    assert ours["sequences"].shape[0] == theirs["sequences"].shape[0]
    torch.testing.assert_close(ours["scores"][0], theirs["scores"][0], rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # test_assisted_decoding.py
@pytest.mark.parametrize("name", ["assistant_early_exit", "prompt_lookup_num_tokens"])
def test_another_way_leads_to_the_same_tokens(model: Model, name: str) -> None:
    """Of one row, as transformers drafts."""
    row = {
        key: value[:1] if isinstance(value, torch.Tensor) else value for key, value in model.inputs.items()
    }
    expected = model.reference.generate(**row, max_new_tokens=8)
    assert torch.equal(model.ported.generate(**row, max_new_tokens=8, **{name: 2}), expected)
