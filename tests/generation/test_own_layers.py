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
    # Its cache's layers are known as soon as the model's class is.
    model_class: Any = transformers.UnlimitedOcrForConditionalGeneration
    assert has_own_layers(model_class.config_class(text_config=SMALL))
    for general in (
        transformers.Gemma2Config(**SMALL),
        transformers.WhisperConfig(),
        transformers.BltConfig(),
    ):
        assert not has_own_layers(general)
