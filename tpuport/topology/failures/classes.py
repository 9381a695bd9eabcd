"""Classes of errors that end a trace: what to say of them, and which rule of the linter is about them."""

import re
from typing import Final, NamedTuple

from jax import errors

from tpuport.errors import PortError

# What torch, torchax and jax say where a value was asked for that is not known while tracing.
_CONCRETE: Final = re.compile(
    r"cannot be called on meta tensors|Abstract tracer value|data-dependent"
    r"|unsupported format string passed to (Tensor|View)|\.(tolist|numpy)\(\) is not supported for tensor subclasses"
)
_SHAPES: Final = re.compile(
    r"incompatible shapes|shapes? .*(mismatch|incompatible)|contracting dimensions|cannot reshape|size of tensor"
    r"|mat1 and|must have the same shape|must have equal|sizes? .*must match|shape .*is invalid|not broadcastable"
    r"|cannot be concatenated|cannot concatenate|expected input.*channels|inconsistent shapes"
    r"|same number of dimensions",
    re.IGNORECASE,
)
# Python's words where torch's operator raised a TypeError.
_OPERANDS: Final = re.compile(
    r"unsupported operand type\(s\) for (\S+)(?: or pow\(\))?: '(?:Tensor|View)' and '(?:Tensor|View)'"
    r"|'(\S+)' not supported between instances of '(?:Tensor|View)' and '(?:Tensor|View)'"
)
_DTYPES: Final = re.compile(
    r"Input type .* should be the same|(same|equal) d?types?\b|expected .*scalar type"
)
_BROADCAST: Final = re.compile(r"Attempting to broadcast a dimension|expected shape should be broadcastable")
_SIZES: Final = re.compile(
    r"\b(shape|size|channels)\b.*\d|dimension out of range|(reduction|number of|channel) dim|too many indices"
    r"|cannot be broadcast",
    re.IGNORECASE,
)
_GRADIENT: Final = re.compile(r"does not require grad and does not have a grad_fn")
_OPERATOR: Final = re.compile(r"Operator with name (\S+) has no lowering")
_CUDA: Final = re.compile(r"CUDA|NVIDIA driver|cuda")
# Rules about values, and about arrays whose shape depends on values.
_ABOUT_VALUES: Final = ("TPU1", "TPU2", "TPU312")


_COMPARE: Final = "compare the shapes of the inputs with those that the model takes"


class Class(NamedTuple):
    """A class of errors.

    Attributes:
        name: "value", "mask", "operator", "leak", "output", "property", "cuda", "port", "shape", "gradient" or
            "other".
        rule: the rule's id where nothing else is known; None where no rule is about the class.
        near: how the ids start of rules whose finding may explain it where the trace failed.
        far: rules whose finding may stand elsewhere.
        what: a sentence's end, after "cannot be traced: "; "" for what the rule says.
        remedy: "" for what the rule says.
    """

    name: str
    rule: str | None = None
    near: tuple[str, ...] = ()
    far: tuple[str, ...] = ()
    what: str = ""
    remedy: str = ""


# Torch's autograd, and torch.func over it.
GRADIENT: Final = Class(
    "gradient", None, (), (), "torch's autograd records nothing of what runs on the device, so there is no gradient",
    "compile the forward call without it: write the derivative as a formula, or take it outside of the model, with "
    "jax.grad",
)  # fmt: skip
TRANSFORM: Final = Class(
    "gradient", None, (), (), "torch.func's transforms, such as grad and vmap, do not reach what runs on the device",
    "write the derivative as a formula and vmap as one more dimension, or take them outside of the model, with "
    "jax.grad and jax.vmap",
)  # fmt: skip


def class_of(error: BaseException) -> Class:
    """The class of an error that ended a trace."""
    text = str(error)
    if isinstance(error, PortError):
        hosts = f": {error.where}" if error.where and error.where.endswith("on the host") else ""
        remedy = error.fix or "change that call: give it what it takes, or write it with other operations"
        return Class("port", None, (), ("TPU507",), f"{error.what}{hosts}", remedy)
    if isinstance(error, errors.UnexpectedTracerError):
        return Class("leak", "TPU502", (), ("TPU502", "TPU503", "TPU504", "TPU505"))
    if isinstance(error, errors.NonConcreteBooleanIndexError):
        return Class("mask", "TPU101", _ABOUT_VALUES)
    if isinstance(error, errors.TracerArrayConversionError):
        return Class("value", "TPU203", _ABOUT_VALUES)
    if isinstance(
        error, errors.ConcretizationTypeError | errors.TracerIntegerConversionError
    ) or _CONCRETE.search(text):
        return Class("value", "TPU205" if "bool[]" in text else "TPU201", _ABOUT_VALUES)
    return _of_text(error, text)


def _of_text(error: BaseException, text: str) -> Class:
    if found := _OPERATOR.search(text):
        return Class(
            "operator", None, ("TPU1", "TPU3"), ("TPU601",), f"torchax has no lowering of {found[1]}",
            "write it with operators that have one, or guard it where its result is not needed",
        )  # fmt: skip
    if "traced for jit returned a value of type" in text or "is not a valid JAX type" in text:
        return Class("output", "TPU602", (), ("TPU602",))
    if isinstance(error, AttributeError) and "is not an nn.Parameter" in text:
        return Class("property", "TPU509", (), ("TPU509",))
    if _CUDA.search(text):
        return Class("cuda", None, ("TPU3",))
    if _GRADIENT.search(text):
        return GRADIENT
    if found := _OPERANDS.fullmatch(text):
        sign = found[1] or found[2]
        what = f"the shapes or dtypes of the two tensors of `{sign}` do not go together"
        return Class("shape", None, (), (), what, _COMPARE)
    if _SHAPES.search(text):
        return Class("shape", None, (), (), f"shapes do not go together: {first_line(error)}", _COMPARE)
    return Class("other", None, ("TPU3",))


def host(operation: str) -> Class:
    """Of an operation on a tensor of the host with one of the device, as `tpuport.compat` refuses it."""
    return Class(
        "port", None, (), ("TPU507",), f"an operation has one tensor on the device and one on the host, {operation}",
        'make the tensor on the device of the others, device=x.device, or move it, x.to("jax")',
    )  # fmt: skip


def code_remedy(said: str) -> str:
    """What to do about the code's own error, by what it says."""
    if _DTYPES.search(said):
        return "correct the code: give the inputs, and what it makes, the dtype of the weights; torch refuses it too"
    if _SHAPES.search(said) or _SIZES.search(said):
        return f"{_COMPARE}; torch refuses these as well"
    return "correct the code: it fails in the same way in torch, model(**inputs)"


def first_line(error: BaseException) -> str:
    """The start of an error's message, without a full stop."""
    lines = [line.strip() for line in (str(error).strip() or "no message").splitlines() if line.strip()]
    # Some only announce on the first line what the second one says.
    announces = len(lines) > 1 and lines[0].endswith(":") and not lines[1].startswith("*")
    line = " ".join(lines[:2]) if announces else lines[0]
    if _BROADCAST.search(line):  # the rest is in words of torch's own
        line = "the shapes cannot be broadcast together"
    return (
        (line if len(line) <= 300 else line[:297] + "...").removesuffix(", but expected one of:").rstrip(".:")
    )
