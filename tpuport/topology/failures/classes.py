"""Classes of errors that end a trace: what to say of them, and which rule of the linter is about them."""

import re
from typing import Final, NamedTuple

from jax import errors

from tpuport.errors import PortError

# What torch, torchax and jax say where a value was asked for that is not known while tracing.
_CONCRETE: Final = re.compile(
    r"cannot be called on meta tensors|Abstract tracer value|data-dependent|unsupported format string passed to Tensor"
)
_SHAPES: Final = re.compile(
    r"incompatible shapes|shapes? .*(mismatch|incompatible)|contracting dimensions|cannot reshape|size of tensor"
    r"|mat1 and|must have the same shape|must have equal|sizes? .*must match|shape .*is invalid|not broadcastable"
    r"|cannot be concatenated|cannot concatenate|expected input.*channels|inconsistent shapes"
    r"|same number of dimensions",
    re.IGNORECASE,
)
_OPERATOR: Final = re.compile(r"Operator with name (\S+) has no lowering")
_CUDA: Final = re.compile(r"CUDA|NVIDIA driver|cuda")


class Class(NamedTuple):
    """A class of errors.

    Attributes:
        name: "value", "mask", "operator", "leak", "output", "property", "cuda", "port", "shape" or "other".
        rule: the rule's id where nothing else is known; None where no rule is about the class.
        far: rules whose finding may stand elsewhere than where the trace failed.
        what: a sentence's end, after "cannot be traced: "; "" for what the rule says.
        remedy: "" for what the rule says.
    """

    name: str
    rule: str | None = None
    far: tuple[str, ...] = ()
    what: str = ""
    remedy: str = ""


def class_of(error: BaseException) -> Class:
    """The class of an error that ended a trace."""
    text = str(error)
    if isinstance(error, PortError):
        return Class("port", None, ("TPU507",), error.what, error.fix or "")
    if isinstance(error, errors.UnexpectedTracerError):
        return Class("leak", "TPU502", ("TPU502", "TPU503", "TPU504", "TPU505"))
    if isinstance(error, errors.NonConcreteBooleanIndexError):
        return Class("mask", "TPU101")
    if isinstance(error, errors.TracerArrayConversionError):
        return Class("value", "TPU203")
    if isinstance(
        error, errors.ConcretizationTypeError | errors.TracerIntegerConversionError
    ) or _CONCRETE.search(text):
        return Class("value", "TPU205" if "bool[]" in text else "TPU201")
    return _of_text(error, text)


def _of_text(error: BaseException, text: str) -> Class:
    if found := _OPERATOR.search(text):
        return Class(
            "operator", None, ("TPU601",), f"torchax has no lowering of {found[1]}",
            "write it with operators that have one, or guard it where its result is not needed",
        )  # fmt: skip
    if "traced for jit returned a value of type" in text or "is not a valid JAX type" in text:
        return Class("output", "TPU602", ("TPU602",))
    if isinstance(error, AttributeError) and "is not an nn.Parameter" in text:
        return Class("property", "TPU509", ("TPU509",))
    if _CUDA.search(text):
        return Class("cuda", None, ("TPU301", "TPU302", "TPU303", "TPU304", "TPU310", "TPU311"))
    if _SHAPES.search(text):
        return Class(
            "shape", None, (), f"shapes do not go together: {first_line(error)}",
            "compare the shapes of the inputs with those that the model takes; torch refuses these as well",
        )  # fmt: skip
    return Class("other")


def first_line(error: BaseException) -> str:
    """The start of an error's message, without a full stop."""
    line = (str(error).strip() or "no message").splitlines()[0].strip()
    return (line if len(line) <= 300 else line[:297] + "...").rstrip(".")
