"""What an expression may be: the abstract values of the interpreter.

`Tensor` is known to be a tensor (or None, where it is optional); `Static` is known to live in Python (shapes,
flags, configurations, strings); `Unknown` may be either, and no error is ever founded on it. Values are immutable,
hashable and compared by content, so that a call with the same arguments is interpreted once.
"""

from typing import Any, Final


class Value:
    """Base of all abstract values."""

    __slots__ = ()


class Unknown(Value):
    """Anything: a tensor or not."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Unknown"


UNKNOWN: Final = Unknown()


class Static(Value):
    """Something of Python's own, whose value tracing knows.

    Attributes:
        kind: "int", "float", "bool", "str", "none", "dtype", "device", "shape", "config", ... or "" for unsaid.
        constant: the value where the source text says it, else `...` (`NOT_CONSTANT`).
    """

    __slots__ = ("constant", "kind")

    def __init__(self, kind: str = "", constant: Any = ...) -> None:
        self.kind = kind
        self.constant = constant

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is Static
            and self.kind == other.kind
            and type(self.constant) is type(other.constant)
            and self.constant == other.constant
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.constant))

    def __repr__(self) -> str:
        return (
            f"Static({self.kind!r})" if self.constant is ... else f"Static({self.kind!r}, {self.constant!r})"
        )


NOT_CONSTANT: Final = ...
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
    """Known to be a tensor. Made by `tensor(...)`, which interns.

    Attributes:
        dtype: "bool", "int", "float", "complex" or "" where that is not known.
        exact: the exact dtype where the source text says it ("float64", "float16", "int64"), else "".
        ndim: number of dimensions where known, else -1.
        optional: it may be None as well.
        view: it shares memory with another tensor (`x[0]`, `x.view(...)`, `x.transpose(...)`).
        origin: what it comes from where a rule needs that: "mask" (a name or a comparison that says mask),
            "parameter", "buffer", "attribute" (a plain tensor attribute), "uninitialised", "square_mask" or "".
    """

    __slots__ = ("dtype", "exact", "ndim", "optional", "origin", "view")
    dtype: str
    exact: str
    ndim: int
    optional: bool
    view: bool
    origin: str

    def __repr__(self) -> str:
        said = [f"{name}={getattr(self, name)!r}" for name in sorted(self.__slots__)]
        return f"Tensor({', '.join(said)})"


_tensors: dict[tuple[str, str, int, bool, bool, str], Tensor] = {}


def tensor(
    dtype: str = "",
    exact: str = "",
    ndim: int = -1,
    optional: bool = False,
    view: bool = False,
    origin: str = "",
) -> Tensor:
    """The one `Tensor` with these attributes."""
    key = (dtype, exact, ndim, optional, view, origin)
    found = _tensors.get(key)
    if found is None:
        found = Tensor()
        found.dtype, found.exact, found.ndim, found.optional, found.view, found.origin = key
        _tensors[key] = found
    return found


TENSOR: Final = tensor()
FLOAT_TENSOR: Final = tensor("float")
INT_TENSOR: Final = tensor("int")
BOOL_TENSOR: Final = tensor("bool")


class _ByContent(Value):
    """A value with parts, compared by them; the hash is computed once."""

    __slots__ = ("_hash", "_key")
    _key: tuple[Any, ...]
    _hash: int

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(self) is type(other) and self._hash == other._hash and self._key == other._key  # pyright: ignore[reportAttributeAccessIssue]
        )

    def __hash__(self) -> int:
        return self._hash

    def _keep(self, *key: Any) -> None:
        self._key = key
        self._hash = hash((type(self).__name__, key))


class Sequence(_ByContent):
    """A tuple, list, set or iterator.

    Attributes:
        kind: "tuple", "list", "set", "dict_views", "iterator", "modules" (an `nn.ModuleList`), "sequential".
        items: the elements where their number is known, else None.
        element: what any element is (the join of `items` where these are known).
        tensors: some element is surely a tensor, whatever the others are: `[0, x.sum()]`.
    """

    __slots__ = ("element", "items", "kind", "tensors")

    def __init__(
        self, kind: str, items: tuple[Value, ...] | None, element: Value, tensors: bool = False
    ) -> None:
        self.kind, self.items, self.element = kind, items, element
        self.tensors = tensors or type(element) is Tensor or any(type(item) is Tensor for item in items or ())
        self._keep(kind, items, element, self.tensors)

    def __repr__(self) -> str:
        inside = "..." if self.items is None else ", ".join(map(repr, self.items))
        return f"Sequence({self.kind}: {inside} of {self.element!r})"


class Mapping(_ByContent):
    """A dict: `entries` for the keys the source text says, `element` for every other."""

    __slots__ = ("element", "entries")

    def __init__(self, entries: tuple[tuple[Any, Value], ...], element: Value) -> None:
        self.entries, self.element = entries, element
        self._keep(entries, element)

    def get(self, key: Any) -> Value:
        """The value at a key."""
        for name, value in self.entries:
            if name == key:
                return value
        return self.element

    def __repr__(self) -> str:
        return f"Mapping({dict(self.entries)!r}, else {self.element!r})"


class External(_ByContent):
    """Something of a library, by its dotted name: `torch.nn.functional`, `torch.arange`, `numpy.array`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name
        self._keep(name)

    def __repr__(self) -> str:
        return f"External({self.name})"


class Layer(_ByContent):
    """An instance of a torch module class, by dotted class name: `torch.nn.Linear`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name
        self._keep(name)

    def __repr__(self) -> str:
        return f"Layer({self.name})"


class Method(_ByContent):
    """A method of a value that is not a user's instance: `tensor.view`, `dict.items`, `list.append`."""

    __slots__ = ("name", "receiver")

    def __init__(self, receiver: Value, name: str) -> None:
        self.receiver, self.name = receiver, name
        self._keep(receiver, name)

    def __repr__(self) -> str:
        return f"Method({self.receiver!r}.{self.name})"


class Function(_ByContent):
    """A function of the linted code: `info` is a `modules.FunctionInfo`, `bound` what `self` is, or None."""

    __slots__ = ("bound", "info")

    def __init__(self, info: Any, bound: Value | None = None) -> None:
        self.info, self.bound = info, bound
        self._keep(id(info), bound)

    def __repr__(self) -> str:
        return f"Function({self.info.qualname})"


class Class(_ByContent):
    """A class of the linted code: `info` is a `modules.ClassInfo`."""

    __slots__ = ("info",)

    def __init__(self, info: Any) -> None:
        self.info = info
        self._keep(id(info))

    def __repr__(self) -> str:
        return f"Class({self.info.qualname})"


class Instance(_ByContent):
    """An instance of a class of the linted code; `fields` are the attributes this one is known to have."""

    __slots__ = ("fields", "info")

    def __init__(self, info: Any, fields: tuple[tuple[str, Value], ...] = ()) -> None:
        self.info, self.fields = info, fields
        self._keep(id(info), fields)

    def __repr__(self) -> str:
        return f"Instance({self.info.qualname})"


class Partial(_ByContent):
    """`functools.partial(target, *args, **keywords)`."""

    __slots__ = ("args", "keywords", "target")

    def __init__(
        self, target: Value, args: tuple[Value, ...], keywords: tuple[tuple[str, Value], ...]
    ) -> None:
        self.target, self.args, self.keywords = target, args, keywords
        self._keep(target, args, keywords)

    def __repr__(self) -> str:
        return f"Partial({self.target!r})"


class Choice(_ByContent):
    """One of several things to call, of which it is not known which: `A() if flag else B()`."""

    __slots__ = ("options",)

    def __init__(self, options: tuple[Value, ...]) -> None:
        self.options = options
        self._keep(frozenset(options))

    def __repr__(self) -> str:
        return f"Choice({', '.join(map(repr, self.options))})"


class Module(_ByContent):
    """A module of the linted code: `info` is a `modules.ModuleInfo`."""

    __slots__ = ("info",)

    def __init__(self, info: Any) -> None:
        self.info = info
        self._keep(id(info))

    def __repr__(self) -> str:
        return f"Module({self.info.name})"


def join(left: Value, right: Value) -> Value:
    """What a name is after two branches that leave it as `left` and as `right`."""
    if left is right or left == right:
        return left
    if isinstance(left, Tensor):
        return _join_tensor(left, right)
    if isinstance(right, Tensor):
        return _join_tensor(right, left)
    if isinstance(left, Static) and isinstance(right, Static):
        return Static(left.kind) if left.kind == right.kind else STATIC
    # None or the thing: attribute access and calls mean the thing.
    if left == NONE:
        return right
    if right == NONE:
        return left
    if isinstance(left, Sequence) and isinstance(right, Sequence):
        return _join_sequences(left, right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return _join_mappings(left, right)
    if isinstance(left, Instance) and isinstance(right, Instance) and left.info is right.info:
        kept = {name: value for name, value in left.fields if dict(right.fields).get(name) == value}
        return Instance(left.info, tuple(kept.items()))
    return choice([left, right])


_CALLED: Final = (Instance, Class, Function, Layer, Partial, Choice)
_OPTIONS: Final = 4


def choice(values: list[Value]) -> Value:
    """One of these things; `UNKNOWN` if they are too many, or some are not there to be called."""
    options: dict[Value, None] = {}
    for value in values:
        if not isinstance(value, _CALLED) and not (
            isinstance(value, Sequence) and value.kind == "sequential"
        ):
            return UNKNOWN
        for option in value.options if isinstance(value, Choice) else (value,):
            _add_option(options, option)
    if len(options) == 1:
        return next(iter(options))
    return Choice(tuple(options)) if len(options) <= _OPTIONS else UNKNOWN


def _add_option(options: dict[Value, None], option: Value) -> None:
    """Add an option; objects of one class are one option, with the attributes that they share."""
    if isinstance(option, Instance):
        for known in options:
            if isinstance(known, Instance) and known.info is option.info:
                del options[known]
                option = join(known, option)
                break
    options[option] = None


def _join_tensor(left: Tensor, right: Value) -> Value:
    if isinstance(right, Tensor):
        return tensor(
            left.dtype if left.dtype == right.dtype else "",
            left.exact if left.exact == right.exact else "",
            left.ndim if left.ndim == right.ndim else -1,
            left.optional or right.optional,
            left.view or right.view,
            left.origin if left.origin == right.origin else "",
        )
    if right == NONE:
        return tensor(left.dtype, left.exact, left.ndim, True, left.view, left.origin)
    return UNKNOWN


def _join_sequences(left: Sequence, right: Sequence) -> Value:
    kind = left.kind if left.kind == right.kind else "list"
    if left.items is not None and right.items is not None and len(left.items) == len(right.items):
        items = tuple(join(one, other) for one, other in zip(left.items, right.items, strict=True))
        return Sequence(kind, items, join(left.element, right.element) if items else UNKNOWN)
    return Sequence(kind, None, joint_element(left, right), left.tensors or right.tensors)


def joint_element(left: Sequence, right: Sequence) -> Value:
    """What an element of either is."""
    if left.items == ():
        return right.element
    return left.element if right.items == () else join(left.element, right.element)


def _join_mappings(left: Mapping, right: Mapping) -> Value:
    names = [name for name, _ in left.entries]
    if names != [name for name, _ in right.entries]:
        # An order that does not depend on which branch is which.
        names = sorted({*names, *(name for name, _ in right.entries)}, key=repr)
    entries = tuple((name, join(left.get(name), right.get(name))) for name in names)
    return Mapping(entries, join(left.element, right.element))


def join_all(values: Any) -> Value:
    """The join of several values; `UNKNOWN` of none."""
    result: Value | None = None
    for value in values:
        result = value if result is None else join(result, value)
    return UNKNOWN if result is None else result


def without_none(value: Value) -> Value:
    """The value where it was just found not to be None."""
    if isinstance(value, Tensor) and value.optional:
        return tensor(value.dtype, value.exact, value.ndim, False, value.view, value.origin)
    return value


def is_tensor(value: Value) -> bool:
    """Whether this is surely a tensor (perhaps None as well)."""
    return type(value) is Tensor
