"""Caches of fixed shape whose layers are a model's own class, which programs do not get: parts of one buffer."""

from typing import Any

import transformers

from tpuport.generation.decoding_cache import has_own_layers

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "sliding_window": 4,
}


def test_whose_layers_are_a_models_own() -> None:
    own: Any = transformers.UnlimitedOcrForConditionalGeneration.config_class(**{"text_config": SMALL})
    assert has_own_layers(own)
    for general in (
        transformers.Gemma2Config(**SMALL),
        transformers.WhisperConfig(),
        transformers.BltConfig(),
    ):
        assert not has_own_layers(general)
