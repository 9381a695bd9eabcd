"""The ways in which a tiny model is called for the agreement, as the linter's scenarios have them.

Each scenario is a name and a function without arguments that makes one call. What has to be there before the call, such
as the tokens in a cache, is prepared when the scenario is made, so that it is not watched.
"""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from benchmarks.watch import Line

# Beyond these, leaving out one argument after another takes long and shows little.
MOST_LEFT_OUT = 4
FREE_SLOTS = 4
MOST_OPPOSED = 8


class Scenario(NamedTuple):
    """One way to call a model."""

    name: str
    call: Callable[[], Any]
    # Arguments that the other calls of the model do not pass.
    passed: tuple[str, ...] = ()
    # A line whose condition on a tensor is decided against the tensor's truth.
    opposed: Line | None = None


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
    """A step under a static cache: with a mask and positions as in generation, with the ids, with other arguments."""
    from tpuport.generation.cache_arguments import cache_argument

    parameters = inspect.signature(model.forward).parameters
    ids, cache_name = call.get("input_ids"), cache_argument(parameters)
    if ids is None or cache_name is None or not _takes(parameters, "use_cache"):
        return
    batch, length = ids.shape[:2]
    passed = {
        "attention_mask": torch.ones(batch, length + 1, dtype=torch.long),
        "position_ids": torch.full((batch, 1), length),
    }
    known = {name: value for name, value in passed.items() if name in parameters}
    kinds = {"decoding step": known, "decoding step of ids": {}}
    if more := _of_last_token(call, ids):
        # Without a mask and positions, which models compute from the other arguments.
        kinds["decoding step with the other arguments"] = more
    for name, more in kinds.items():
        try:
            cache = _filled_cache(model, ids, cache_name)
        except Exception:  # noqa: BLE001 - the library has no static cache for this model
            return
        step = {"input_ids": ids[:, -1:], cache_name: cache, "use_cache": True, **more}
        yield Scenario(name, lambda step=step: model(**step), tuple(step))


def _takes(parameters: Mapping[str, inspect.Parameter], name: str) -> bool:
    """Whether a function takes an argument of that name, in `**kwargs` too."""
    has_more = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return name in parameters or has_more


def _of_last_token(call: dict[str, Any], ids: torch.Tensor) -> dict[str, Any]:
    """The other arguments of a call in its next step: those with a value for each token have that of the last one.

    Images and sounds belong to the prompt; a mask and positions are made for each step.
    """
    rest: dict[str, Any] = {}
    for name, value in call.items():
        is_of_tokens = isinstance(value, torch.Tensor) and value.shape[:2] == ids.shape[:2]
        is_of_prompt = isinstance(value, torch.Tensor) and value.is_floating_point() and not is_of_tokens
        if name in {"input_ids", "attention_mask", "position_ids", "labels"} or is_of_prompt:
            continue
        rest[name] = value[:, -1:] if is_of_tokens else value
    return rest


def _filled_cache(model: Any, ids: torch.Tensor, name: str) -> Any:
    """A cache with the keys of these tokens.

    Raises:
        ValueError: If the model leaves the cache empty, as an encoder does: no step would be a decoding step.
    """
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=ids.shape[1] + FREE_SLOTS)
    with torch.no_grad():
        model(input_ids=ids, **{name: cache}, use_cache=True)
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


def opposites(call: Callable[[], Any], conditions: Iterable[Line]) -> Iterator[Scenario]:
    """The same call with one condition on a tensor decided the other way, as other weights or inputs would.

    A condition that checks inputs ends such a call with an error, and then it does not count.
    """
    for line in itertools.islice(conditions, MOST_OPPOSED):
        name = f"the opposite at {line.path.rpartition('/')[2]}:{line.number}"
        yield Scenario(name, call, opposed=line)
