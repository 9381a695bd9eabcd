"""Which classes are taken apart, what their objects consist of, and which are
refused.
"""

import functools
import sys
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from tpuport.errors import PortError
from tpuport.objects import pytrees
from tpuport.objects.object_parts import slots
from tpuport.objects.part_containers import CONTAINERS, cell_contents, container_of

# Classes of these packages are handles and settings of theirs, and no containers of a
# user's tensors.
_OPAQUE_LIBRARIES = frozenset(
    sys.stdlib_module_names - {"__main__", "builtins", "collections"}
) | frozenset("torch torchvision torchaudio torchax jax jaxlib numpy tpuport".split())
_TRANSPARENT = types.SimpleNamespace
# Of the opaque libraries, by name, because importing it takes seconds: tables of
# tensors, and a function.
_TRANSPARENT_NAMES = frozenset({"torch.nn.attention.flex_attention.BlockMask"})
# Objects of these are visited only if they contain tensors; most are settings,
# tokenizers and the like.
_MODEL_LIBRARIES = frozenset(
    {"transformers", "diffusers", "accelerate", "peft", "timm"}
)
_LEAVES = (
    str, bytes, int, float, complex, types.NoneType, type, types.FunctionType, types.BuiltinFunctionType,
    types.ModuleType, functools.partial, Enum, torch.nn.Module, torch.Size, torch.Generator, torch.dtype, torch.device,
    np.dtype,
)  # fmt: skip
# How jax and this module see these is settled, so that a class of theirs need not be
# looked up in jax's registry.
_OWN_CONTAINERS = frozenset({*CONTAINERS, tuple, types.NoneType, types.CellType})
# What is made of its parts, and cannot change.
_KINDS = {
    types.MethodType: "method",
    functools.partial: "partial",
    weakref.ReferenceType: "weak",
    frozenset: "frozenset",
}
JAX_CONTAINERS = frozenset({list, dict, OrderedDict, defaultdict})
_IS_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
PLAIN = frozenset(
    {
        int,
        float,
        bool,
        str,
        bytes,
        types.NoneType,
        complex,
        torch.dtype,
        torch.device,
        torch.Size,
    }
)
# More attributes would make the line of code in a message too long to read.
_FIELDS_SHOWN = 4
# NumPy arrays of this many bytes are no longer tables.
_LARGE_ARRAY = 1 << 20


class HostArray:
    """A NumPy array in an object, equal to others with the same contents.

    Attributes:
        source: the array itself; `array` is a copy for the trace, which cannot be
            written to.
    """

    __slots__ = ("_key", "array", "source")

    def __init__(self, value: Any, name: str) -> None:
        if value.nbytes >= _LARGE_ARRAY:
            raise PortError(
                f"a NumPy array of {value.nbytes / 2**20:.0f} MiB in an object would be a constant of the program",
                where=name,
                fix="make it a tensor: torch.from_numpy(array)",
            )
        self.source = value
        # A copy, as the key has to describe the contents that the program was traced
        # with.
        self.array = value.copy()
        # NumPy's scalars cannot be written to anyway.
        if isinstance(self.array, np.ndarray):
            self.array.setflags(write=False)
        self._key = type(value), value.dtype.str, value.shape, value.tobytes()

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostArray) and self._key == other._key

    def __repr__(self) -> str:
        return repr(self.array)


def kind_of(cls: type) -> str:
    """How a value of this class is visited: leaf, tuple, frozenset, method, partial,
    weak, registered, object, library or opaque.
    """
    # Not cached, because a class may be registered at any time.
    if cls not in _OWN_CONTAINERS and not issubclass(cls, tuple):
        pytrees.register_known(cls)
        if jax.tree_util.is_tree_node(cls):
            return "registered"
    return _own_kind(cls)


@functools.lru_cache(maxsize=4096)
def _own_kind(cls: type) -> str:
    if cls in _KINDS:
        return _KINDS[cls]
    # Before tuples: a torch.Size is a tuple too.
    if issubclass(cls, (torch.Tensor, jax.Array, *_LEAVES)) or hasattr(
        cls, "__array__"
    ):
        return "leaf"
    if issubclass(cls, tuple):
        return "tuple"
    if cls in _OWN_CONTAINERS:
        return "object"
    library, *base_libraries = [
        base.__module__.partition(".")[0] for base in cls.__mro__
    ]
    is_transparent = (
        issubclass(cls, _TRANSPARENT)
        or f"{cls.__module__}.{cls.__qualname__}" in _TRANSPARENT_NAMES
    )
    if library in _OPAQUE_LIBRARIES and not is_transparent:
        return "opaque"
    # Configurations have `to_dict`, a user's own that derive from them included.
    is_of_model_library = not _MODEL_LIBRARIES.isdisjoint((library, *base_libraries))
    if hasattr(cls, "to_dict") and is_of_model_library:
        return "opaque"
    # Last, as this makes an object.
    if not can_be_made(cls):
        return "opaque"
    # A cache contains no tensors before the call that begins to fill it.
    if library in _MODEL_LIBRARIES and not cls.__name__.endswith("Cache"):
        return "library"
    return "object"


def native_base(cls: type) -> Any:
    """The class in C that makes objects of this class."""
    return next(base for base in cls.__mro__ if not base.__flags__ & _IS_HEAP_TYPE)


def can_be_made(cls: type) -> bool:
    """Whether an object of this class consists of its attributes and its items, and can
    be made without `__init__`.
    """
    base = container_of(cls) or native_base(cls)
    # Any other class in C keeps a state of its own, which no attribute shows.
    if base not in (object, types.SimpleNamespace, *CONTAINERS):
        return False
    try:
        instance = base.__new__(cls)
    except TypeError:  # a class in C has its own way of making objects
        return False
    if base is not object:
        return True
    # Without either there is nothing to take apart: `object()` is a mark, compared by
    # identity.
    return hasattr(instance, "__dict__") or bool(slots(cls))


class FunctionBody(NamedTuple):
    """A function without what it has captured, equal to others from the same line.

    Attributes:
        code: its code; module: by which its globals are found.
        name: as `__qualname__`.
    """

    code: types.CodeType
    module: str
    name: str

    @classmethod
    def of(cls, function: types.FunctionType) -> "FunctionBody | None":
        """The body of a function that has captured tensors; None for others, and for
        one that consists of more than its code and what it has captured.
        """
        module = sys.modules.get(function.__module__)
        has_more = (
            function.__defaults__ or function.__kwdefaults__ or vars(function)
        ) or getattr(module, "__dict__", None) is not function.__globals__
        if has_more or not _captures_tensors(function, set()):
            return None
        return cls(function.__code__, function.__module__, function.__qualname__)

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - by value
    def without_variables(self) -> types.FunctionType:
        """The function, the same one each time, whose variables are not assigned."""
        return self.make(types.CellType() for _ in self.code.co_freevars)

    def make(self, cells: Iterable[types.CellType]) -> types.FunctionType:
        """A function that has captured these variables."""
        names = vars(sys.modules[self.module])
        function = types.FunctionType(self.code, names, None, None, tuple(cells))
        function.__qualname__ = self.name
        return function


def _captures_tensors(function: types.FunctionType, seen: set[int]) -> bool:
    """Whether a function, or one that it has captured, has captured tensors."""
    seen.add(id(function))
    return any(
        isinstance(value, torch.Tensor | jax.Array)
        or (
            isinstance(value, types.FunctionType)
            and id(value) not in seen
            and _captures_tensors(value, seen)
        )
        for value in map(cell_contents, function.__closure__ or ())
    )


def arrays_inside(value: Any) -> list[str]:
    """Names of the attributes that are tensors, or lists or dictionaries of them."""
    names = []
    for name, content in getattr(value, "__dict__", {}).items():
        match content:
            case dict():
                parts: Iterable[Any] = content.values()
            case list() | tuple() | set():
                parts = content
            case _:
                parts = (content,)
        # One level only: this looks at every setting and tokenizer, and has to be
        # quick.
        if any(isinstance(part, torch.Tensor | jax.Array) for part in parts):
            names.append(name)
    return names


def refuse_tensors_inside(value: Any, name: str) -> None:
    """PortError, with the line that registers the class, for an object with tensors
    that is not taken apart.
    """
    names = arrays_inside(value)
    if not names:
        return
    cls = type(value).__name__
    shown = names[:_FIELDS_SHOWN]
    fields_of_value = ", ".join(f"value.{field}" for field in shown)
    raise PortError(
        f"a {type(value).__module__}.{cls} has tensors ({', '.join(shown)}), and it is not known how to make one of "
        "other tensors",
        where=name,
        fix=f"register it: jax.tree_util.register_pytree_node({cls}, lambda value: (({fields_of_value},), None), "
        f"lambda _, tensors: {cls}(*tensors))",
    )
