"""The abstract values of the interpreter: what an expression may be.

`Tensor` is a tensor (or None, if it is optional), `Static` lives in Python (shapes, flags, strings), and `Unknown` may
be either, so no error may rest on it. Values are immutable and compared by content: equal calls are interpreted once.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeVar

_T = TypeVar("_T")


class Value:
    """Base of all abstract values."""

    __slots__ = ()


class Unknown(Value):
    """Anything: a tensor or not."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Unknown"


UNKNOWN: Final = Unknown()
# None is a constant that programs use, so `...` marks a constant that the source text does not tell.
NOT_CONSTANT: Final = ...


class Static(Value):
    """A Python object, whose value is known while tracing.

    Attributes:
        kind: "int", "float", "bool", "str", "none", "dtype", "device", "shape", "config", ... or "" if not known.
        constant: the value if the source text tells it, else `NOT_CONSTANT`.
    """

    __slots__ = ("constant", "kind")

    def __init__(self, kind: str = "", constant: Any = NOT_CONSTANT) -> None:
        self.kind = kind
        self.constant = constant

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is Static
            and self.kind == other.kind
            # 1 == True == 1.0 in Python, but they are different constants.
            and type(self.constant) is type(other.constant)
            and self.constant == other.constant
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.constant))

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
        """The origin that a result computed from this tensor inherits: only being a mask is passed on."""
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
        self.tensors = tensors or type(element) is Tensor or any(type(item) is Tensor for item in items or ())
        self._set_key(kind, items, element, self.tensors)

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

    def get(self, key: Any) -> Value:
        """The value at a key."""
        for name, value in self.entries:
            if name == key:
                return value
        return self.element


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
        return self.positional[0] if self.positional else UNKNOWN

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


def constant_of(value: Value | None) -> Any:
    """The constant that a value is, `NOT_CONSTANT` if the source text does not tell it."""
    if isinstance(value, Static):
        return value.constant
    return NOT_CONSTANT


def dtype_of(value: Value, default: str = "") -> str:
    """Dtype family of a tensor; `default` for everything else."""
    if isinstance(value, Tensor):
        return value.dtype
    return default


def options_of(value: Value) -> tuple[Value, ...]:
    """The callables that a value may be: the options of a choice, or only the value itself."""
    if isinstance(value, Choice):
        return value.options
    return (value,)


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

_CALLABLES: Final = (Instance, Class, Function, Layer, Partial, Choice)
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
    result: Value | None = None
    for value in values:
        result = join_optional(result, value)
    return UNKNOWN if result is None else result


def join_optional(joined: Value | None, value: Value) -> Value:
    """The join of a value with what was seen before it, which is None for the first value."""
    return value if joined is None else join(joined, value)


def choice(values: list[Value]) -> Value:
    """One of these callables; `UNKNOWN` if there are too many, or if some cannot be called."""
    options: dict[Value, None] = {}
    for value in values:
        is_sequential = isinstance(value, Sequence) and value.kind == "sequential"
        if not isinstance(value, _CALLABLES) and not is_sequential:
            return UNKNOWN
        for option in options_of(value):
            _add_option(options, option)
    if len(options) > _MOST_OPTIONS:
        return UNKNOWN
    if len(options) > 1:
        return Choice(tuple(options))
    return next(iter(options))


def _add_option(options: dict[Value, None], option: Value) -> None:
    """Add an option. Objects of one class become one option, with the attributes that they share."""
    if isinstance(option, Instance):
        for known in options:
            if isinstance(known, Instance) and known.info is option.info:
                del options[known]
                option = join(known, option)
                break
    options[option] = None


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
    if left.items is None or right.items is None or len(left.items) != len(right.items):
        return Sequence(kind, None, joint_element(left, right), left.tensors or right.tensors)
    items = tuple(map(join, left.items, right.items))
    return Sequence(kind, items, join(left.element, right.element) if items else UNKNOWN)


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
