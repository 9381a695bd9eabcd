"""What library functions give: torch, torch.nn.functional, einops, numpy, math. Tables and a few formulas."""

from typing import Final

from tpuport.lint.abstract_values import (
    BOOL,
    DEVICE,
    DTYPE,
    FALSE,
    FLOAT,
    FLOAT_TENSOR,
    INT,
    INT_TENSOR,
    SHAPE,
    STATIC,
    TENSOR,
    TRUE,
    UNKNOWN,
    External,
    Layer,
    Sequence,
    Static,
    Tensor,
    Value,
    is_tensor,
    join_all,
    tensor,
)
from tpuport.lint.interpreter import dtypes

# torch.<name> that gives something of Python's.
STATIC_FUNCTIONS: Final = frozenset(
    "is_tensor is_floating_point is_complex is_storage is_grad_enabled is_inference_mode_enabled finfo iinfo numel Size"
    " device dtype Generator get_default_dtype get_default_device set_default_dtype manual_seed seed initial_seed"
    " get_rng_state set_rng_state broadcast_shapes result_type promote_types can_cast is_autocast_enabled"
    " get_autocast_dtype get_autocast_gpu_dtype is_autocast_cpu_enabled get_num_threads set_num_threads"
    " set_grad_enabled no_grad enable_grad inference_mode autocast memory_format strided preserve_format"
    " channels_last contiguous_format is_deterministic_algorithms_warn_only_enabled typename is_nonzero equal"
    " allclose is_same_size is_conj is_neg _check _assert set_float32_matmul_precision compile".split()
)
# Functions whose result is a bool tensor.
BOOLEAN: Final = frozenset(
    "eq ne lt le gt ge greater greater_equal less less_equal not_equal isnan isinf isfinite isclose logical_and"
    " logical_or logical_not logical_xor isin isposinf isneginf isreal signbit any all".split()
)
INTEGER: Final = frozenset(
    "argmax argmin argsort bincount searchsorted bucketize count_nonzero multinomial".split()
)
# With `dim`, a named tuple (values, indices).
VALUES_AND_INDICES: Final = frozenset(
    "max min median nanmedian mode sort topk kthvalue cummax cummin".split()
)
PARTS: Final = frozenset(
    "split chunk unbind tensor_split hsplit vsplit dsplit split_with_sizes unsafe_split".split()
)
FLOATING: Final = frozenset(
    "softmax log_softmax sigmoid exp log sqrt rsqrt sin cos tan tanh mean var std norm rand randn normal erf linear"
    " gelu silu relu layer_norm rms_norm group_norm scaled_dot_product_attention interpolate conv1d conv2d conv3d"
    " conv_transpose1d conv_transpose2d conv_transpose3d embedding dropout softplus normalize cosine_similarity"
    " grid_sample cross_entropy mse_loss rand_like randn_like linspace logspace hann_window polar"
    " avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d leaky_relu elu"
    " hardtanh mish glu logsigmoid stft bilinear vector_norm matrix_norm".split()
)
COMPLEX: Final = frozenset("polar view_as_complex complex".split())
# Results that share memory with the first argument.
VIEWS: Final = frozenset(
    "view reshape transpose permute unsqueeze squeeze expand flatten unflatten narrow select movedim swapaxes t"
    " view_as reshape_as expand_as swapdims moveaxis diagonal unfold real imag detach as_strided ravel"
    " view_as_real view_as_complex chunk split unbind".split()
)
FACTORIES: Final = frozenset(
    "zeros ones empty full arange linspace logspace rand randn randint randperm eye tensor as_tensor zeros_like"
    " ones_like empty_like full_like rand_like randn_like randint_like tril_indices triu_indices from_numpy"
    " scalar_tensor"
    " bernoulli normal empty_strided hann_window asarray".split()
)
# Methods that only tensors have: enough to take an unknown receiver for a tensor's result.
TENSOR_ONLY_METHODS: Final = frozenset(
    "unsqueeze squeeze masked_fill masked_fill_ softmax permute contiguous detach cumsum expand expand_as"
    " type_as view_as reshape_as repeat_interleave flatten unflatten masked_scatter index_select"
    " scatter scatter_add scatter_ scatter_add_ gather argmax argmin argsort topk clamp clamp_ tanh sigmoid exp log"
    " rsqrt bool long float half bfloat16 double matmul bmm unbind chunk transpose unfold addmm baddbmm"
    " new_zeros new_ones new_empty new_full new_tensor log_softmax nonzero masked_select index_add index_add_ copy_"
    " zero_ fill_ mul_ add_ sub_ div_ tril triu roll flip narrow movedim swapaxes nan_to_num logical_not logical_and"
    " logical_or eq ne lt le gt ge amax amin".split()
)
# Attributes that, on a thing not known, say that it is a tensor (numpy arrays do not come into forward).
TENSOR_ATTRIBUTES: Final = frozenset("requires_grad grad_fn is_cuda is_leaf layout".split())

_PYTHON_NAMESPACES: Final = (
    "torch.cuda", "torch.backends", "torch.distributed", "torch.jit", "torch.compiler", "torch._dynamo",
    "torch.version", "torch.utils", "torch.onnx", "torch.autograd", "torch.overrides", "torch.amp", "torch.mps",
    "torch.xpu",
    "torch.profiler", "torch.fx", "torch._C", "torch.library", "torch.types", "torch.hub", "torch.npu", "torch.random",
    "torch.testing", "torch._logging", "torch.accelerator", "torch.nn.init", "torch.export", "torch.func",
    "torch.serialization",
)  # fmt: skip
TENSOR_NAMESPACES: Final = (
    "torch.nn.functional.",
    "torch.linalg.",
    "torch.fft.",
    "torch.special.",
    "torch.ops.",
)
# Questions whose answer under jax.jit through torchax is no.
_FALSE_HERE: Final = frozenset(
    "torch.jit.is_tracing torch.jit.is_scripting torch.compiler.is_compiling torch.compiler.is_dynamo_compiling"
    " torch.compiler.is_exporting torch._dynamo.is_compiling torch.onnx.is_in_onnx_export torch.cuda.is_available"
    " torch.cuda.is_current_stream_capturing torch.xpu.is_available torch.xpu.is_current_stream_capturing"
    " torch.distributed.is_initialized torch.distributed.is_available torch.is_autocast_enabled".split()
)
_CONSTANTS: Final = frozenset("torch.inf torch.pi torch.nan torch.e math.pi math.inf math.nan math.e".split())


def attribute(name: str) -> Value:
    """A library name as a value: dtypes and constants are static, the rest keeps its name."""
    if name in _CONSTANTS or name in {"numpy.pi", "numpy.inf", "numpy.nan"}:
        return FLOAT
    if dtypes.of_name(name):
        return Static("dtype", name)
    return External(name)


def call(name: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    """What a library function gives for these arguments."""
    top = name.partition(".")[0]
    if top == "torch":
        return _torch_call(name, args, keywords)
    if top == "einops":
        return _einops(name, args)
    if top in {
        "math",
        "os",
        "time",
        "logging",
        "warnings",
        "re",
        "sys",
        "inspect",
        "itertools",
        "random",
        "string",
    }:
        return STATIC if top != "itertools" else UNKNOWN
    if top == "torchvision":
        return TENSOR if any(is_tensor(value) for value in args) else UNKNOWN
    if top == "copy":
        return args[0] if args else UNKNOWN
    # numpy in traced code works on host values; a tensor that goes in is a finding, what comes out is static.
    return STATIC if top == "numpy" else UNKNOWN


def _einops(name: str, args: list[Value]) -> Value:
    last = name.rpartition(".")[2]
    if last in {"rearrange", "repeat", "reduce", "einsum"}:
        first = args[0] if args else UNKNOWN
        dtype = first.dtype if isinstance(first, Tensor) else ""
        return tensor(dtype, origin=first.origin if isinstance(first, Tensor) else "")
    if last in {"pack", "unpack"}:
        return (
            Sequence("tuple", (TENSOR, SHAPE), UNKNOWN) if last == "pack" else Sequence("list", None, TENSOR)
        )
    return Layer(name) if last[:1].isupper() else UNKNOWN


def _torch_call(name: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    if name.startswith("torch.nn.functional."):
        return _functional(name[20:], args, keywords)
    if name.startswith(TENSOR_NAMESPACES):
        return _namespaced(name, args)
    if name in _FALSE_HERE:
        return FALSE
    if name.startswith(_PYTHON_NAMESPACES):
        if name in {"torch.utils.checkpoint.checkpoint", "torch.func.functional_call"}:
            return UNKNOWN
        return BOOL if name.rpartition(".")[2].startswith("is_") else UNKNOWN
    if name.startswith("torch.nn."):
        return layer(name, args, keywords)
    last = name[6:]
    if last == "is_tensor" and args:
        return _is_tensor(args[0])
    if last in STATIC_FUNCTIONS:
        return {
            "device": DEVICE,
            "dtype": DTYPE,
            "Size": SHAPE,
            "numel": INT,
            "get_default_dtype": DTYPE,
        }.get(last, BOOL if last.startswith(("is_", "equal", "allclose")) else STATIC)
    if last[:1].isupper():
        return dtypes_class(last)
    return tensor_function(last, args, keywords)


def _is_tensor(value: Value) -> Value:
    """`torch.is_tensor(value)`."""
    if isinstance(value, Tensor):
        return BOOL if value.optional else TRUE
    return FALSE if isinstance(value, Static) and value.kind not in {"", "config"} else BOOL


def dtypes_class(last: str) -> Value:
    """`torch.Tensor(...)`, `torch.LongTensor(...)`."""
    return tensor(dtypes.TENSOR_CLASSES[last]) if last in dtypes.TENSOR_CLASSES else UNKNOWN


def _namespaced(name: str, args: list[Value]) -> Value:
    last = name.rpartition(".")[2]
    if name.startswith("torch.linalg.") and last in {"svd", "qr", "eigh", "eig", "slogdet", "lu"}:
        return Sequence("tuple", None, FLOAT_TENSOR)
    if name.startswith("torch.ops."):
        return TENSOR if any(is_tensor(value) for value in args) else UNKNOWN
    return FLOAT_TENSOR if not last.startswith("fft") else TENSOR


def _functional(last: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    if last in {"pad", "relu", "pixel_shuffle", "pixel_unshuffle", "unfold", "fold", "threshold", "hardtanh"}:
        return like(args[0] if args else UNKNOWN)
    if last == "one_hot":
        return INT_TENSOR
    if last == "multi_head_attention_forward":
        return Sequence("tuple", (FLOAT_TENSOR, tensor("float", optional=True)), FLOAT_TENSOR)
    if last.endswith("_with_indices"):
        return Sequence("tuple", (FLOAT_TENSOR, INT_TENSOR), FLOAT_TENSOR)
    if last in {"has_torch_function", "has_torch_function_unary"}:
        return BOOL
    return tensor_function(last, args, keywords, default="float")


def like(value: Value) -> Value:
    """A new tensor of the same dtype and dimensions."""
    if isinstance(value, Tensor):
        return tensor(
            value.dtype, value.exact, value.ndim, origin=value.origin if value.origin == "mask" else ""
        )
    return TENSOR


def tensor_function(last: str, args: list[Value], keywords: dict[str, Value], default: str = "") -> Value:
    """What the torch function (or the tensor method) of that bare name gives; the tensor itself is `args[0]`."""
    first = args[0] if args else keywords.get("input", UNKNOWN)
    special = _MANY.get(last) or (_values_and_indices if last in VALUES_AND_INDICES else None)
    if special:
        return special(first, args, keywords)
    if last in PARTS:
        part = like(first)
        view = tensor(part.dtype, part.exact, part.ndim, view=True) if isinstance(part, Tensor) else part
        return Sequence("tuple", None, view)
    if last in BOOLEAN:
        return tensor(
            "bool", ndim=first.ndim if isinstance(first, Tensor) and last not in {"any", "all"} else -1
        )
    if last in INTEGER:
        return INT_TENSOR
    if last in FACTORIES:
        return factory(last, args, keywords)
    if last in COMPLEX:
        return tensor("complex")
    return _elementwise(last, first, args, keywords, default)


def _elementwise(
    last: str, first: Value, args: list[Value], keywords: dict[str, Value], default: str
) -> Value:
    if last in VIEWS and isinstance(first, Tensor):
        same = last in {"transpose", "permute", "swapaxes", "detach", "movedim", "view_as", "t"}
        return tensor(
            "float" if last in {"view_as_real", "real", "imag"} else first.dtype,
            first.exact, first.ndim if same else -1, view=True, origin=_passed_on(first),
        )  # fmt: skip
    if last in FLOATING and last not in {"norm"}:
        family, exact = dtypes.given(
            keywords, "complex" if isinstance(first, Tensor) and first.dtype == "complex" else "float"
        )
        return tensor(family, exact, first.ndim if isinstance(first, Tensor) and last != "mean" else -1)
    if last in {"where"} and len(args) >= 3:
        return tensor(dtypes.promote(args[1], args[2]))
    if last in {"cat", "concat", "stack", "concatenate", "hstack", "vstack"}:
        element = first.element if isinstance(first, Sequence) else UNKNOWN
        return tensor(element.dtype if isinstance(element, Tensor) else "", origin=_passed_on(element))
    if last in {
        "add",
        "sub",
        "mul",
        "matmul",
        "maximum",
        "minimum",
        "bitwise_and",
        "bitwise_or",
        "outer",
        "bmm",
    }:
        return tensor(dtypes.promote(first, args[1]) if len(args) > 1 else "", origin=_passed_on(first))
    if last == "div" or last == "true_divide":
        return FLOAT_TENSOR
    if last in {"sum", "cumsum", "prod", "cumprod"} and isinstance(first, Tensor):
        family, exact = dtypes.given(keywords, "int" if first.dtype == "bool" else first.dtype)
        return tensor(family, exact, 0 if last in {"sum", "prod"} and len(args) == 1 and not keywords else -1)
    if isinstance(first, Tensor):
        family, exact = dtypes.given(keywords, first.dtype)
        return tensor(family, exact, first.ndim, origin=_passed_on(first))
    family, exact = dtypes.given(keywords, default)
    return tensor(family, exact)


def _passed_on(value: Value) -> str:
    return "mask" if isinstance(value, Tensor) and value.origin == "mask" else ""


def _values_and_indices(first: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    values = like(first)
    second = args[1] if len(args) > 1 else None
    if second is None and not keywords.keys() & {"dim", "k"}:
        # max(), min(), median() over everything.
        return tensor(values.dtype, values.exact, 0) if isinstance(values, Tensor) else values
    if isinstance(second, Tensor):
        return like(first)
    return Sequence("tuple", (values, INT_TENSOR), TENSOR)


def _sorted(first: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return Sequence("tuple", (like(first), INT_TENSOR), TENSOR)


def _where(first: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    if len(args) + len(keywords) == 1:
        return Sequence("tuple", None, INT_TENSOR)
    one = args[1] if len(args) > 1 else keywords.get("input", UNKNOWN)
    other = args[2] if len(args) > 2 else keywords.get("other", UNKNOWN)
    return tensor(dtypes.promote(one, other))


def _nonzero(first: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    as_tuple = keywords.get("as_tuple")
    if as_tuple is not None and not (isinstance(as_tuple, Static) and as_tuple.constant is False):
        return Sequence("tuple", None, INT_TENSOR)
    return tensor("int", ndim=2)


def _unique(first: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    if keywords.keys() & {"return_inverse", "return_counts"} or len(args) > 2:
        return Sequence("tuple", None, TENSOR)
    return tensor(first.dtype, ndim=1) if isinstance(first, Tensor) else tensor(ndim=1)


def _meshgrid(first: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return Sequence("tuple", None, TENSOR)


def _broadcast(first: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return Sequence("tuple", tuple(like(value) for value in args), join_all([like(value) for value in args]))


def _tolist(first: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return Sequence("list", None, STATIC)


def _aminmax(first: Value, args: list[Value], keywords: dict[str, Value]) -> Value:
    return Sequence("tuple", (like(first), like(first)), TENSOR)


_MANY: Final = {
    "sort": _sorted, "topk": _sorted, "where": _where, "nonzero": _nonzero,
    "argwhere": lambda *_: tensor("int", ndim=2),
    "unique": _unique, "unique_consecutive": _unique, "meshgrid": _meshgrid, "broadcast_tensors": _broadcast,
    "tolist": _tolist, "aminmax": _aminmax, "var_mean": _aminmax, "std_mean": _aminmax, "frexp": _aminmax,
    "max_pool2d": lambda first, *_: like(first), "max_pool1d": lambda first, *_: like(first),
    "cartesian_prod": lambda *_: TENSOR, "item": lambda *_: STATIC, "numpy": lambda *_: STATIC,
    "is_complex": lambda *_: BOOL, "is_floating_point": lambda *_: BOOL,
}  # fmt: skip


def factory(last: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    """A tensor made from shapes and Python values."""
    if last.endswith("_like") and args and isinstance(args[0], Tensor):
        family, exact = dtypes.given(keywords, args[0].dtype)
        return tensor(family, exact, args[0].ndim)
    default = {"arange": "", "tensor": "", "as_tensor": "", "asarray": "", "full": "", "from_numpy": ""}
    family = default.get(
        last, "int" if last.startswith(("randint", "randperm", "tril_", "triu_")) else "float"
    )
    if last == "arange":
        family = _arange_family(args)
    if last == "full" and len(args) > 1:
        family = dtypes.of_python(args[1])
    if last in {"tensor", "as_tensor", "asarray"} and args:
        family = dtypes.of_python(args[0].element if isinstance(args[0], Sequence) else args[0])
    family, exact = dtypes.given(keywords, family)
    return tensor(family, exact, _factory_ndim(last, args))


def _arange_family(args: list[Value]) -> str:
    kinds = {dtypes.of_python(value) for value in args}
    return "int" if kinds <= {"int"} else "float" if "float" in kinds else ""


def _factory_ndim(last: str, args: list[Value]) -> int:
    if last in {"arange", "linspace", "logspace", "randperm"}:
        return 1
    if last == "eye":
        return 2
    if last == "tensor" and args and isinstance(args[0], Static) and args[0].kind in {"int", "float", "bool"}:
        return 0
    if last in {"zeros", "ones", "empty", "full", "rand", "randn"} and args:
        sizes = args[0]
        if isinstance(sizes, Sequence):
            return len(sizes.items) if sizes.items is not None else -1
        if last != "full" and all(isinstance(size, Static) and size.kind == "int" for size in args):
            return len(args)
    return -1


def layer(name: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    """`torch.nn.X(...)`."""
    last = name.rpartition(".")[2]
    if last in {"Parameter", "Buffer", "UninitializedParameter"}:
        first = args[0] if args else keywords.get("data", UNKNOWN)
        return tensor(first.dtype if isinstance(first, Tensor) else "float", origin="parameter")
    if last in {"ModuleList", "ParameterList"}:
        inside = args[0] if args else UNKNOWN
        if isinstance(inside, Sequence):
            return Sequence("modules", None, inside.element)
        return Sequence("modules", None, FLOAT_TENSOR if last == "ParameterList" else UNKNOWN)
    if last == "Sequential":
        if len(args) == 1 and isinstance(args[0], Sequence) and args[0].items is None:
            return Sequence("sequential", None, args[0].element)
        return Sequence("sequential", tuple(args), join_all(args))
    if last == "ModuleDict":
        return args[0] if args else UNKNOWN
    return Layer(name) if last[:1].isupper() else UNKNOWN


def layer_call(name: str, args: list[Value]) -> Value:
    """What an instance of a torch module class gives when it is called."""
    last = name.rpartition(".")[2]
    first = args[0] if args else UNKNOWN
    if last in {"Identity", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d"}:
        return first
    if last in {"LSTM", "GRU", "RNN"}:
        return Sequence("tuple", (FLOAT_TENSOR, UNKNOWN), UNKNOWN)
    if last == "MultiheadAttention":
        return Sequence("tuple", (FLOAT_TENSOR, tensor("float", optional=True)), FLOAT_TENSOR)
    return FLOAT_TENSOR


def layer_attribute(name: str, attribute: str) -> Value:
    """An attribute of an instance of a torch module class."""
    if attribute in {"weight", "bias", "running_mean", "running_var", "in_proj_weight", "in_proj_bias"}:
        return tensor("float", optional=attribute == "bias", origin="parameter")
    return STATIC
