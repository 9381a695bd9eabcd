"""The ways in which a tiny model is called for the agreement, as the linter's scenarios have them.

Each scenario is a name and a function without arguments that makes one call. What has to be there before the call, such
as the tokens in a cache, is prepared when the scenario is made, so that it is not watched.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

# Beyond these, leaving out one argument after another takes long and shows little.
MOST_LEFT_OUT = 4
FREE_SLOTS = 4


class Scenario(NamedTuple):
    """One way to call a model."""

    name: str
    call: Callable[[], Any]
    # Arguments that the other calls of the model do not pass.
    passed: tuple[str, ...] = ()


def of_model(model: Any, inputs: list[dict[str, Any]]) -> Iterator[Scenario]:
    """Calls beside those of `inputs`: with fewer arguments, a decoding step, the two halves of an autoencoder."""
    if not inputs or not isinstance(model, torch.nn.Module):
        return
    yield from _without_each(model, inputs[0])
    yield from _decoding_steps(model, inputs[0])
    yield from _coding(model, inputs[0])


def _without_each(model: Any, call: dict[str, Any]) -> Iterator[Scenario]:
    parameters = inspect.signature(model.forward).parameters
    optional = [name for name in call if name in parameters and parameters[name].default is None]
    for name in optional[1 : MOST_LEFT_OUT + 1]:
        rest = {key: value for key, value in call.items() if key != name}
        yield Scenario(f"without {name}", lambda rest=rest: model(**rest))


def _decoding_steps(model: Any, call: dict[str, Any]) -> Iterator[Scenario]:
    """A step under a static cache, with the arguments that tpuport's generation passes, and with the ids alone."""
    parameters = inspect.signature(model.forward).parameters
    ids = call.get("input_ids")
    if ids is None or not {"past_key_values", "use_cache"} <= parameters.keys():
        return
    batch, length = ids.shape[:2]
    passed = {
        "attention_mask": torch.ones(batch, length + 1, dtype=torch.long),
        "position_ids": torch.full((batch, 1), length),
    }
    known = {name: value for name, value in passed.items() if name in parameters}
    for name, more in (("decoding step", known), ("decoding step of ids", {})):
        try:
            cache = _filled_cache(model, ids)
        except Exception:  # noqa: BLE001 - the library has no static cache for this model
            return
        step = {"input_ids": ids[:, -1:], "past_key_values": cache, "use_cache": True, **more}
        yield Scenario(name, lambda step=step: model(**step), tuple(step))


def _filled_cache(model: Any, ids: torch.Tensor) -> Any:
    """A cache with the keys of these tokens.

    Raises:
        ValueError: If the model leaves the cache empty, as an encoder does: no step would be a decoding step.
    """
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=ids.shape[1] + FREE_SLOTS)
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache, use_cache=True)
    if int(cache.get_seq_length()) == 0:
        raise ValueError("the model does not use the cache")
    return cache


def _coding(model: Any, call: dict[str, Any]) -> Iterator[Scenario]:
    """`encode` and `decode` of an autoencoder, whole and by tile."""
    sample = call.get("sample")
    if sample is None or not (hasattr(model, "encode") and hasattr(model, "decode")):
        return
    with torch.no_grad():
        latents = getattr(model.encode(sample), "latent_dist", None)
    yield Scenario("encode", lambda: model.encode(sample))
    if latents is None:
        return
    mean = latents.mode()
    yield Scenario("decode", lambda: model.decode(mean))
    if hasattr(model, "tiled_decode"):
        yield Scenario("decode by tile", lambda: model.tiled_decode(mean))
