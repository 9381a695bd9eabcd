"""Caches among the arguments of a call: which of them may be given to one."""

import weakref
from typing import Any

import torch

from tpuport.errors import PortError


def claim_cache(cache: Any) -> None:
    """Let a cache that was allocated on the host make its positions on the device,
    where its tensors will be.
    """
    for layer in getattr(cache, "layers", ()):
        if getattr(layer, "device", None) is not None:
            layer.device = torch.device("jax")


# By its id, each cache whose next state is another object.
_retired: dict[int, weakref.ref[Any]] = {}


def retire_cache(cache: Any) -> None:
    """Let further calls refuse a cache that the code of a call has changed: the change
    is in the cache of the result, and not in this one.
    """
    number = id(cache)
    _retired[number] = weakref.ref(cache, lambda _: _retired.pop(number, None))


def resume_cache(cache: Any) -> None:
    """Take a cache again that has got its next state."""
    _retired.pop(id(cache), None)


def refuse_retired(cache: Any, name: str) -> None:
    """PortError for a cache whose next state is another object."""
    if id(cache) in _retired:
        raise PortError(
            "this cache was given to an earlier call, whose output has its next state; this object still has the one "
            "before",
            where=name,
            fix="go on with the cache in that call's output",
        )
