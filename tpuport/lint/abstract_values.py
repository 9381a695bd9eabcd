"""The abstract values of the interpreter: what an expression may be.

`Tensor` is a tensor (or None, if it is optional), `Static` lives in Python (shapes, flags, strings), and `Unknown` may
be either, so no error may rest on it. Values are immutable and compared by content: equal calls are interpreted once.
"""

import functools
import itertools
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeVar

_T = TypeVar("_T")

# None is a constant that programs use, so `...` marks a constant that the source text does not tell.
NOT_CONSTANT: Final = ...


class Value:
    """Base of all abstract values. What only some classes know has the value for "not known" here.

    Attributes:
        kind: of a `Static` or a `Sequence`.
        constant: of a `Static`.
        items: of a `Sequence`.
        dtype, exact, ndim: of a `Tensor`.
    """

    __slots__ = ()
    kind: str = ""
    constant: Any = NOT_CONSTANT
    items: "tuple[Value, ...] | None" = None
    dtype: str = ""
    exact: str = ""
    ndim: int = -1

    @property
    def mask_origin(self) -> str:
        """The origin that a result computed from this value inherits: only being a mask is passed on."""
        return ""


class Unknown(Value):
    """Anything: a tensor or not."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Unknown"


UNKNOWN: Final = Unknown()


class _ByContent(Value):
    """A value that is compared by its parts. The hash is computed once."""

    __slots__ = ("_hash", "_key")
    _key: tuple[Any, ...]
    _hash: int

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(self) is type(other) and self._hash == other._hash and self._key == other._key  # pyright: ignore[reportAttributeAccessIssue]
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        parts = [f"{name}={getattr(self, name)!r}" for name in self.__slots__]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _set_key(self, *key: Any) -> None:
        self._key = key
        self._hash = hash((type(self).__name__, key))


class Static(_ByContent):
    """A Python object, whose value is known while tracing.

    Attributes:
        kind: "int", "float", "bool", "str", "none", "dtype", "device", "shape", "config", ... or "" if not known.
        constant: the value if the source text tells it, else `NOT_CONSTANT`.
    """

    __slots__ = ("constant", "kind")

    def __init__(self, kind: str = "", constant: Any = NOT_CONSTANT) -> None:
        self.kind, self.constant = kind, constant
        # With the type, since True == 1 in Python, but they are different constants.
        self._set_key(kind, type(constant), constant)

    def __repr__(self) -> str:
        if self.constant is NOT_CONSTANT:
            return f"Static({self.kind!r})"
        return f"Static({self.kind!r}, {self.constant!r})"


STATIC: Final = Static()
NONE: Final = Static("none", None)
INT: Final = Static("int")
FLOAT: Final = Static("float")
BOOL: Final = Static("bool")
STR: Final = Static("str")
DTYPE: Final = Static("dtype")
DEVICE: Final = Static("device")
SHAPE: Final = Static("shape")
CONFIG: Final = Static("config")
TRUE: Final = Static("bool", True)
FALSE: Final = Static("bool", False)


class Tensor(Value):
    """A tensor. Create it with `tensor(...)`, which returns equal tensors as the same object.

    Attributes:
        dtype: "bool", "int", "float", "complex" or "" if not known.
        exact: the exact dtype if the source text tells it ("float64", "float16", "int64"), else "".
        ndim: number of dimensions, or -1 if not known.
        optional: it may be None as well.
        view: it shares memory with another tensor (`x[0]`, `x.view(...)`, `x.transpose(...)`).
        origin: where it comes from, as far as a rule needs that: "mask" (a name or a comparison says so),
            "parameter", "buffer" or "".
    """

    __slots__ = ("dtype", "exact", "ndim", "optional", "origin", "view")
    dtype: str
    exact: str
    ndim: int
    optional: bool
    view: bool
    origin: str

    @property
    def mask_origin(self) -> str:
        return "mask" if self.origin == "mask" else ""

    def __repr__(self) -> str:
        attributes = [f"{name}={getattr(self, name)!r}" for name in sorted(self.__slots__)]
        return f"Tensor({', '.join(attributes)})"


# Interning makes equality of tensors, the most frequent values, a comparison of identities.
_tensors: dict[tuple[str, str, int, bool, bool, str], Tensor] = {}


def tensor(
    dtype: str = "",
    exact: str = "",
    ndim: int = -1,
    optional: bool = False,
    view: bool = False,
    origin: str = "",
) -> Tensor:
    """The only `Tensor` with these attributes."""
    key = (dtype, exact, ndim, optional, view, origin)
    interned = _tensors.get(key)
    if interned is None:
        interned = _tensors[key] = Tensor()
        interned.dtype, interned.exact, interned.ndim, interned.optional, interned.view, interned.origin = key
    return interned


TENSOR: Final = tensor()
FLOAT_TENSOR: Final = tensor("float")
INT_TENSOR: Final = tensor("int")
BOOL_TENSOR: Final = tensor("bool")


class Sequence(_ByContent):
    """A tuple, list, set or iterator.

    Attributes:
        kind: "tuple", "list", "set", "dict_views", "iterator", "modules" (an `nn.ModuleList`), "sequential".
        items: the elements if their number is known, else None.
        element: what any element is: the join of `items` if these are known.
        tensors: some element is certainly a tensor, whatever the others are: `[0, x.sum()]`.
    """

    __slots__ = ("element", "items", "kind", "tensors")

    def __init__(
        self, kind: str, items: tuple[Value, ...] | None, element: Value, tensors: bool = False
    ) -> None:
        self.kind, self.items, self.element = kind, items, element
        self.tensors = tensors or Tensor in map(type, (element, *(items or ())))
        self._set_key(kind, items, element, self.tensors)

    def of_any_length(self) -> "Sequence":
        """The same elements, but not how many."""
        return Sequence(self.kind, None, self.element, self.tensors)

    def with_element(self, value: Value) -> "Sequence":
        """The container after it got one more element, or another element in place of one."""
        # A container that has been empty so far says nothing about its elements.
        is_empty = self.items == () or (self.element is UNKNOWN and not self.tensors)
        element = value if is_empty else join(self.element, value)
        return Sequence(self.kind, None, element, self.tensors or is_tensor(value))


class Mapping(_ByContent):
    """A dict: `entries` for the keys that the source text tells, `element` for all others."""

    __slots__ = ("element", "entries")

    def __init__(self, entries: tuple[tuple[Any, Value], ...], element: Value) -> None:
        self.entries, self.element = entries, element
        self._set_key(entries, element)

    @property
    def values(self) -> list[Value]:
        """The values of `entries`."""
        return [value for _, value in self.entries]

    def get(self, key: Any) -> Value:
        """The value at a key."""
        return dict(self.entries).get(key, self.element)

    def with_entry(self, key: Any, value: Value) -> "Mapping":
        """The dict after `dict[key] = value`; the key is `NOT_CONSTANT` if the source text does not tell it."""
        if key is not NOT_CONSTANT:
            others = tuple(entry for entry in self.entries if entry[0] != key)
            return Mapping((*others, (key, value)), self.element)
        # A dict that has been empty so far says nothing about its values.
        return Mapping(self.entries, join(self.element, value) if self.entries else value)


class External(_ByContent):
    """A library object, by its dotted name: `torch.nn.functional`, `torch.arange`, `numpy.array`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name
        self._set_key(name)


class Layer(_ByContent):
    """An instance of a torch module class, by the class's dotted name: `torch.nn.Linear`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name
        self._set_key(name)


class Method(_ByContent):
    """A method that the linted code does not define: `tensor.view`, `dict.items`, `list.append`."""

    __slots__ = ("name", "receiver")

    def __init__(self, receiver: Value, name: str) -> None:
        self.receiver, self.name = receiver, name
        self._set_key(receiver, name)


class Function(_ByContent):
    """A function of the linted code: `info` is a `modules.FunctionInfo`, `bound` is what `self` is, or None."""

    __slots__ = ("bound", "info")

    def __init__(self, info: Any, bound: Value | None = None) -> None:
        self.info, self.bound = info, bound
        self._set_key(id(info), bound)


class Class(_ByContent):
    """A class of the linted code: `info` is a `modules.ClassInfo`."""

    __slots__ = ("info",)

    def __init__(self, info: Any) -> None:
        self.info = info
        self._set_key(id(info))


class Instance(_ByContent):
    """An instance of a class of the linted code. `fields` are the attributes that are known of this instance."""

    __slots__ = ("fields", "info")

    def __init__(self, info: Any, fields: tuple[tuple[str, Value], ...] = ()) -> None:
        self.info, self.fields = info, fields
        self._set_key(id(info), fields)


class Partial(_ByContent):
    """`functools.partial(target, *args, **keywords)`."""

    __slots__ = ("args", "keywords", "target")

    def __init__(
        self, target: Value, args: tuple[Value, ...], keywords: tuple[tuple[str, Value], ...]
    ) -> None:
        self.target, self.args, self.keywords = target, args, keywords
        self._set_key(target, args, keywords)


class Choice(_ByContent):
    """One of several callables, when it is not known which: `A() if flag else B()`."""

    __slots__ = ("options",)

    def __init__(self, options: tuple[Value, ...]) -> None:
        self.options = options
        self._set_key(frozenset(options))


class Module(_ByContent):
    """A module of the linted code: `info` is a `modules.ModuleInfo`."""

    __slots__ = ("info",)

    def __init__(self, info: Any) -> None:
        self.info = info
        self._set_key(id(info))


class Arguments(NamedTuple):
    """The values of a call's arguments."""

    positional: list[Value]
    keywords: dict[str, Value]

    @property
    def first(self) -> Value:
        """The first positional argument, `UNKNOWN` if there is none."""
        return self.get(0)

    def get(self, position: int, *names: str, default: Value = UNKNOWN) -> Value:
        """An argument by position, or by the first of its names that is given."""
        if position < len(self.positional):
            return self.positional[position]
        for name in names:
            if name in self.keywords:
                return self.keywords[name]
        return default

    def without_first(self) -> "Arguments":
        """What the first argument gets if it is called, or its method."""
        return Arguments(self.positional[1:], self.keywords)

    def functions(self) -> list[Function]:
        """The arguments that are functions of the linted code, in order."""
        values = (*self.positional, *self.keywords.values())
        return [value for value in values if isinstance(value, Function)]

    @property
    def first_function(self) -> Function | None:
        """The first positional argument that is a function of the linted code."""
        return next((value for value in self.positional if isinstance(value, Function)), None)


# --- questions that most of the interpreter asks ---


def options_of(value: Value) -> tuple[Value, ...]:
    """The callables that a value may be: the options of a choice, or only the value itself."""
    return value.options if isinstance(value, Choice) else (value,)


def without_none(value: Value) -> Value:
    """The value after a check that it is not None."""
    if isinstance(value, Tensor) and value.optional:
        return tensor(value.dtype, value.exact, value.ndim, False, value.view, value.origin)
    return value


def is_tensor(value: Value | None) -> bool:
    """Whether this is certainly a tensor (perhaps None as well)."""
    return type(value) is Tensor


def class_of(value: Value | None) -> Any:
    """The `modules.ClassInfo` of an instance; None for everything else."""
    return value.info if isinstance(value, Instance) else None


def is_config_name(name: str) -> bool:
    """Whether a parameter or attribute of this name holds a configuration."""
    return f"_{name}".endswith("_config")


# --- joins ---

# Each further option is interpreted at each call, and more than a few say little about any of them.
_MOST_OPTIONS: Final = 4


def join(left: Value, right: Value) -> Value:
    """What a name is after two branches that leave it as `left` and as `right`."""
    if left is right or left == right:
        return left
    # Dispatch by hand: this is the interpreter's busiest function, and tensors are the busiest values.
    if isinstance(left, Tensor):
        return _join_tensor(left, right)
    if isinstance(right, Tensor):
        return _join_tensor(right, left)
    if isinstance(left, Static) and isinstance(right, Static):
        return Static(_common(left.kind, right.kind, ""))
    # Code that reads an attribute or calls a value that may be None means the value.
    if left == NONE:
        return right
    if right == NONE:
        return left
    match left, right:
        case Sequence(), Sequence():
            return _join_sequences(left, right)
        case Mapping(), Mapping():
            return _join_mappings(left, right)
        case Instance(), Instance() if left.info is right.info:
            return Instance(left.info, _common_fields(left, right))
    return choice([left, right])


def join_all(values: Iterable[Value]) -> Value:
    """The join of several values; `UNKNOWN` if there are none."""
    remaining = iter(values)
    return functools.reduce(join, remaining, next(remaining, UNKNOWN))


def join_optional(joined: Value | None, value: Value) -> Value:
    """The join of a value with what was seen before it, which is None for the first value."""
    return value if joined is None else join(joined, value)


def choice(values: list[Value]) -> Value:
    """One of these callables; `UNKNOWN` if there are too many, or if some cannot be called."""
    options: dict[Any, Value] = {}
    for option in itertools.chain.from_iterable(map(options_of, values)):
        match option:
            case Instance(info=info):
                # Objects of one class become one option, with the attributes that they share.
                options[info] = join_optional(options.pop(info, None), option)
            case Class() | Function() | Layer() | Partial() | Sequence(kind="sequential"):
                options[option] = option
            case _:
                return UNKNOWN
    match tuple(options.values()):
        case (only_option,):
            return only_option
        case several if len(several) <= _MOST_OPTIONS:
            return Choice(several)
        case _:
            return UNKNOWN


def _common_fields(left: Instance, right: Instance) -> tuple[tuple[str, Value], ...]:
    right_fields = dict(right.fields)
    return tuple((name, value) for name, value in left.fields if right_fields.get(name) == value)


def _join_tensor(left: Tensor, right: Value) -> Value:
    if isinstance(right, Tensor):
        return tensor(
            _common(left.dtype, right.dtype, ""),
            _common(left.exact, right.exact, ""),
            _common(left.ndim, right.ndim, -1),
            left.optional | right.optional,
            left.view | right.view,
            _common(left.origin, right.origin, ""),
        )
    if right == NONE:
        return tensor(left.dtype, left.exact, left.ndim, True, left.view, left.origin)
    return UNKNOWN


def _common(left: _T, right: _T, default: _T) -> _T:
    return left if left == right else default


def _join_sequences(left: Sequence, right: Sequence) -> Value:
    kind = _common(left.kind, right.kind, "list")
    match left.items, right.items:
        case tuple(left_items), tuple(right_items) if len(left_items) == len(right_items):
            items = tuple(map(join, left_items, right_items))
            return Sequence(kind, items, join(left.element, right.element))
        case _:
            # One branch may have appended in a loop, so any length is possible.
            return Sequence(kind, None, joint_element(left, right), left.tensors or right.tensors)


def joint_element(left: Sequence, right: Sequence) -> Value:
    """What an element of either sequence is. An empty display says nothing about later elements."""
    if left.items == ():
        return right.element
    if right.items == ():
        return left.element
    return join(left.element, right.element)


def _join_mappings(left: Mapping, right: Mapping) -> Value:
    names = [name for name, _ in left.entries]
    right_names = [name for name, _ in right.entries]
    if names != right_names:
        # Sorted, so that the order does not depend on which branch comes first.
        names = sorted({*names, *right_names}, key=repr)
    entries = tuple((name, join(left.get(name), right.get(name))) for name in names)
    return Mapping(entries, join(left.element, right.element))
