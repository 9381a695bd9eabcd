"""The decoding loop of models that keep states of a recurrence as attributes of their
modules, beside their cache.

Attributes that are assigned in a loop on the device would be lost: the loop carries
them with the cache, and gives them to the modules before each call.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax
import torch

from tpuport import compat
from tpuport.base.mappings import without_nones
from tpuport.generation.decoder import Decoder

# What transformers calls such attributes. They are None before a prompt.
_SUFFIXES = ("_state", "_states")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class StatefulCache:
    """What the loop carries.

    Attributes:
        cache: a transformers cache of jax arrays.
        states: [B, ...] each, by the path of its attribute.
    """

    cache: Any
    states: dict[str, jax.Array]


@dataclasses.dataclass
class _Exchange:
    """The states of one call of the model: what the modules had, what they get, and
    what they have after it.
    """

    before: dict[str, Any]
    carried: dict[str, jax.Array]
    after: dict[str, jax.Array]


# In no object that the model leads to: what these contain is taken for lost after the
# call.
_exchange: ContextVar[_Exchange] = ContextVar("tpuport_module_states")


def keeps_states_in_modules(model: Any) -> bool:
    """Whether states of a model are attributes of its modules."""
    return bool(_read_states(model))


class StatefulDecoder(Decoder):
    """The compiled programs of a ported model that keeps states in its modules."""

    takes_kv_cache = False

    def call_model(
        self,
        arrays: dict,
        tokens: jax.Array,
        mask: jax.Array,
        positions: jax.Array,
        cache: Any,
        logits_to_keep: int | jax.Array,
    ) -> tuple[jax.Array, StatefulCache]:
        """Traced. As `Decoder.call_model`, with the modules' states as a part of the
        cache.
        """
        states: dict[str, jax.Array] = {}
        if isinstance(cache, StatefulCache):
            cache, states = cache.cache, cache.states
        with _states_in_modules(self.model, states) as new_states:
            logits, cache = super().call_model(
                arrays, tokens, mask, positions, cache, logits_to_keep
            )
        return logits, StatefulCache(cache, new_states)


@contextlib.contextmanager
def _states_in_modules(
    model: torch.nn.Module, states: dict[str, jax.Array]
) -> Iterator[dict[str, jax.Array]]:
    """Traced. Give the modules these states for a call of the model, and collect what
    they are after it.

    In hooks of the call, around which whatever the model assigns is taken for lost.
    """
    exchange = _Exchange(_read_states(model), states, {})
    token = _exchange.set(exchange)
    hooks = (
        model.register_forward_pre_hook(_give_states),
        model.register_forward_hook(_collect_states),
    )
    try:
        yield exchange.after
    finally:
        for hook in hooks:
            hook.remove()
        _exchange.reset(token)
        _assign(model, exchange.before)


def _give_states(model: torch.nn.Module, args: Any) -> None:
    exchange = _exchange.get()
    states = {path: compat.wrap(state) for path, state in exchange.carried.items()}
    _assign(model, dict.fromkeys(exchange.before) | states)


def _collect_states(model: torch.nn.Module, args: Any, output: Any) -> None:
    exchange = _exchange.get()
    after = without_nones(_read_states(model))
    exchange.after.update(compat.as_jax(after))
    _assign(model, exchange.before)


def _read_states(model: Any) -> dict[str, Any]:
    """The modules' states by path: "model.layers.0.temporal_block.conv1d_state".

    Of transformers' own modules alone: what a user's class keeps may grow with the
    text.
    """
    return {
        f"{path}.{name}": state
        for path, module in model.named_modules()
        if path and type(module).__module__.startswith("transformers.")
        for name, state in vars(module).items()
        if name.endswith(_SUFFIXES) and isinstance(state, torch.Tensor | None)
    }


def _assign(model: torch.nn.Module, states: dict[str, Any]) -> None:
    for path, state in states.items():
        owner, _, name = path.rpartition(".")
        setattr(model.get_submodule(owner), name, state)
