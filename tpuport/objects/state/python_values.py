"""The key of a program: what code could see of each Python value, without keeping any
value alive.
"""

import builtins
import copy
import enum
import threading
import types
import weakref
from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
import torch

from tpuport.internals.torch_internals import version_of
from tpuport.internals.transformers_internals import BOOKKEEPING
from tpuport.objects.object_parts import PLAIN, PYTHONS_OWN, has_parts
from tpuport.objects.state.host_input import HostInput
from tpuport.objects.state.reachable import OPAQUE_HOMES, is_library
from tpuport.objects.static_values import Identity, exact_key

State = TypeVar("State")

METHODS = (types.FunctionType, property, staticmethod, classmethod)
# What has a state of its own that no reference shows, or belongs to no user.
_OPAQUE = (torch.Generator, types.ModuleType, types.BuiltinFunctionType, types.CodeType)
# Bookkeeping, which decides nothing: tpuport's own, and that of transformers.
IGNORED_ATTRIBUTES = BOOKKEEPING | {"tpuport_mesh", "tpuport_pickling", "tpuport_state"}
# In a configuration of transformers: the model's class, which decides nothing.
NOTED_WHEN_SAVED = "architectures"
# As items in a configuration of diffusers: the model's class, which is in the key
# anyway, and the installed version.
ITEMS_NOTED_WHEN_SAVED = frozenset({"_class_name", "_diffusers_version"})
# transformers installs these hooks in the first call that wants hidden states. They do
# nothing in calls that do not.
IGNORED_HOOKS = "transformers.utils.output_capturing"
PYTHONS_MODULES = frozenset({"builtins", "typing", "abc", "enum", "collections.abc"})


def is_opaque(value: Any) -> bool:
    """Whether a value is described by itself alone, and not by what it refers to."""
    if isinstance(value, type):
        return is_library(value.__module__) or value.__module__ in PYTHONS_MODULES
    if isinstance(value, (*PYTHONS_OWN, torch.nn.Module, threading.local)):
        return False
    if (
        isinstance(value, (*_OPAQUE, enum.Enum))
        or type(value).__module__.partition(".")[0] in OPAQUE_HOMES
    ):
        return True
    return not has_parts(value)


def value_key(value: Any) -> Hashable:
    """The key of a value that is not a container: by value if it says what equals it,
    by identity if not.
    """
    cls = type(value)
    if cls in PLAIN:
        return exact_key(value)
    match value:
        case np.ndarray():
            return cls, value.dtype, value.shape, value.tobytes()
        case np.generic():
            return cls, value.tobytes()
        case jax.Array() | torch.Tensor():
            return Identity(value)
    # What defines equality without a hash can change.
    if cls.__eq__ is object.__eq__ or cls.__hash__ is None or not _has_hash(value):
        return Identity(value)
    # Meshes, paths, enums: made to be compared.
    return cls, value


def _has_hash(value: Any) -> bool:
    """Whether a value of a class with a hash has one itself: a weak reference has that
    of what it refers to.
    """
    try:
        hash(value)
    except Exception:  # noqa: BLE001 - a class of C++ raises errors of its own
        return False
    return True


# Of `torch.nn.Module`, when torch.compile runs for the first time; its own do the same
# before and after.
_REPLACED_BY_DYNAMO = ("__init__", "__setstate__")


def namespace_key(names: Any) -> Hashable:
    """The key of the functions, classes and plain values that a class, or a file, has
    names for.

    Private plain values are what libraries remember there.
    """
    entries = []
    for name, value in list(names.items()):
        if name in _REPLACED_BY_DYNAMO and str(
            getattr(value, "__module__", "")
        ).startswith("torch."):
            continue
        if isinstance(value, (type, *METHODS)):
            entries.append((name, Identity(value)))
        elif isinstance(value, PLAIN) and not name.startswith("_"):
            entries.append((name, exact_key(value)))
    return frozenset(entries)


class Entry(NamedTuple):
    """An object in the key of a program.

    Attributes:
        kind: what it is: its class, or the code of a function.
        parts: the key of each part by its label, ".scale" or "[0]"; the key of an
            object is its number.
        others: what has no label that a user would recognize.
    """

    kind: Hashable
    parts: tuple[tuple[str, Hashable], ...] = ()
    others: Hashable = None


class StateKey(Generic[State]):
    """The key of a program: equal for states that no traced code can tell apart.

    Attributes:
        entries: an entry for each object, in the order of the walk.
    """

    __slots__ = ("__weakref__", "_hash", "_paths", "_state", "entries")

    def __init__(
        self, entries: tuple[Entry, ...], paths: tuple[str, ...], state: State
    ) -> None:
        self.entries = entries
        self._paths = paths
        # Weakly, because jax keeps the key as long as the program, and the state has
        # the model.
        self._state = weakref.ref(state)
        self._hash = hash(entries)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, StateKey) or self._hash != other._hash:
            return False
        if self.entries is other.entries:
            return True
        are_equal = self.entries == other.entries
        if are_equal:
            # Programs are looked up in every call, and this takes milliseconds.
            self.entries = other.entries
        return are_equal

    def of_state(self, state: State) -> "StateKey[State]":
        """The same key, of another state."""
        key = copy.copy(self)
        key._state = weakref.ref(state)
        return key

    @property
    def state(self) -> State | None:
        """The state, for as long as somebody else keeps it."""
        return self._state()

    def describe(self) -> dict[str, str]:
        """The plain values of the state, and where tensors are, by what leads to them:
        "layers.0.dropout.p".
        """
        texts = {}
        for path, entry in zip(self._paths, self.entries, strict=False):
            for label, key in entry.parts:
                match key:
                    case (builtins.float, str(digits)):
                        texts[f"{path}{label}"] = repr(float.fromhex(digits))
                    case (type(), value):
                        texts[f"{path}{label}"] = repr(value)
                    case ("tensor", int()):
                        texts[f"{path}{label}"] = "a tensor on the device"
                    case (Identity(), version):
                        texts[f"{path}{label}"] = (
                            f"a tensor on the host, version {version}"
                        )
                    case (HostInput() as values, *_):
                        texts[f"{path}{label}"] = f"a tensor on the host, {values}"
        return texts


def host_version(tensor: torch.Tensor) -> int | None:
    """What every write to a tensor of the host counts up; None for inference tensors,
    whose writes go unnoticed.
    """
    return None if tensor.is_inference() else version_of(tensor)
