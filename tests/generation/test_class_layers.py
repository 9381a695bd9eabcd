"""Caches of fixed shape whose layers are a model's own class, which programs do not get: parts of one buffer."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from tpuport import PortError
from tpuport.generation import module_views
from tpuport.generation.decoding_cache import has_class_layers

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "sliding_window": 4,
}


def test_whose_layers_are_a_models_own() -> None:
    # Its cache's layers are known as soon as the model's class is.
    model_class: Any = transformers.UnlimitedOcrForConditionalGeneration
    assert has_class_layers(model_class.config_class(text_config=SMALL))
    for general in (
        transformers.Gemma2Config(**SMALL),
        transformers.WhisperConfig(),
        transformers.BltConfig(),
    ):
        assert not has_class_layers(general)


def test_such_a_cache_is_refused_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model_class: Any = transformers.UnlimitedOcrForConditionalGeneration
    view = SimpleNamespace(
        config=model_class.config_class(text_config=SMALL), generation_config=transformers.GenerationConfig()
    )
    monkeypatch.setattr(module_views, "module_of", lambda view: torch.nn.Identity())
    with pytest.raises(PortError, match="cache of fixed shape") as refused:
        module_views.run_general_generate(view, cache_implementation="static")
    assert refused.value.where == "cache_implementation='static'"
    view.generation_config.cache_implementation = "static"
    with pytest.raises(PortError, match="cache of fixed shape"):
        module_views.run_general_generate(view)
