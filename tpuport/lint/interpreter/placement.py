"""Which tensors of traced code are of the host, and so have values that Python may
read.

Under tpuport a tensor that is created without `device=` is an ordinary tensor of the
host, also while tracing, and so is what torch computes from such tensors alone:
`torch.tensor([x.shape[0], 2]).tolist()` works. Combined with a traced tensor, or moved
to its device, it is traced too. Always traced are draws, which come from the generator
on the device, what torch computes of Python numbers alone (`torch.div(n, 2)`), and what
some other functions create (`F.one_hot`).
"""

from collections.abc import Iterable, Iterator
from typing import Final

from tpuport.lint.abstract_values import (
    NONE,
    UNKNOWN,
    Mapping,
    Sequence,
    Static,
    Tensor,
    Unknown,
    Value,
    changed,
    is_tensor,
    is_traced,
)
from tpuport.lint.dtype_families import TENSOR_CLASSES
from tpuport.lint.passed_arguments import Arguments
from tpuport.lint.work import meter

# Functions that create a tensor of the host if they get no device. `as_tensor` may get
# a traced tensor.
FACTORIES: Final = frozenset(
    "torch." + name
    for name in (
        "zeros ones empty full arange linspace logspace eye tensor from_numpy frombuffer empty_strided range "
        "scalar_tensor tril_indices triu_indices hann_window hamming_window bartlett_window blackman_window "
        "kaiser_window fft.fftfreq fft.rfftfreq"
    ).split()
)
_CLASSES: Final = frozenset(f"torch.{name}" for name in TENSOR_CLASSES)
_CONDITIONAL_FACTORIES: Final = frozenset({"torch.as_tensor", "torch.asarray"})
# Of the factories, those whose argument may be what the tensor holds.
_OF_DATA: Final = frozenset({"tensor", "scalar_tensor", "full"})
_RANGES: Final = frozenset("arange linspace logspace range eye".split())
_TABLES: Final = frozenset(
    "tril_indices triu_indices hann_window hamming_window bartlett_window blackman_window kaiser_window fftfreq "
    "rfftfreq".split()
)
# What gives at least as many elements as it gets, by the names of functions and
# methods.
_KEEPS_SIZE: Final = frozenset(
    "to type float double half bfloat16 long int short byte char bool view reshape unsqueeze squeeze expand "
    "expand_as view_as reshape_as repeat tile flatten unflatten transpose permute movedim swapaxes t contiguous "
    "clone detach tril triu cumsum cumprod flip roll add sub subtract mul multiply div divide true_divide "
    "floor_divide remainder fmod pow square sqrt rsqrt exp exp2 log log2 log10 log1p sin cos tan tanh sigmoid abs "
    "neg negative sign reciprocal floor ceil round trunc clamp clip softmax log_softmax relu logical_not "
    "logical_and logical_or logical_xor bitwise_not bitwise_and bitwise_or eq ne lt le gt ge masked_fill where "
    "cat concat concatenate stack fill zero copy outer broadcast_to maximum minimum".split()
)
DRAWS: Final = ("rand", "normal", "bernoulli", "multinomial", "poisson")
_MOVES: Final = frozenset({"to", "type_as", "cuda", "xpu"})
# The device of a tensor of the host.
HOST_DEVICE: Final = Static("device", "cpu")
# The device of a traced tensor, by its type.
TRACED_DEVICE: Final = Static("device", "jax")
_HOST_DEVICES: Final = frozenset({None, "cpu"})


def on_host(value: Value, several: bool = False) -> Value:
    """A result that was computed from tensors of the host alone: its tensors are of the
    host too.

    Args:
        value: the result.
        several: whether a tensor certainly has more than one element.
    """
    match value:
        case Tensor(host=False):
            return changed(value, host=True, several=several)
        case Sequence(items=tuple(items)):
            return Sequence(
                value.kind, tuple(map(on_host, items)), on_host(value.element)
            )
        case Sequence():
            return Sequence(value.kind, None, on_host(value.element))
        case _:
            return value


def on_device(value: Value) -> Value:
    """The value as a device has it, which is the same in each call if it was one of the
    host; the parameters in an `nn.ParameterList` go there with their module.
    """
    match value:
        case Tensor(host=True):
            return changed(value, host=False, several=False, decided=True)
        case Sequence(kind="modules", element=Tensor(host=True)):
            return Sequence("modules", None, on_device(value.element))
        case _:
            return value


def of_function(name: str, arguments: Arguments, result: Value) -> Value:
    """What a library function returns, on the host if everything that it gets is."""
    if (
        not _may_be_on_host(result)
        or not name.startswith("torch.")
        or _goes_to_device(arguments)
    ):
        return result
    last = name.rpartition(".")[2]
    if (
        last.startswith(DRAWS)
        or last == "one_hot"
        or (last == "where" and _chooses_number(arguments))
    ):
        return result
    if name in FACTORIES:
        # A size in a tensor is an error by itself: the program that avoids it has a
        # number.
        is_data = last in _OF_DATA and _has_traced(arguments)
        return result if is_data else on_host(result, _makes_several(last, arguments))
    operands = list(operands_of(arguments))
    if name in _CLASSES:
        return on_host(result) if _is_of_data(arguments) else result
    if name in _CONDITIONAL_FACTORIES and all(
        isinstance(value, Static) for value in operands
    ):
        # A list of numbers, not of tensors.
        return on_host(result, _makes_several(last, arguments))
    return _computed_from(operands, result, last in _KEEPS_SIZE)


def _is_of_data(arguments: Arguments) -> bool:
    """Whether a tensor class gets what its tensor holds, `torch.IntTensor([n])`; of
    sizes, `torch.IntTensor(n, m)`, torch makes a tensor on the device.
    """
    match arguments.positional:
        # None of them is traced: these classes take numbers alone.
        case [Sequence() as data]:
            return not data.tensors
        case [Static(kind=kind)]:
            return kind not in {"int", "shape"}
        case _:
            return False


def _makes_several(name: str, arguments: Arguments) -> bool:
    """Whether a function that creates a tensor of numbers certainly gives it more than
    one element.

    A size that the source text does not tell counts as more than one.
    """
    first = arguments.first
    if name in _TABLES:
        return True
    if name in _RANGES:
        return 1 not in (
            first.constant,
            arguments.get(1, "end").constant,
            arguments.get(2, "steps").constant,
        )
    if name in {"tensor", "as_tensor", "asarray"}:
        return _has_several_numbers(arguments.get(0, "data", "obj"))
    if name in {"zeros", "ones", "empty"}:
        sizes = arguments.positional or [arguments.keywords.get("size", UNKNOWN)]
        return _is_size_of_several(
            sizes[0] if len(sizes) == 1 else Sequence("tuple", tuple(sizes), UNKNOWN)
        )
    return name == "full" and _is_size_of_several(arguments.get(0, "size"))


def _has_several_numbers(data: Value) -> bool:
    match data:
        case Sequence(items=(only,)):
            return _has_several_numbers(only)
        case Sequence(items=(_, _, *_)) | Static(kind="shape"):
            return True
        case _:
            return False


def _is_size_of_several(size: Value) -> bool:
    match size:
        case Static(kind="shape"):
            return True
        case Static(kind="int", constant=number):
            return number not in {0, 1}
        case Sequence(items=tuple(sizes)):
            is_known = UNKNOWN not in sizes and Static("int", 0) not in sizes
            return is_known and any(map(_is_size_of_several, sizes))
        case _:
            return False


def _chooses_number(arguments: Arguments) -> bool:
    """Whether it is `torch.where(condition, x, 0)`, whose result is on the device even
    if its tensors are not.

    A condition of several elements of the host is refused there.
    """
    condition = arguments.first
    is_refused = isinstance(condition, Tensor) and condition.several
    return not is_refused and any(
        isinstance(value, Static) for value in arguments.positional[1:]
    )


def of_method(
    receiver: Tensor, name: str, arguments: Arguments, result: Value
) -> Value:
    """What a method of a tensor returns, on the host if the tensor and everything that
    it gets is.
    """
    if not receiver.host:
        return result
    if _goes_to_device(arguments) or (
        name in _MOVES and _names_device(name, arguments)
    ):
        return _moved(result)
    keeps_size = name.removesuffix("_") in _KEEPS_SIZE
    return _computed_from([receiver, *operands_of(arguments)], result, keeps_size)


def of_operator(
    result: Value, *operands: Value | None, keeps_size: bool = True
) -> Value:
    """The result of `a + b`, `a < b`, `a[b]`: on the host if all tensors among the
    operands are.

    Args:
        result: what is known of it otherwise.
        operands: all of them.
        keeps_size: whether the result has at least as many elements as any operand.
    """
    if not _may_be_on_host(result):
        return result
    return _computed_from(filter(None, operands), result, keeps_size)


def _may_be_on_host(result: Value) -> bool:
    return isinstance(result, Tensor | Sequence)


def _moved(result: Value) -> Value:
    return on_device(result) if isinstance(result, Tensor) else result


def operands_of(arguments: Arguments) -> Iterator[Value]:
    """All values that a function gets, those in lists and dicts too, each container
    once.
    """
    pending = [*arguments.positional, *arguments.keywords.values()]
    # A list that holds another one twice, in itself held twice, has more elements than
    # can be counted.
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if isinstance(value, Sequence | Mapping):
            if id(value) not in seen:
                seen.add(id(value))
                meter.units += 1
                pending += _elements(value)
        else:
            yield value


def _elements(container: Sequence | Mapping) -> Iterable[Value]:
    match container:
        case Sequence(items=tuple(items)):
            return items
        case Sequence(element=element):
            return [element]
        case Mapping() as mapping:
            return mapping.values


def gets_tensor(arguments: Arguments) -> bool:
    """Whether a function gets a tensor, perhaps in a list."""
    return any(map(is_tensor, operands_of(arguments)))


def _has_traced(arguments: Arguments) -> bool:
    return any(map(is_traced, operands_of(arguments)))


def _computed_from(operands: Iterable[Value], result: Value, keeps_size: bool) -> Value:
    """A result with the place that its operands give it.

    Something unknown beside a tensor of the host is a number, since a traced tensor
    would be refused; of a single element of the host, which is not, nothing is known.
    """
    has_host = has_unknown = has_several = False
    for value in operands:
        match value:
            case Tensor(host=True, several=several):
                has_host = True
                has_several |= several
            case Static():
                pass
            case Unknown():
                has_unknown = True
            case _:
                return _moved(result)
    if not has_host:
        return result
    if has_unknown and not has_several:
        return UNKNOWN
    return on_host(result, has_several and keeps_size)


def _goes_to_device(arguments: Arguments) -> bool:
    """Whether `device=` names another device than the host, or one that is not
    known.
    """
    return "device" in arguments.keywords and not _is_host_device(
        arguments.keywords["device"]
    )


def _is_host_device(value: Value) -> bool:
    return value == NONE or (
        isinstance(value, Static) and value.constant in _HOST_DEVICES
    )


def _names_device(name: str, arguments: Arguments) -> bool:
    """Whether `.to(...)` and its like may leave the host: by a device, a traced tensor
    or something unknown.
    """
    if name in {"cuda", "xpu"}:
        return True
    for value in arguments.positional:
        match value:
            case Static(kind="device" | "str"):
                return not _is_host_device(value)
            case Static():
                continue
            case Tensor(host=True):
                continue
            case _:
                return True
    return False
