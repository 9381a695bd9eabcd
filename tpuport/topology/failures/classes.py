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
# Python's words where torch's operator raised a TypeError.
_OPERANDS: Final = re.compile(r"unsupported operand type\(s\) for (\S+): 'Tensor' and 'Tensor'")
_OPERATOR: Final = re.compile(r"Operator with name (\S+) has no lowering")
_CUDA: Final = re.compile(r"CUDA|NVIDIA driver|cuda")
# Rules about values, and about arrays whose shape depends on values.
_ABOUT_VALUES: Final = ("TPU1", "TPU2", "TPU312")


class Class(NamedTuple):
    """A class of errors.

    Attributes:
        name: "value", "mask", "operator", "leak", "output", "property", "cuda", "port", "shape" or "other".
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


def class_of(error: BaseException) -> Class:
    """The class of an error that ended a trace."""
    text = str(error)
    if isinstance(error, PortError):
        return Class("port", None, (), ("TPU507",), error.what, error.fix or "")
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
    if found := _OPERANDS.fullmatch(text):
        return Class(
            "shape", None, (), (), f"the shapes or dtypes of the two tensors of `{found[1]}` do not go together",
            "compare the shapes of the inputs with those that the model takes; torch refuses these as well",
        )  # fmt: skip
    if _SHAPES.search(text):
        return Class(
            "shape", None, (), (), f"shapes do not go together: {first_line(error)}",
            "compare the shapes of the inputs with those that the model takes; torch refuses these as well",
        )  # fmt: skip
    return Class("other", None, ("TPU3",))


def first_line(error: BaseException) -> str:
    """The start of an error's message, without a full stop."""
    line = (str(error).strip() or "no message").splitlines()[0].strip()
    return (line if len(line) <= 300 else line[:297] + "...").rstrip(".")
