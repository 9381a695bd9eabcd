"""Plain Python values as keys of compiled programs: equal only if the program would be
the same.
"""

import dataclasses
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch

# Equal values of these types mean the same in a program, as long as the types are equal
# too.
_PLAIN = frozenset({bool, int, str, bytes, type(None), torch.dtype})


def exact_key(value: Any) -> Hashable:
    """A key that is equal for equal values of one type only: 1, 1.0 and True differ,
    and so do 0.0 and -0.0.

    Lists, dictionaries and configurations may change later; the key is of their
    contents now.
    """
    cls = type(value)
    if cls in _PLAIN:
        return cls, value
    match value:
        # By digits: NaN equals NaN then, and 0.0 does not equal -0.0.
        case float():
            return cls, value.hex()
        case complex():
            return cls, value.real.hex(), value.imag.hex()
        case dict():
            return cls, tuple(
                (exact_key(name), exact_key(item)) for name, item in value.items()
            )
        case list() | tuple():
            return cls, tuple(map(exact_key, value))
        case set() | frozenset():
            return cls, frozenset(map(exact_key, value))
    return cls, _object_key(value)


def _object_key(value: Any) -> Hashable:
    if hasattr(type(value), "to_dict") and hasattr(value, "__dict__"):
        # Private names are transformers' own state, which it and tpuport set and reset
        # while a model runs.
        public = [
            (name, item)
            for name, item in vars(value).items()
            if not name.startswith("_")
        ]
        return tuple((name, exact_key(item)) for name, item in public)
    if dataclasses.is_dataclass(value):
        return tuple(
            exact_key(getattr(value, field.name)) for field in dataclasses.fields(value)
        )
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


class Identity:
    """An object that equals itself alone: its own contents are unknown, or cannot
    change.

    The reference is weak where it can be: jax keeps the keys of programs as long as
    their functions.
    """

    __slots__ = ("_get", "_hash")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        try:
            self._get: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._get = lambda: value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity):
            return False
        value = self._get()
        return value is not None and value is other._get()

    def __repr__(self) -> str:
        return repr(self._get())


class StaticValue:
    """A plain value among the arguments of a compiled function, compared by
    `exact_key`.
    """

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
