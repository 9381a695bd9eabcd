"""What library functions return, apart from torch's tensor functions: namespaces of
torch, layers, einops, numpy.
"""

from collections.abc import Callable
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
    PACKED_SEQUENCES,
    SHAPE,
    STATIC,
    TENSOR,
    TRUE,
    UNKNOWN,
    External,
    Layer,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Value,
    is_tensor,
    packed_sequence,
    tensor,
)
from tpuport.lint.dtype_families import TENSOR_CLASSES, is_dtype_name
from tpuport.lint.interpreter import derived_values
from tpuport.lint.interpreter.tensor_functions import like, tensor_function
from tpuport.lint.joins import (
    join_all,
)
from tpuport.lint.passed_arguments import Arguments

_STATIC_FUNCTIONS: Final[dict[str, Value]] = {
    **dict.fromkeys(
        "finfo iinfo Generator manual_seed seed initial_seed broadcast_shapes result_type promote_types can_cast"
        " no_grad enable_grad inference_mode autocast memory_format strided preserve_format channels_last"
        " contiguous_format typename _check _assert compile".split(),
        STATIC,
    ),
    "equal": BOOL,
    "allclose": BOOL,
    "device": DEVICE,
    "dtype": DTYPE,
    "get_default_dtype": DTYPE,
    "Size": SHAPE,
    "numel": INT,
}
# What torch says of itself or of a tensor, by the verb: `get_num_threads`. All of these
# are Python's values; `isnan` is another word.
_BY_VERB: Final[dict[str, Value]] = {
    "is": BOOL,
    "are": BOOL,
    "get": STATIC,
    "set": STATIC,
    "use": STATIC,
}
_PYTHON_NAMESPACES: Final = (
    "torch.cuda", "torch.backends", "torch.distributed", "torch.jit", "torch.compiler", "torch._dynamo",
    "torch.version", "torch.utils", "torch.onnx", "torch.autograd", "torch.overrides", "torch.amp", "torch.mps",
    "torch.xpu", "torch.profiler", "torch.fx", "torch._C", "torch.library", "torch.types", "torch.hub", "torch.npu",
    "torch.random", "torch.testing", "torch._logging", "torch.accelerator", "torch.nn.init", "torch.export",
    "torch.func", "torch.serialization", "torch.optim", "torch.multiprocessing", "torch.ao", "torch.quantization",
    "torch.futures", "torch.monitor", "torch.package", "torch.distributions.constraints",
    "torch.distributions.constraint_registry", "torch.distributions.transforms", "torch.distributions.utils",
)  # fmt: skip
_TENSOR_NAMESPACES: Final = (
    "torch.linalg.",
    "torch.fft.",
    "torch.special.",
    "torch.ops.",
)
_DISTRIBUTIONS: Final = "torch.distributions."
OPTIMIZERS: Final = "torch.optim."
_NO_DISTRIBUTIONS: Final = tuple(
    name for name in _PYTHON_NAMESPACES if name.startswith(_DISTRIBUTIONS)
)
_PRIVATE_AND_DERIVATIVES: Final[dict[str, Value]] = {
    "torch.autograd.grad": Sequence("tuple", None, FLOAT_TENSOR),
    # What optimizers of other packages borrow of LBFGS: the value, its gradient, the
    # step, the number of evaluations.
    "torch.optim.lbfgs._strong_wolfe": Sequence(
        "tuple", (TENSOR, FLOAT_TENSOR, TENSOR, INT), UNKNOWN
    ),
    "torch.optim.lbfgs._cubic_interpolate": TENSOR,
}
_STATIC_LIBRARIES: Final = frozenset(
    # Traced code passes them values of the host. A tensor argument is a finding, and
    # the result is static too.
    "math os time logging warnings re sys inspect random string numpy scipy".split()
)
# Questions that jax.jit through torchax answers with no.
_FALSE_WHEN_TRACED: Final = frozenset(
    "torch.jit.is_tracing torch.jit.is_scripting torch.compiler.is_compiling torch.compiler.is_dynamo_compiling"
    " torch.compiler.is_exporting torch._dynamo.is_compiling torch.onnx.is_in_onnx_export torch.cuda.is_available"
    " torch.cuda.is_current_stream_capturing torch.xpu.is_available torch.xpu.is_current_stream_capturing"
    " torch.distributed.is_initialized torch.distributed.is_available torch.is_autocast_enabled".split()
)
_CONSTANTS: Final = frozenset(
    "torch.inf torch.pi torch.nan torch.e math.pi math.inf math.nan math.e numpy.pi numpy.inf numpy.nan".split()
)
_DECOMPOSITIONS: Final = frozenset(
    f"torch.linalg.{name}" for name in ("svd", "qr", "eigh", "eig", "slogdet", "lu")
)


def attribute(name: str) -> Value:
    """A library name as a value: dtypes and constants are static, everything else keeps
    its name.
    """
    if name in _CONSTANTS:
        return FLOAT
    if is_dtype_name(name):
        return Static("dtype", name)
    return External(name)


def call(name: str, arguments: Arguments) -> Value:
    """What a library function returns for these arguments."""
    library = name.partition(".")[0]
    if library in _STATIC_LIBRARIES:
        return STATIC
    result = _LIBRARY_HANDLERS.get(library, _unknown)(name, arguments)
    return derived_values.of_function(name, arguments, result)


def _unknown(name: str, arguments: Arguments) -> Value:
    return UNKNOWN


def _einops(name: str, arguments: Arguments) -> Value:
    first = arguments.first
    match name.rpartition(".")[2]:
        case "rearrange" | "repeat" | "reduce" | "einsum":
            return tensor(first.dtype, origin=first.inherited_origin)
        case "pack":
            return Sequence("tuple", (TENSOR, SHAPE), UNKNOWN)
        case "unpack":
            return Sequence("list", None, TENSOR)
        case function:
            return _layer_class(name, function)


def _layer_class(name: str, last: str) -> Value:
    """A layer, if a name is that of a class."""
    return Layer(name) if last[:1].isupper() else UNKNOWN


def _tensor_if_any(name: str, arguments: Arguments) -> Value:
    """Kernels and operators of other libraries: tensors in, tensor out."""
    if any(map(is_tensor, arguments.positional)):
        return TENSOR
    return UNKNOWN


def _copied(name: str, arguments: Arguments) -> Value:
    return arguments.first


def _torch(name: str, arguments: Arguments) -> Value:
    if name.startswith("torch.nn.functional."):
        return _functional(name.removeprefix("torch.nn.functional."), arguments)
    if name.startswith(_TENSOR_NAMESPACES):
        return _namespaced(name, arguments)
    if name in _FALSE_WHEN_TRACED:
        return FALSE
    if name in _PRIVATE_AND_DERIVATIVES:
        return _PRIVATE_AND_DERIVATIVES[name]
    last = name.rpartition(".")[2]
    if _is_class_of_objects(name):
        return Layer(name)
    if name.startswith(_UTILITIES):
        return _utility(name.removeprefix(_UTILITIES), arguments)
    if name.startswith(_PYTHON_NAMESPACES):
        # `torch.backends.cudnn.is_available`
        return BOOL if last.startswith("is_") else UNKNOWN
    if name.startswith("torch.nn."):
        return layer(name, arguments)
    return _top_level(name.removeprefix("torch."), arguments)


def _is_class_of_objects(name: str) -> bool:
    """Whether it is the class of an optimizer or a distribution, whose objects are
    known by it as layers are.
    """
    is_class = name.rpartition(".")[2][:1].isupper()
    return (
        is_class
        and name.startswith((OPTIMIZERS, _DISTRIBUTIONS))
        and not name.startswith(_NO_DISTRIBUTIONS)
    )


def _top_level(name: str, arguments: Arguments) -> Value:
    """`torch.name(...)`."""
    if name == "is_tensor" and arguments.positional:
        return _is_tensor(arguments.first)
    if name in _STATIC_FUNCTIONS:
        return _STATIC_FUNCTIONS[name]
    verb = name.partition("_")[0]
    if verb in _BY_VERB:
        return _BY_VERB[verb]
    if name in TENSOR_CLASSES:
        return tensor(TENSOR_CLASSES[name])
    # Other classes are not tensors: `torch.Event`, `torch.optim.Adam`.
    if name.rpartition(".")[2][:1].isupper():
        return UNKNOWN
    return tensor_function(name, arguments)


def _is_tensor(value: Value) -> Value:
    """`torch.is_tensor(value)`."""
    match value:
        case Tensor(optional=False):
            return TRUE
        # A configuration may hold anything.
        case Static(kind=kind) if kind not in {"", "config"}:
            return FALSE
        case _:
            return BOOL


def _namespaced(name: str, arguments: Arguments) -> Value:
    if name in _DECOMPOSITIONS:
        return Sequence("tuple", None, FLOAT_TENSOR)
    if name.startswith("torch.ops."):
        return _tensor_if_any(name, arguments)
    # `fft` is complex, `irfft` is not.
    if name.rpartition(".")[2].startswith("fft"):
        return TENSOR
    return FLOAT_TENSOR


# --- torch.nn.utils ---

_UTILITIES: Final = "torch.nn.utils."
_UTILITY_RESULTS: Final[dict[str, Value]] = {
    # Its lengths are those of the sequences in the list, which are parts of shapes.
    "rnn.pack_sequence": packed_sequence(sizes_on_host=True),
    # The lengths are on the host, wherever the sequences are.
    "rnn.pad_packed_sequence": Sequence(
        "tuple", (FLOAT_TENSOR, tensor("int", host=True)), UNKNOWN
    ),
    **dict.fromkeys(
        ("rnn.unpad_sequence", "rnn.unpack_sequence"), Sequence("list", None, TENSOR)
    ),
    "parameters_to_vector": FLOAT_TENSOR,
}
# Functions that change how a layer computes its weight, and return the layer.
_REPARAMETRISATIONS: Final = frozenset("weight_norm spectral_norm orthogonal".split())


def _utility(name: str, arguments: Arguments) -> Value:
    """`torch.nn.utils.name(...)`."""
    if name.rpartition(".")[2].removeprefix("remove_") in _REPARAMETRISATIONS:
        return arguments.first
    if name == "rnn.pack_padded_sequence":
        return _packed(arguments.get(1, "lengths"))
    if name == "rnn.PackedSequence":
        return _packed(arguments.get(1, "batch_sizes"))
    if name == "rnn.pad_sequence":
        sequences = arguments.first
        return tensor(
            sequences.element.dtype if isinstance(sequences, Sequence) else ""
        )
    return _UTILITY_RESULTS.get(name, UNKNOWN)


def _packed(lengths: Value) -> Value:
    """A packed sequence, whose sizes are where the lengths are that it was made
    with.
    """
    is_of_host = isinstance(lengths, Tensor) and lengths.host
    is_of_numbers = isinstance(lengths, Static) or (
        isinstance(lengths, Sequence) and isinstance(lengths.element, Static)
    )
    return packed_sequence(sizes_on_host=is_of_host or is_of_numbers)


_LIBRARY_HANDLERS: Final[dict[str, Callable[[str, Arguments], Value]]] = {
    "torch": _torch,
    "einops": _einops,
    "torchvision": _tensor_if_any,
    "copy": _copied,
}

# --- torch.nn ---

_ATTENTION_AND_WEIGHTS: Final = Sequence(
    "tuple", (FLOAT_TENSOR, tensor("float", optional=True)), FLOAT_TENSOR
)
_FUNCTIONAL_RESULTS: Final[dict[str, Value]] = {
    "one_hot": INT_TENSOR,
    "multi_head_attention_forward": _ATTENTION_AND_WEIGHTS,
    "has_torch_function": BOOL,
    "has_torch_function_unary": BOOL,
}
_KEEP_DTYPE: Final = frozenset(
    "pad relu pixel_shuffle pixel_unshuffle unfold fold threshold hardtanh".split()
)
_LSTM_STATE: Final = Sequence("tuple", (FLOAT_TENSOR, FLOAT_TENSOR), FLOAT_TENSOR)
# The state that a recurrent layer gives beside its output.
_RECURRENT_STATES: Final[dict[str, Value]] = {
    "RNN": FLOAT_TENSOR,
    "GRU": FLOAT_TENSOR,
    "LSTM": _LSTM_STATE,
}
_LAYER_RESULTS: Final[dict[str, Value]] = {
    "LSTMCell": _LSTM_STATE,
    "MultiheadAttention": _ATTENTION_AND_WEIGHTS,
}
_PASS_THROUGH: Final = frozenset(
    "Identity Dropout Dropout1d Dropout2d Dropout3d".split()
)
METHODS_OF_DISTRIBUTIONS: Final = frozenset(
    "sample rsample log_prob cdf icdf entropy perplexity enumerate_support".split()
)
_ATTRIBUTES_OF_DISTRIBUTIONS: Final[dict[str, Value]] = {
    **dict.fromkeys(
        "mean mode stddev variance loc scale logits probs concentration concentration0 concentration1 rate df low high"
        " covariance_matrix precision_matrix scale_tril".split(),
        FLOAT_TENSOR,
    ),
    **dict.fromkeys(("batch_shape", "event_shape", "param_shape"), SHAPE),
    **dict.fromkeys(("has_rsample", "has_enumerate_support"), BOOL),
}
_WEIGHTS: Final = frozenset(
    "weight bias running_mean running_var in_proj_weight in_proj_bias".split()
)


def _functional(name: str, arguments: Arguments) -> Value:
    """`torch.nn.functional.name(...)`."""
    if name in _KEEP_DTYPE:
        return like(arguments.first)
    if name in _FUNCTIONAL_RESULTS:
        return _FUNCTIONAL_RESULTS[name]
    if name.endswith("_with_indices"):
        return Sequence("tuple", (FLOAT_TENSOR, INT_TENSOR), FLOAT_TENSOR)
    return tensor_function(name, arguments, default="float")


def layer(name: str, arguments: Arguments) -> Value:
    """`torch.nn.X(...)`."""
    first = arguments.first
    match name.rpartition(".")[2]:
        case "Parameter" | "Buffer" | "UninitializedParameter":
            data = arguments.get(0, "data")
            family = data.dtype if isinstance(data, Tensor) else "float"
            return tensor(family, origin="parameter")
        case "ModuleList" | "ParameterList" if isinstance(first, Sequence):
            return Sequence("modules", first.items, first.element)
        case "ModuleList":
            return Sequence("modules", None, UNKNOWN)
        case "ParameterList":
            return Sequence("modules", None, FLOAT_TENSOR)
        case "Sequential":
            return _sequential(arguments.positional)
        case "ModuleDict":
            return first if arguments.positional else Mapping((), UNKNOWN)
        case "ParameterDict":
            return _parameters_by_name(first)
        case class_name:
            return _layer_class(name, class_name)


def _parameters_by_name(given: Value) -> Value:
    """A `ParameterDict` of what it gets."""
    names = [key for key, _ in given.entries] if isinstance(given, Mapping) else []
    entries = tuple((key, FLOAT_TENSOR) for key in names)
    return Mapping(entries, UNKNOWN if entries else FLOAT_TENSOR)


def _sequential(layers: list[Value]) -> Value:
    match layers:
        # `Sequential(*layers)` of a list whose length is not known.
        case [Sequence(items=None, element=element)]:
            return Sequence("sequential", None, element)
        # `Sequential(OrderedDict(a=..., b=...))`
        case [Mapping(entries=entries)] if entries:
            return _sequential([layer for _, layer in entries])
        case _:
            return Sequence("sequential", tuple(layers), join_all(layers))


def layer_call(name: str, arguments: Arguments) -> Value:
    """What an instance of a torch module class returns when it is called."""
    last = name.rpartition(".")[2]
    return derived_values.of_layer(last, arguments, _layer_result(last, arguments))


def _layer_result(last: str, arguments: Arguments) -> Value:
    if last in _PASS_THROUGH:
        return arguments.first
    if last in _RECURRENT_STATES:
        output = (
            arguments.first if arguments.first in PACKED_SEQUENCES else FLOAT_TENSOR
        )
        return Sequence("tuple", (output, _RECURRENT_STATES[last]), UNKNOWN)
    return _LAYER_RESULTS.get(last, FLOAT_TENSOR)


def layer_attribute(class_name: str, name: str) -> Value:
    """An attribute of an instance of a torch class: of a module, or of a
    distribution.
    """
    if class_name.startswith(_DISTRIBUTIONS):
        return _ATTRIBUTES_OF_DISTRIBUTIONS.get(name, UNKNOWN)
    if name in _WEIGHTS:
        return tensor("float", optional=name == "bias", origin="parameter")
    return STATIC


def layer_method(class_name: str, name: str) -> Value:
    """What a method of an instance of a torch class returns, apart from those that all
    modules have.
    """
    is_distribution = class_name.startswith(_DISTRIBUTIONS)
    return (
        FLOAT_TENSOR
        if is_distribution and name in METHODS_OF_DISTRIBUTIONS
        else UNKNOWN
    )
