"""What a compiled program was made for beside shapes: plain values and a model's settings, as keys to compare."""

import dataclasses
from collections.abc import Hashable
from typing import Any

import torch

_PLAIN = frozenset({bool, int, str, bytes, type(None), torch.dtype})


def exact_key(value: Any) -> Hashable:
    """A key equal for equal values of one type only: 1, 1.0 and True differ here, and so do 0.0 and -0.0.

    Lists, dictionaries and configurations may change later; their key is of what they hold now.
    """
    cls = type(value)
    if cls in _PLAIN:
        return cls, value
    if cls is float:
        return cls, value.hex()
    if cls is complex:
        return cls, value.real.hex(), value.imag.hex()
    if isinstance(value, dict):
        return cls, tuple((exact_key(key), exact_key(held)) for key, held in value.items())
    if isinstance(value, list | tuple):
        return cls, tuple(exact_key(held) for held in value)
    if isinstance(value, set | frozenset):
        return cls, frozenset(exact_key(held) for held in value)
    if hasattr(value, "to_dict") and hasattr(value, "__dict__"):
        # Private names are transformers' own state, which it and tpuport set and reset while a model runs.
        return cls, tuple((name, exact_key(held)) for name, held in vars(value).items() if name[0] != "_")
    if dataclasses.is_dataclass(value):
        return cls, tuple(exact_key(getattr(value, field.name)) for field in dataclasses.fields(value))
    try:
        hash(value)
    except TypeError:
        return cls, repr(value)
    return cls, value


class StaticValue:
    """A plain value among the arguments of a compiled function, compared by `exact_key`."""

    __slots__ = ("_hash", "key", "value")

    def __init__(self, value: Hashable) -> None:
        self.value = value
        self.key = exact_key(value)
        self._hash = hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticValue) and self.key == other.key

    def __repr__(self) -> str:
        return repr(self.value)
