"""Tiny models of transformers' classes that have no `forward`: they only generate, with models of their own.

A call has all options of its `generate`, which are other ones for each of these classes.
"""

from collections.abc import Callable
from typing import Any

import torch
import transformers

from benchmarks import tiny_configs
from benchmarks.tiny_transformers_table import ids

Call = dict[str, Any]
_BARK: dict[str, Any] = {"num_layers": 1, "num_heads": 4, "hidden_size": 32}
_VISION: dict[str, Any] = {"vision_start_token_id": 252, "vision_end_token_id": 253}
_THINKER: dict[str, Any] = {**_VISION, "audio_config": {"max_source_positions": 64}}


def _bark() -> tuple[torch.nn.Module, Call]:
    """Three texts in one another: of the words, of coarse sound, and of fine sound, which become samples."""
    from transformers.models.bark.generation_configuration_bark import BarkGenerationConfig

    parts = {
        # With the sizes of the vocabularies that its generation divides.
        "semantic_config": {**_BARK, "input_vocab_size": 129_600, "output_vocab_size": 10_048},
        "coarse_acoustics_config": {**_BARK, "input_vocab_size": 12_096, "output_vocab_size": 12_096},
        "fine_acoustics_config": {**_BARK, "input_vocab_size": 1056, "output_vocab_size": 1056},
        "codec_config": {"num_filters": 4, "hidden_size": 16},
    }
    model = transformers.BarkModel(transformers.BarkConfig(**parts))
    settings = BarkGenerationConfig()
    for name in ("semantic_config", "coarse_acoustics_config", "fine_acoustics_config"):
        setattr(settings, name, getattr(settings, name).to_dict())
    model.generation_config = settings
    # As its processor fills up texts.
    text = torch.nn.functional.pad(ids(1, 12), (0, 244))
    call = {"attention_mask": (text > 0).long(), "do_sample": False, "semantic_max_new_tokens": 4}
    return model, {"input_ids": text, **call}


def _qwen2_5_omni() -> tuple[torch.nn.Module, Call]:
    """Text, from it codes of sound, and from them samples."""
    fields = {
        "thinker_config": {**_THINKER, "vision_config": {"image_size": None}},
        "talker_config": {
            **_VISION, "tts_text_start_token_id": 20, "tts_text_end_token_id": 21, "tts_text_pad_token_id": 22,
            "audio_start_token_id": 254, "audio_end_token_id": 255,
        },
        "token2wav_config": {"bigvgan_config": {"upsample_initial_channel": 64}},
    }  # fmt: skip
    model: Any = _omni(transformers.Qwen2_5OmniForConditionalGeneration, fields)
    waves = model.config.token2wav_config.dit_config
    voice = {"cond": torch.randn(1, waves.enc_emb_dim), "ref_mel": torch.randn(1, 10, waves.mel_dim)}
    # Which checkpoints have in a file of their own.
    model.speaker_map = {"Chelsie": {"bos_token": 30, **voice}}
    return model, {**_omni_call(), "talker_max_new_tokens": 4, "talker_do_sample": False}


def _qwen3_omni() -> tuple[torch.nn.Module, Call]:
    """Text alone."""
    fields = {
        "thinker_config": {**_THINKER, "vision_config": {"deepstack_visual_indexes": [0]}},
        "talker_config": {"spatial_merge_size": 2, "text_config": {"shared_expert_intermediate_size": 32}},
        "code2wav_config": {"decoder_dim": 64},
    }
    model = _omni(transformers.Qwen3OmniMoeForConditionalGeneration, fields)
    return model, {**_omni_call(), "generation_mode": "text"}


def _omni(cls: Any, fields: dict[str, Any]) -> torch.nn.Module:
    return cls(tiny_configs.small(cls.config_class, "narrow", fields))


def _omni_call() -> Call:
    text = ids(1, 8)
    options = {"thinker_max_new_tokens": 4, "thinker_do_sample": False}
    return {"input_ids": text, "attention_mask": torch.ones_like(text), **options}


_BUILDERS: dict[str, Callable[[], tuple[torch.nn.Module, Call]]] = {
    "BarkModel": _bark,
    "Qwen2_5OmniForConditionalGeneration": _qwen2_5_omni,
    "Qwen3OmniMoeForConditionalGeneration": _qwen3_omni,
}


def only_generates(name: str) -> bool:
    """Whether a class is one of these."""
    return name in _BUILDERS


def build(name: str) -> tuple[torch.nn.Module, list[Call]]:
    """The model and a call of its `generate`."""
    model, call = _BUILDERS[name]()
    return model.eval(), [call]
