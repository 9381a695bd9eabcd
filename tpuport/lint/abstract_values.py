"""The abstract values of the interpreter: what an expression may be.

`Tensor` is a tensor (or None, if it is optional), `Static` lives in Python (shapes,
flags, strings), and `Unknown` may be either, so no error may rest on it. Values are
immutable and compared by content: equal calls are interpreted once.
"""

from typing import Any, Final

from tpuport.lint.work import meter

# None is a constant that programs use, so `...` marks a constant that the source text
# does not tell.
NOT_CONSTANT: Final = ...


class Value:
    """Base of all abstract values. What only some classes know has the value for "not
    known" here.

    Attributes:
        kind: of a `Static` or a `Sequence`.
        constant: of a `Static`.
        items: of a `Sequence`.
        dtype, exact, ndim, origin, decided: of a `Tensor`.
    """

    __slots__ = ()
    kind: str = ""
    constant: Any = NOT_CONSTANT
    items: "tuple[Value, ...] | None" = None
    dtype: str = ""
    exact: str = ""
    ndim: int = -1
    origin: str = ""
    decided: bool = False

    @property
    def inherited_origin(self) -> str:
        """The origin that a result computed from this value inherits: that of a mask,
        or of an item of a dict.
        """
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
            type(self) is type(other)
            and self._hash == other._hash  # pyright: ignore[reportAttributeAccessIssue]
            and self._key == other._key  # pyright: ignore[reportAttributeAccessIssue]
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
        kind: "int", "float", "bool", "str", "none", "dtype", "device", "shape",
            "config", ... or "" if not known.
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
SLICE: Final = Static("slice")
TRUE: Final = Static("bool", True)
FALSE: Final = Static("bool", False)


class Tensor(Value):
    """A tensor. Create it with `tensor(...)`, which returns equal tensors as the same
    object.

    Attributes:
        dtype: "bool", "int", "float", "complex" or "" if not known.
        exact: the exact dtype if the source text tells it ("float64", "float16",
            "int64"), else "".
        ndim: number of dimensions, or -1 if not known.
        optional: it may be None as well.
        view: it shares memory with another tensor (`x[0]`, `x.view(...)`,
            `x.transpose(...)`).
        origin: where it comes from, as far as a rule needs that: "mask" (a name or a
            comparison says so), "parameter", "buffer", "sparse" (it has no array),
            "sparse buffer" or ""; "item" if only the annotation of a dict says that it
            is a tensor; "element" if it is one of another tensor, and may have no
            dimensions if they are not known.
        host: it was created in traced code without a device: an ordinary tensor of the
            host, which has values.
        several: it is of the host and certainly has more than one element, so no
            operation takes it beside a traced tensor; torch accepts a single number of
            the host beside tensors of any device.
        decided: it follows from weights, buffers and sizes alone, so that code of
            libraries may ask for its values, which are computed before the trace.
        masked_read: the `masked_reads.MaskedRead` that it is, or whose rows it follows
            from row by row, or None.
    """

    __slots__ = (
        "decided",
        "dtype",
        "exact",
        "host",
        "masked_read",
        "ndim",
        "optional",
        "origin",
        "several",
        "view",
    )
    dtype: str
    exact: str
    ndim: int
    optional: bool
    view: bool
    origin: str
    host: bool
    several: bool
    decided: bool
    masked_read: Any

    @property
    def inherited_origin(self) -> str:
        return self.origin if self.origin in {"mask", "item"} else ""

    def __repr__(self) -> str:
        attributes = [
            f"{name}={getattr(self, name)!r}" for name in sorted(self.__slots__)
        ]
        return f"Tensor({', '.join(attributes)})"


_OF_WEIGHTS: Final = frozenset({"parameter", "buffer"})
# Interning makes equality of tensors, the most frequent values, a comparison of
# identities.
_tensors: dict[tuple[Any, ...], Tensor] = {}


def tensor(
    dtype: str = "",
    exact: str = "",
    ndim: int = -1,
    optional: bool = False,
    view: bool = False,
    origin: str = "",
    host: bool = False,
    several: bool = False,
    decided: bool = False,
    masked_read: Any = None,
) -> Tensor:
    """The only `Tensor` with these attributes. Weights are `decided`."""
    decided = decided or origin in _OF_WEIGHTS
    key = (
        dtype, exact, ndim, optional, view, origin, host, several, decided, masked_read
    )  # fmt: skip
    interned = _tensors.get(key)
    if interned is None:
        interned = _tensors[key] = Tensor()
        interned.dtype, interned.exact, interned.ndim, interned.optional = key[:4]
        interned.view, interned.origin, interned.host = key[4:7]
        interned.several, interned.decided, interned.masked_read = key[7:]
    return interned


def changed(value: Tensor, **attributes: Any) -> Tensor:
    """The tensor with other attributes."""
    known = {name: getattr(value, name) for name in Tensor.__slots__}
    return tensor(**known | attributes)


TENSOR: Final = tensor()
FLOAT_TENSOR: Final = tensor("float")
INT_TENSOR: Final = tensor("int")
BOOL_TENSOR: Final = tensor("bool")


# The elements of longer sequences are not told apart: `t = t + t` on sixty lines has
# more of them than memory.
_MOST_ITEMS: Final = 4096


class Sequence(_ByContent):
    """A tuple, list, set or iterator.

    Attributes:
        kind: "tuple", "list", "set", "dict_views", "iterator", "modules" (an
            `nn.ModuleList`), "sequential", "slice" (one with bounds that are tensors).
        items: the elements if their number is known and at most 4,096, else None.
        element: what any element is: the join of `items` if these are known.
        tensors: some element is certainly a traced tensor, whatever the others are:
            `[0, x.sum()]`.
    """

    __slots__ = ("element", "items", "kind", "tensors")

    def __init__(
        self,
        kind: str,
        items: tuple[Value, ...] | None,
        element: Value,
        tensors: bool = False,
    ) -> None:
        self.tensors = tensors or any(map(is_traced, (element, *(items or ()))))
        meter.units += len(items or ()) >> 2
        if items is not None and len(items) > _MOST_ITEMS:
            items = None
        self.kind, self.items, self.element = kind, items, element
        self._set_key(kind, items, element, self.tensors)

    def of_any_length(self) -> "Sequence":
        """The same elements, but not how many."""
        return Sequence(self.kind, None, self.element, self.tensors)


class Mapping(_ByContent):
    """A dict: `entries` for the keys that the source text tells, `element` for all
    others; it `is_open` if these are whatever a caller passes by name.
    """

    __slots__ = ("element", "entries", "is_open")

    def __init__(
        self,
        entries: tuple[tuple[Any, Value], ...],
        element: Value,
        is_open: bool = False,
    ) -> None:
        self.entries, self.element, self.is_open = entries, element, is_open
        meter.units += len(entries) >> 2
        self._set_key(entries, element, is_open)

    @property
    def values(self) -> list[Value]:
        """The values of `entries`."""
        return [value for _, value in self.entries]

    def get(self, key: Any) -> Value:
        """The value at a key."""
        return dict(self.entries).get(key, self.element)


class KeyValueCache(_ByContent):
    """A key/value cache of fixed shape, as a generation step gets it, or None if it is
    not `present`.
    """

    __slots__ = ("present",)

    def __init__(self, present: bool) -> None:
        self.present = present
        self._set_key(present)


CACHE: Final = KeyValueCache(present=False)
GIVEN_CACHE: Final = KeyValueCache(present=True)


class Namespace(_ByContent):
    """An object of which only the attributes are known, such as a
    `types.SimpleNamespace`.
    """

    __slots__ = ("attributes",)

    def __init__(self, attributes: tuple[tuple[str, Value], ...]) -> None:
        self.attributes = attributes
        self._set_key(attributes)


def packed_sequence(sizes_on_host: bool) -> Namespace:
    """A `PackedSequence`, a batch without its padding, which torch's recurrent layers
    take and give.
    """
    sizes = tensor("int", host=sizes_on_host)
    indices = tensor("int", optional=True, host=sizes_on_host)
    parts = (("data", FLOAT_TENSOR), ("batch_sizes", sizes))
    return Namespace(
        (*parts, ("sorted_indices", indices), ("unsorted_indices", indices))
    )


PACKED_SEQUENCES: Final = (
    packed_sequence(sizes_on_host=False),
    packed_sequence(sizes_on_host=True),
)
# The lengths that a model gets beside its sequences are traced.
PACKED_SEQUENCE: Final = PACKED_SEQUENCES[0]


class External(_ByContent):
    """A library object, by its dotted name: `torch.nn.functional`, `torch.arange`,
    `numpy.array`.

    Attributes:
        name: the dotted name.
        missing: its import fails on a TPU machine, and the code has None in its place
            or nothing at all.
    """

    __slots__ = ("missing", "name")

    def __init__(self, name: str, missing: bool = False) -> None:
        self.name, self.missing = name, missing
        self._set_key(name, missing)


class Layer(_ByContent):
    """An instance of a torch module class, by the class's dotted name:
    `torch.nn.Linear`.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name
        self._set_key(name)


class Method(_ByContent):
    """A method that the linted code does not define: `tensor.view`, `dict.items`,
    `list.append`.
    """

    __slots__ = ("name", "receiver")

    def __init__(self, receiver: Value, name: str) -> None:
        self.receiver, self.name = receiver, name
        self._set_key(receiver, name)


class Function(_ByContent):
    """A function of the linted code: `info` is a `modules.FunctionInfo`, `bound` is
    what `self` is, or None.
    """

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
    """An instance of a class of the linted code. `fields` are the attributes that are
    known of this instance.
    """

    __slots__ = ("fields", "info")

    def __init__(self, info: Any, fields: tuple[tuple[str, Value], ...] = ()) -> None:
        self.info, self.fields = info, fields
        self._set_key(id(info), fields)


class Interpreted(_ByContent):
    """A function that has been interpreted: a call of it returns `result`."""

    __slots__ = ("result",)

    def __init__(self, result: Value) -> None:
        self.result = result
        self._set_key(result)


class Partial(_ByContent):
    """`functools.partial(target, *args, **keywords)`."""

    __slots__ = ("args", "keywords", "target")

    def __init__(
        self,
        target: Value,
        args: tuple[Value, ...],
        keywords: tuple[tuple[str, Value], ...],
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


# --- questions that most of the interpreter asks ---


def options_of(value: Value) -> tuple[Value, ...]:
    """The callables that a value may be: the options of a choice, or only the value
    itself.
    """
    return value.options if isinstance(value, Choice) else (value,)


def without_none(value: Value) -> Value:
    """The value after a check that it is not None."""
    if value is CACHE:
        return GIVEN_CACHE
    if isinstance(value, Tensor) and value.optional:
        return changed(value, optional=False)
    return value


def is_tensor(value: Value | None) -> bool:
    """Whether this is certainly a tensor (perhaps None as well)."""
    return type(value) is Tensor


def is_traced(value: Value | None) -> bool:
    """Whether this is certainly a tensor that has no values while tracing, unlike a
    tensor of the host.
    """
    return type(value) is Tensor and not value.host


def class_of(value: Value | None) -> Any:
    """The `modules.ClassInfo` of an instance; None for everything else."""
    return value.info if isinstance(value, Instance) else None


def is_config_name(name: str) -> bool:
    """Whether a parameter or attribute of this name holds a configuration."""
    return f"_{name}".endswith("_config")
