"""How large a model's key/value cache is, found out without a weight: the model runs one token on the meta device."""

import copy
from collections.abc import Callable, Hashable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from tpuport.checkpoint.device_layout import as_torch_dtype
from tpuport.errors import PortError
from tpuport.generation.cache import FixedLayer, decoding_cache
from tpuport.static_values import exact_key

# Elements that one position takes in each layer, by config; a large model takes a second or two to ask.
_elements: dict[Hashable, list[int]] = {}
# What models raise that the meta device, or the config itself, does not suit.
_ERRORS = (
    AssertionError, AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


def kv_cache_bytes(config: PretrainedConfig, batch: int, length: int, dtype: torch.dtype | str) -> int:
    """Bytes of the key/value cache that `generate` makes, over all devices.

    Sliding-window layers hold min(window, length) positions; layers without attention hold nothing. How many elements
    a position takes is asked of the model itself: heads are shared in some families, and compressed in others.

    Args:
        config: a transformers config; its text part is used.
        batch: rows of the batch.
        length: cache length in positions.
        dtype: dtype of keys and values, or its name.

    Raises:
        PortError: a batch or length below 1, no dtype, or a model whose cache is not one of keys and values.
    """
    wrong = [f"{name}={n!r}" for name, n in (("batch", batch), ("length", length)) if not _counts(n)]
    if wrong:
        raise PortError("rows and positions are counted from 1", where=", ".join(wrong))
    kept = as_torch_dtype(dtype)
    if kept is None:
        raise PortError("a cache has a dtype", where="dtype=None", fix="give torch.bfloat16 or 'bfloat16'")
    text = config.get_text_config(decoder=True)
    layers, elements = _asked(text, lambda: decoding_cache(text, length).layers), _elements_of(text)
    if len(layers) != len(elements):
        raise PortError(
            "the layers of this cache are not those of the model",
            where=type(text).__name__,
            fix="generate once, and measure what it takes",
        )
    others = {
        type(x).__name__ for x, n in zip(layers, elements, strict=True) if n and not isinstance(x, FixedLayer)
    }
    if others:
        raise PortError(
            "no formula for the size of this cache", where=", ".join(sorted(others)), fix="measure the arrays"
        )
    slots = [layer.slots if isinstance(layer, FixedLayer) else 0 for layer in layers]
    return batch * sum(n * each for n, each in zip(slots, elements, strict=True)) * kept.itemsize


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _asked(config: PretrainedConfig, question: Callable[[], Any]) -> Any:
    """The answer; PortError where the config does not make a model, or the model no such cache."""
    try:
        return question()
    except _ERRORS as error:
        raise PortError(
            f"the cache of this model cannot be measured without its weights: {error!r:.200}",
            where=type(config).__name__,
            fix="generate once, and measure what it takes",
        ) from error


def _elements_of(config: PretrainedConfig) -> list[int]:
    """Elements of keys and values together, for one row and one position, of each layer of the cache."""
    key = exact_key(config)
    if key not in _elements:
        _elements[key] = _asked(config, lambda: _measured(copy.deepcopy(config)))
    return _elements[key]


def _measured(config: PretrainedConfig) -> list[int]:
    # bfloat16, because the grouped product of experts knows no other type on this device.
    with torch.device("meta"), torch.no_grad():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        # Some models look for it among the ids, which have no values here; some configs refuse to be without it.
        vars(model.config)["pad_token_id"] = None
        out = model(input_ids=torch.ones(1, 1, dtype=torch.int64), use_cache=True, return_dict=True)
    held = [(getattr(x, "keys", None), getattr(x, "values", None)) for x in out.past_key_values.layers]
    return [sum(x.numel() for x in pair if x is not None) for pair in held]
