"""What torch's tensor functions and tensor methods return, by their bare names.

`torch.softmax(x)`, `torch.nn.functional.softmax(x)` and `x.softmax()` are one function
here, whose first argument is the tensor. Most knowledge is in tables: a name has a
fixed result, or a handler that computes the result from the arguments. A name in no
table returns a tensor like its first argument.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from tpuport.lint.abstract_values import (
    BOOL,
    BOOL_TENSOR,
    FALSE,
    FLOAT_TENSOR,
    INT,
    INT_TENSOR,
    NONE,
    SHAPE,
    STATIC,
    STR,
    TENSOR,
    UNKNOWN,
    Sequence,
    Static,
    Tensor,
    Value,
    tensor,
)
from tpuport.lint.dtype_families import (
    Dtype,
    dtype_of_argument,
    family_of,
    promote,
    requested_dtype,
    with_dtype,
)
from tpuport.lint.interpreter import derived_values
from tpuport.lint.joins import (
    join_all,
)
from tpuport.lint.passed_arguments import Arguments

# Functions that create a tensor from shapes and Python values.
FACTORIES: Final = frozenset(
    "zeros ones empty full arange linspace logspace rand randn randint randperm eye tensor as_tensor zeros_like"
    " ones_like empty_like full_like rand_like randn_like randint_like tril_indices triu_indices from_numpy"
    " scalar_tensor bernoulli normal empty_strided hann_window asarray".split()
)
# Methods that only tensors have: what has one of these called on it is a tensor.
TENSOR_ONLY_METHODS: Final = frozenset(
    "unsqueeze squeeze masked_fill masked_fill_ softmax permute contiguous detach cumsum expand expand_as"
    " type_as view_as reshape_as repeat_interleave flatten unflatten masked_scatter index_select"
    " scatter scatter_add scatter_ scatter_add_ gather argmax argmin argsort topk clamp clamp_ tanh sigmoid exp log"
    " rsqrt bool long float half bfloat16 double matmul bmm unbind chunk transpose unfold addmm baddbmm"
    " new_zeros new_ones new_empty new_full new_tensor log_softmax nonzero masked_select index_add index_add_ copy_"
    " zero_ fill_ mul_ add_ sub_ div_ tril triu roll flip narrow movedim swapaxes nan_to_num logical_not logical_and"
    " logical_or eq ne lt le gt ge amax amin".split()
)

_VALUES_AND_INDICES: Final = "max min median nanmedian mode cummax cummin kthvalue"
_PARTS: Final = (
    "split chunk unbind tensor_split hsplit vsplit dsplit split_with_sizes unsafe_split"
)
_BOOLEAN: Final = (
    "eq ne lt le gt ge greater greater_equal less less_equal not_equal isnan isinf isfinite isclose logical_and"
    " logical_or logical_not logical_xor isin isposinf isneginf isreal signbit"
)
_INTEGER: Final = "argsort bincount searchsorted bucketize count_nonzero multinomial"
_FLOATING: Final = (
    "softmax log_softmax sigmoid exp log sqrt rsqrt sin cos tan tanh var std erf linear gelu silu relu"
    " layer_norm rms_norm group_norm scaled_dot_product_attention interpolate conv1d conv2d conv3d"
    " conv_transpose1d conv_transpose2d conv_transpose3d embedding dropout softplus normalize cosine_similarity"
    " grid_sample cross_entropy mse_loss avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d"
    " leaky_relu elu hardtanh mish glu logsigmoid stft bilinear vector_norm matrix_norm"
)
# Results that share memory with the first argument.
_VIEWS_OF_SAME_NDIM: Final = frozenset(
    "transpose permute swapaxes detach movedim view_as t".split()
)
_VIEWS_OF_OTHER_NDIM: Final = frozenset(
    "view reshape unsqueeze squeeze expand flatten unflatten narrow select reshape_as expand_as swapdims moveaxis"
    " diagonal unfold real imag as_strided ravel view_as_real".split()
)
_REAL_VIEWS_OF_COMPLEX: Final = frozenset("view_as_real real imag".split())
_PROMOTING: Final = (
    "add sub mul matmul maximum minimum bitwise_and bitwise_or outer bmm"
)


class _TensorCall(NamedTuple):
    """A call of a tensor function: `first` is the tensor, `default` the dtype family if
    nothing tells another.
    """

    name: str
    first: Value
    arguments: Arguments
    default: str


_Handler = Callable[[_TensorCall], Value]


def like(value: Value) -> Tensor:
    """A new tensor of the same dtype and dimensions, as far as they are known."""
    return tensor(value.dtype, value.exact, value.ndim, origin=value.inherited_origin)


def tensor_function(name: str, arguments: Arguments, default: str = "") -> Value:
    """What the torch function of that bare name returns."""
    fixed = _FIXED_RESULTS.get(name)
    if fixed is not None:
        return fixed
    handler = _HANDLERS.get(name, _elementwise)
    return handler(_TensorCall(name, arguments.get(0, "input"), arguments, default))


# --- handlers of functions ---


def _elementwise(call: _TensorCall) -> Value:
    first = call.first
    family = first.dtype if isinstance(first, Tensor) else call.default
    return tensor(
        *requested_dtype(call.arguments.keywords, family),
        first.ndim,
        origin=first.inherited_origin,
    )


def _view(call: _TensorCall) -> Value:
    first = call.first
    if not isinstance(first, Tensor):
        return _elementwise(call)
    dtype, ndim = first.dtype, -1
    if call.name in _REAL_VIEWS_OF_COMPLEX:
        dtype = "float"
    if call.name in _VIEWS_OF_SAME_NDIM:
        ndim = first.ndim
    return tensor(dtype, first.exact, ndim, view=True, origin=first.inherited_origin)


def _floating(call: _TensorCall) -> Value:
    return tensor(*_floating_dtype(call), call.first.ndim)


def _mean(call: _TensorCall) -> Value:
    # Which dimensions remain depends on `dim` and `keepdim`.
    return tensor(*_floating_dtype(call))


def _floating_dtype(call: _TensorCall) -> Dtype:
    # Integers become floats, complex numbers stay complex.
    family = "complex" if call.first.dtype == "complex" else "float"
    return requested_dtype(call.arguments.keywords, family)


def _boolean(call: _TensorCall) -> Value:
    return tensor("bool", ndim=call.first.ndim)


def _promoting(call: _TensorCall) -> Value:
    return tensor(
        promote(call.first, call.arguments.get(1, "other")),
        origin=call.first.inherited_origin,
    )


def _concatenation(call: _TensorCall) -> Value:
    match call.first:
        case Sequence(element=element):
            return tensor(element.dtype, origin=element.inherited_origin)
        case _:
            return TENSOR


def _reduction(call: _TensorCall) -> Value:
    """Sums and products, of which `cumsum` keeps the dimensions."""
    first = call.first
    if not isinstance(first, Tensor):
        return _elementwise(call)
    family, ndim = first.dtype, -1
    # torch counts in int64.
    if family == "bool":
        family = "int"
    # Without `dim`, a sum is over everything.
    if call.name in {"sum", "prod"} and call.arguments == Arguments([first], {}):
        ndim = 0
    return tensor(*requested_dtype(call.arguments.keywords, family), ndim)


def _position(call: _TensorCall) -> Value:
    """Positions of extremes; without `dim`, of the whole tensor's."""
    is_whole = call.arguments == Arguments([call.first], {})
    return tensor("int", ndim=0 if is_whole else -1)


def _parts(call: _TensorCall) -> Value:
    part = like(call.first)
    return Sequence("tuple", None, tensor(part.dtype, part.exact, part.ndim, view=True))


def _values_and_indices(call: _TensorCall) -> Value:
    values = like(call.first)
    positional, keywords = call.arguments.positional, call.arguments.keywords
    # `max(x, other)` compares two tensors.
    if isinstance(call.arguments.get(1), Tensor):
        return values
    if len(positional) > 1 or keywords.keys() & {"dim", "k"}:
        return Sequence("tuple", (values, INT_TENSOR), TENSOR)
    return tensor(values.dtype, values.exact, 0)


def _sorted(call: _TensorCall) -> Value:
    return Sequence("tuple", (like(call.first), INT_TENSOR), TENSOR)


def _pair(call: _TensorCall) -> Value:
    part = like(call.first)
    return Sequence("tuple", (part, part), TENSOR)


def _like_first(call: _TensorCall) -> Value:
    return like(call.first)


def _where(call: _TensorCall) -> Value:
    arguments = call.arguments
    # `where(condition)` is `nonzero(condition, as_tuple=True)`.
    if len(arguments.positional) + len(arguments.keywords) == 1:
        return Sequence("tuple", None, INT_TENSOR)
    return tensor(promote(arguments.get(1, "input"), arguments.get(2, "other")))


def _nonzero(call: _TensorCall) -> Value:
    as_tuple = call.arguments.keywords.get("as_tuple", FALSE)
    # Indices of one element a row, of as many columns as the argument has dimensions.
    if as_tuple.constant is False:
        return tensor("int", ndim=2)
    return Sequence("tuple", None, INT_TENSOR)


def _unique(call: _TensorCall) -> Value:
    positional, keywords = call.arguments.positional, call.arguments.keywords
    if keywords.keys() & {"return_inverse", "return_counts"} or len(positional) > 2:
        return Sequence("tuple", None, TENSOR)
    return tensor(call.first.dtype, ndim=1)


def _broadcast(call: _TensorCall) -> Value:
    parts = tuple(map(like, call.arguments.positional))
    return Sequence("tuple", parts, join_all(parts))


# --- factories ---

_SIZED_FACTORIES: Final = frozenset("zeros ones empty full rand randn".split())


def _factory(call: _TensorCall) -> Value:
    keywords = call.arguments.keywords
    template = call.arguments.first
    if call.name.endswith("_like") and isinstance(template, Tensor):
        return tensor(*requested_dtype(keywords, template.dtype), template.ndim)
    family = _FACTORY_FAMILIES.get(call.name, "float")
    if not isinstance(family, str):
        family = family(call.arguments)
    return tensor(
        *requested_dtype(keywords, family),
        _factory_ndim(call.name, call.arguments.positional),
    )


def _family_of_range(arguments: Arguments) -> str:
    families = set(map(family_of, arguments.positional))
    if families <= {"int"}:
        return "int"
    # One float among the bounds is enough.
    return "float" if "float" in families else ""


def _family_of_fill_value(arguments: Arguments) -> str:
    return family_of(arguments.get(1))


def _family_of_data(arguments: Arguments) -> str:
    match arguments.first:
        case Sequence(element=element):
            return family_of(element)
        case data:
            return family_of(data)


# Factories that create anything but floats: a family, or a function of the arguments.
_FACTORY_FAMILIES: Final[dict[str, str | Callable[[Arguments], str]]] = {
    **dict.fromkeys(
        "randint randint_like randperm tril_indices triu_indices".split(), "int"
    ),
    "from_numpy": "",
    "arange": _family_of_range,
    "full": _family_of_fill_value,
    "tensor": _family_of_data,
    "as_tensor": _family_of_data,
    "asarray": _family_of_data,
}


def _factory_ndim(name: str, arguments: list[Value]) -> int:
    match name, arguments:
        case (("arange" | "linspace" | "logspace" | "randperm"), _):
            return 1
        case "eye", _:
            return 2
        case "tensor", [Static(kind="int" | "float" | "bool"), *_]:
            return 0
        # `zeros((2, 3))`, `full((2, 3), value)`
        case _, [Sequence(items=tuple(sizes)), *_] if name in _SIZED_FACTORIES:
            return len(sizes)
        # `full` has no sizes in separate arguments: its second one is the value.
        case "full", _:
            return -1
        case _, sizes if name in _SIZED_FACTORIES and {size.kind for size in sizes} == {
            "int"
        }:
            return len(sizes)
        case _:
            return -1


# --- the tables of functions ---

_FIXED_RESULTS: Final[dict[str, Value]] = {
    **dict.fromkeys(_INTEGER.split(), INT_TENSOR),
    **dict.fromkeys(("polar", "view_as_complex", "complex"), tensor("complex")),
    **dict.fromkeys(("div", "true_divide"), FLOAT_TENSOR),
    **dict.fromkeys(("any", "all"), BOOL_TENSOR),
    **dict.fromkeys(("is_complex", "is_floating_point"), BOOL),
    **dict.fromkeys(("item", "numpy"), STATIC),
    "argwhere": tensor("int", ndim=2),
    "meshgrid": Sequence("tuple", None, TENSOR),
    "tolist": Sequence("list", None, STATIC),
    "cartesian_prod": TENSOR,
}
_HANDLERS: Final[dict[str, _Handler]] = {
    **dict.fromkeys(_VIEWS_OF_SAME_NDIM | _VIEWS_OF_OTHER_NDIM, _view),
    **dict.fromkeys(_FLOATING.split(), _floating),
    "mean": _mean,
    **dict.fromkeys(
        "cat concat stack concatenate hstack vstack".split(), _concatenation
    ),
    **dict.fromkeys(_PROMOTING.split(), _promoting),
    **dict.fromkeys("sum cumsum prod cumprod".split(), _reduction),
    **dict.fromkeys(FACTORIES, _factory),
    **dict.fromkeys(_BOOLEAN.split(), _boolean),
    **dict.fromkeys(("argmax", "argmin"), _position),
    **dict.fromkeys(_PARTS.split(), _parts),
    **dict.fromkeys(_VALUES_AND_INDICES.split(), _values_and_indices),
    **dict.fromkeys("aminmax var_mean std_mean frexp".split(), _pair),
    **dict.fromkeys(("sort", "topk"), _sorted),
    **dict.fromkeys(("max_pool1d", "max_pool2d"), _like_first),
    **dict.fromkeys(("unique", "unique_consecutive"), _unique),
    "where": _where,
    "nonzero": _nonzero,
    "broadcast_tensors": _broadcast,
}

# --- methods ---

_STATIC_METHODS: Final[dict[str, Value]] = {
    "dim": INT, "ndimension": INT, "numel": INT, "nelement": INT, "element_size": INT, "stride": SHAPE,
    "is_floating_point": BOOL, "is_complex": BOOL, "is_contiguous": BOOL, "get_device": INT, "data_ptr": INT,
    "storage_offset": INT, "is_pinned": BOOL, "item": STATIC, "numpy": STATIC, "equal": BOOL, "allclose": BOOL,
    "is_nonzero": BOOL, "is_same_size": BOOL, "backward": NONE, "register_hook": NONE, "__len__": INT,
    "is_shared": BOOL, "is_set_to": BOOL, "is_inference": BOOL, "untyped_storage": STATIC, "storage": STATIC,
}  # fmt: skip
_CASTS: Final = {
    "bool": Dtype("bool"), "long": Dtype("int", "int64"), "int": Dtype("int"), "short": Dtype("int"),
    "byte": Dtype("int"), "char": Dtype("int"), "float": Dtype("float"), "half": Dtype("float", "float16"),
    "double": Dtype("float", "float64"), "bfloat16": Dtype("float", "bfloat16"), "cfloat": Dtype("complex"),
    "cdouble": Dtype("complex", "complex128"),
}  # fmt: skip


def tensor_method(receiver: Tensor, name: str, arguments: Arguments) -> Value:
    """What a method of a tensor returns."""
    return derived_values.of_method(
        receiver, name, arguments, _method_result(receiver, name, arguments)
    )


def _method_result(receiver: Tensor, name: str, arguments: Arguments) -> Value:
    if name in _STATIC_METHODS:
        return _STATIC_METHODS[name]
    if name in _CASTS:
        return with_dtype(receiver, *_CASTS[name])
    function = name
    # `mul_` returns what `mul` does; `__getitem__` is not an in-place method.
    if not name.startswith("_"):
        function = name.removesuffix("_")
    handler = _METHOD_HANDLERS.get(name, _METHOD_HANDLERS.get(function))
    if handler is not None:
        return handler(receiver, arguments)
    return tensor_function(
        function, Arguments([receiver, *arguments.positional], arguments.keywords)
    )


def _size(receiver: Tensor, arguments: Arguments) -> Value:
    # `x.size(0)`, `x.size()`
    return SHAPE if arguments.is_empty else INT


def _converted(receiver: Tensor, arguments: Arguments) -> Value:
    """`.to(...)`: the dtype if there is one among the arguments; a device does not
    change it.
    """
    # Floats become other floats; of anything else the result may be anything.
    family_if_unchanged = "float" if receiver.dtype == "float" else ""
    for value in [*arguments.positional, arguments.keywords.get("dtype", NONE)]:
        dtype = dtype_of_argument(value)
        if dtype:
            return with_dtype(receiver, *dtype)
        if isinstance(value, Tensor):
            return with_dtype(receiver, value.dtype, value.exact)
        if value.kind == "dtype":
            # `.to(other.dtype)`: the dtype is unknown, but it is hardly ever bool.
            return with_dtype(receiver, family_if_unchanged)
    if UNKNOWN in arguments.positional:
        return with_dtype(receiver, family_if_unchanged)
    return receiver


def _type(receiver: Tensor, arguments: Arguments) -> Value:
    # `x.type()` is the name of a class, `"torch.FloatTensor"`.
    return STR if arguments.is_empty else _converted(receiver, arguments)


def _view_or_reinterpretation(receiver: Tensor, arguments: Arguments) -> Value:
    """`.view(sizes)` or `.view(dtype)`."""
    dtype = dtype_of_argument(arguments.first)
    if dtype:
        return with_dtype(receiver, *dtype)
    return tensor_function(
        "view", Arguments([receiver, *arguments.positional], arguments.keywords)
    )


def _new(receiver: Tensor, arguments: Arguments) -> Value:
    return tensor(*requested_dtype(arguments.keywords, receiver.dtype))


def _new_from_data(receiver: Tensor, arguments: Arguments) -> Value:
    if not arguments.positional:
        return _new(receiver, arguments)
    return tensor(requested_dtype(arguments.keywords).family)


def _copy(receiver: Tensor, arguments: Arguments) -> Value:
    return tensor(receiver.dtype, receiver.exact, receiver.ndim, origin=receiver.origin)


def _expanded(receiver: Tensor, arguments: Arguments) -> Value:
    return tensor(
        receiver.dtype, receiver.exact, receiver.ndim, view=True, origin=receiver.origin
    )


def _logical_not(receiver: Tensor, arguments: Arguments) -> Value:
    return tensor("bool", ndim=receiver.ndim, origin=receiver.origin)


def _bitwise_not(receiver: Tensor, arguments: Arguments) -> Value:
    return tensor(receiver.dtype, ndim=receiver.ndim, origin=receiver.origin)


_METHOD_HANDLERS: Final[dict[str, Callable[[Tensor, Arguments], Value]]] = {
    "size": _size,
    **dict.fromkeys("to type_as cuda cpu pin_memory".split(), _converted),
    "type": _type,
    **dict.fromkeys("new_zeros new_ones new_empty new_full".split(), _new),
    "new_tensor": _new_from_data,
    "view": _view_or_reinterpretation,
    **dict.fromkeys(
        "contiguous clone requires_grad_ repeat fill_ zero_ share_memory_".split(),
        _copy,
    ),
    "expand": _expanded,
    "logical_not": _logical_not,
    "bitwise_not": _bitwise_not,
}
