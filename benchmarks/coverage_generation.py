"""What single classes want of a call of `generate` beside a model's inputs, for `benchmarks.coverage`.

Keys are the beginnings of class names, as in `tiny_transformers_table`.
"""

import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from benchmarks.tiny_transformers_table import lookup

Call = dict[str, Any]
_ENGLISH = {
    f"{part}_id": {"eng": 5}
    for part in ("text_decoder_lang_to_code", "t2u_lang_code_to", "vocoder_lang_code_to")
}


_NOTHING: Mapping[str, Any] = types.MappingProxyType({})


class Preparation(NamedTuple):
    """How a class is generated with.

    Attributes:
        settings: fields of the model's generation configuration that its class has no defaults for.
        options: arguments of `generate`.
        inputs: makes the call from the model and the inputs of its forward.
        needs_mask: whether one prompt has a mask, too.
    """

    settings: Mapping[str, Any] = _NOTHING
    options: Mapping[str, Any] = _NOTHING
    inputs: Callable[[Any, Call], Call] = lambda _, inputs: inputs
    needs_mask: bool = False


def _sound_alone(model: Any, _: Call) -> Call:
    """Eight frames of sound, from which the model makes the codes that it reads."""
    return {"input_values": torch.randn(2, 1, 8 * model.config.codec_config.frame_size)}


def _text_to_speak(model: Any, inputs: Call) -> Call:
    """Texts that end where the first frame of sound begins, the second of them padded on the left."""
    ids, mask = inputs["input_ids"].clone(), torch.ones_like(inputs["input_ids"])
    ids[:, -1] = model.config.audio_bos_token_id
    mask[1, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _with_a_mask(_: Any, inputs: Call) -> Call:
    """Texts of which the second is padded on the left."""
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, :3] = 0
    return {"input_ids": inputs["input_ids"], "attention_mask": mask}


def _fewer_tokens_than_sound(_: Any, inputs: Call) -> Call:
    """A few tokens of the text, which cannot be longer than the sound: its frames have 16."""
    tokens = {name: inputs[name][:, :6] for name in ("input_ids", "attention_mask")}
    return {**tokens, "input_features": inputs["input_features"]}


def _without_answer(_: Any, inputs: Call) -> Call:
    """A question about an image."""
    return {name: inputs[name] for name in ("pixel_values", "input_ids", "attention_mask")}


# The codebooks begin one after the other, with a token that is none of the 300 codes.
_CODES_OF_SOUND = Preparation(
    settings={"decoder_start_token_id": 300, "pad_token_id": 300, "num_return_sequences": 1}
)
# Of every token two characters, which the second version speaks.
_CHARACTERS = {"id_to_text": {str(token): "ab" for token in range(300)}, "char_to_id": {"a": 5, "b": 6}}

PREPARATIONS: dict[str, Preparation] = {
    # Its forward wants an answer, which `generate` writes.
    "BlipForQuestionAnswering": Preparation(inputs=_without_answer),
    # Without it the class forgets the tokens that it has generated.
    "Clvp": Preparation(options={"return_dict_in_generate": True}),
    "GradiumPhononTTS": Preparation(inputs=_text_to_speak),
    "KyutaiSpeechToText": Preparation(inputs=_sound_alone),
    "MusicgenForCausal": _CODES_OF_SOUND,
    "MusicgenMelodyForCausal": _CODES_OF_SOUND,
    "PocketTTS": Preparation(inputs=_text_to_speak),
    # A token for each of 21 composers.
    "Pop2Piano": Preparation(
        settings={"composer_to_feature_token": {f"composer{number}": 20 + number for number in range(1, 22)}}
    ),
    "VibeVoiceFor": Preparation(
        options={"return_dict_in_generate": True}, inputs=_with_a_mask, needs_mask=True
    ),
    "VoxtralRealtimeFor": Preparation(inputs=_fewer_tokens_than_sound),
    **{
        f"SeamlessM4T{version}{kind}": Preparation(
            settings={**_ENGLISH, **_CHARACTERS}, options={"tgt_lang": "eng"}
        )
        for version in ("", "v2")
        for kind in ("ForSpeechToSpeech", "ForTextToSpeech", "Model")
    },
}


def has_forward(model: torch.nn.Module) -> bool:
    """Whether a model can be called: some classes only generate, with models of their own."""
    return type(model).forward is not torch.nn.Module.forward


def preparation(model: Any) -> Preparation:
    """How the model's class is generated with."""
    return lookup(PREPARATIONS, type(model).__name__) or Preparation()


def prepare(model: Any) -> None:
    """Set what the class has no defaults for, in place."""
    settings = getattr(model, "generation_config", None)
    for name, value in preparation(model).settings.items():
        setattr(settings, name, value)


def call_inputs(model: Any, inputs: Call) -> Call:
    """The inputs of `generate`, from those of a forward."""
    call = preparation(model).inputs(model, inputs)
    return {name: value for name, value in call.items() if value is not None}


def result(output: Any) -> torch.Tensor:
    """What an output has to be compared: tokens, or latents or samples of sound."""
    for name in ("sequences", "speech_ids", "audio_latents"):
        value = getattr(output, name, None)
        if value is not None:
            return torch.as_tensor(value)
    if isinstance(output, list):
        return torch.nn.utils.rnn.pad_sequence(list(map(torch.as_tensor, output)), batch_first=True)
    if isinstance(output, tuple):
        # Of what a model writes and says the latter, without its length.
        parts = list(map(torch.as_tensor, output))
        return next((part for part in parts if part.is_floating_point()), parts[0])
    return torch.as_tensor(output)
