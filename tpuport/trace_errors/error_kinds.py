"""Kinds of errors that end a trace: what to say about each, and which lint rules are
about it.
"""

import re
from typing import Final, NamedTuple

from jax import errors

from tpuport.errors import NoCudaError, PortError
from tpuport.trace_errors.failure import first_line

_SHAPES: Final = re.compile(
    r"incompatible shapes|shapes? .*(?:mismatch|incompatible)|contracting dimensions|cannot reshape|size of tensor"
    r"|mat1 and|must have the same shape|must have equal|sizes? .*must match|shape .*is invalid|not broadcastable"
    r"|cannot be concatenated|cannot concatenate|expected input.*channels|inconsistent shapes"
    r"|same number of dimensions",
    re.IGNORECASE,
)
_DTYPES: Final = re.compile(
    r"Input type .* should be the same|(same|equal) d?types?\b|expected .*scalar type"
)
_SIZES: Final = re.compile(
    r"\b(shape|size|channels)\b.*\d|dimension out of range|(reduction|number of|channel) dim|too many indices"
    r"|cannot be broadcast",
    re.IGNORECASE,
)
_COMPARE: Final = "compare the shapes of the inputs with those that the model takes"


class ErrorKind(NamedTuple):
    """A kind of errors.

    Attributes:
        name: "value", "mask", "operator", "leak", "output", "property", "cuda", "port",
            "shape", "gradient" or "other".
        rule: the id of the rule if nothing else is known; None if no rule is about the
            kind.
        near_rules: prefixes of the ids of rules whose finding may explain the error if
            it is on the failing line.
        far_rules: ids of rules whose finding may be on another line.
        summary: the end of a sentence that begins "cannot be traced: "; "" to say what
            the rule says.
        remedy: "" for the rule's remedy.
    """

    name: str
    rule: str | None = None
    near_rules: tuple[str, ...] = ()
    far_rules: tuple[str, ...] = ()
    summary: str = ""
    remedy: str = ""


# Rules about values, and about arrays whose shape depends on values.
_ABOUT_VALUES: Final = ("TPU1", "TPU2", "TPU312")
_VALUE: Final = ErrorKind("value", "TPU201", _ABOUT_VALUES)
_LEAK: Final = ErrorKind("leak", "TPU502", far_rules=("TPU502", "TPU503", "TPU505"))
TRANSFORM: Final = ErrorKind(
    "gradient",
    summary="torch.func's transforms, such as grad and vmap, do not reach what runs on the device",
    remedy="write the derivative as a formula and vmap as one more dimension, or take them outside of the model, with "
    "jax.grad and jax.vmap",
)
_CUDA: Final = ErrorKind("cuda", None, ("TPU3",))
# The first class that an error is an instance of decides. Order matters: the classes
# derive from one another.
_BY_CLASS: Final = (
    (errors.UnexpectedTracerError, _LEAK),
    (errors.NonConcreteBooleanIndexError, ErrorKind("mask", "TPU101", _ABOUT_VALUES)),
    (errors.TracerArrayConversionError, ErrorKind("value", "TPU203", _ABOUT_VALUES)),
    (errors.ConcretizationTypeError, _VALUE),
    (errors.TracerIntegerConversionError, _VALUE),
)
# Then the first pattern that its message has; {0} is the pattern's group.
_BY_MESSAGE: Final = (
    (
        # What torch, torchax and jax say if a value is asked for that is not known
        # while tracing.
        re.compile(
            r"cannot be called on meta tensors|Abstract tracer value|data-dependent"
            r"|unsupported format string passed to Tensor"
            r"|\.(?:tolist|numpy)\(\) is not supported for tensor subclasses"
        ),
        _VALUE,
    ),
    (re.compile(r"concrete values of integer type, got .*Tracer"), _VALUE._replace(rule="TPU107")),
    (
        re.compile(r"Operator with name (\S+) has no lowering"),
        ErrorKind(
            "operator", None, ("TPU1", "TPU3"), (), "torchax has no lowering of {0}",
            "write it with operators that have one, or guard it where its result is not needed",
        ),
    ),
    (
        re.compile(r"traced for jit returned a value of type|is not a valid JAX type"),
        ErrorKind(
            "output",
            summary="the result has an object that a compiled program cannot return",
            remedy="return tensors, in tuples, lists, dictionaries or named tuples",
        ),
    ),
    (re.compile(r"is not an nn\.Parameter"), ErrorKind("property", "TPU509", far_rules=("TPU509",))),
    (re.compile(r"CUDA|NVIDIA driver|cuda"), _CUDA),
    (
        re.compile(r"does not require grad and does not have a grad_fn"),
        ErrorKind(
            "gradient",
            summary="torch's autograd records nothing of what runs on the device, so there is no gradient",
            remedy="compile the forward call without it: write the derivative as a formula, or take it outside of the "
            "model, with jax.grad",
        ),
    ),
    (
        # Python's words for a TypeError of torch's operator.
        re.compile(
            r"\Aunsupported operand type\(s\) for (\S+)(?: or pow\(\))?: 'Tensor' and 'Tensor'\Z"
            r"|\A'(\S+)' not supported between instances of 'Tensor' and 'Tensor'\Z"
        ),
        ErrorKind(
            "shape", summary="the shapes or dtypes of the two tensors of `{0}` do not go together", remedy=_COMPARE
        ),
    ),
    (_SHAPES, ErrorKind("shape", summary="shapes do not go together: {message}", remedy=_COMPARE)),
)  # fmt: skip
_OTHER: Final = ErrorKind("other", None, ("TPU3",))


def kind_of(error: BaseException) -> ErrorKind:
    """The kind of an error that ended a trace."""
    if isinstance(error, NoCudaError):
        return _CUDA._replace(summary=error.what, remedy=error.fix or "")
    if isinstance(error, PortError):
        return _kind_of_port_error(error)
    kind = _kind_by_class(error) or _kind_by_message(error)
    # A condition asks for the truth of a tensor, and another rule is about that.
    if kind is _VALUE and "bool[]" in str(error):
        return kind._replace(rule="TPU205")
    return kind


def _kind_of_port_error(error: PortError) -> ErrorKind:
    """tpuport's own refusals say best themselves what is wrong."""
    summary, where = error.what, str(error.where)
    # The failure's own `where` is the user's line.
    if error.where and where not in summary:
        summary = f"{summary}: {where}"
    remedy = (
        error.fix
        or "change that call: give it what it takes, or write it with other operations"
    )
    kind = ErrorKind("port", summary=summary, remedy=remedy)
    # The rule is about tensors that are made on the host, which the refusal is most
    # often not about.
    if "on the host" in summary:
        kind = kind._replace(near_rules=("TPU313", "TPU114"), far_rules=("TPU507",))
    if "can be pinned" in summary:
        kind = kind._replace(near_rules=("TPU311",))
    return kind


def _kind_by_class(error: BaseException) -> ErrorKind | None:
    for error_class, kind in _BY_CLASS:
        if isinstance(error, error_class):
            return kind
    return None


def _kind_by_message(error: BaseException) -> ErrorKind:
    for pattern, kind in _BY_MESSAGE:
        match = pattern.search(str(error))
        if match and kind.summary:
            groups = filter(None, match.groups())
            return kind._replace(
                summary=kind.summary.format(*groups, message=first_line(error))
            )
        if match:
            return kind
    return _OTHER


def host_kind(operation: str) -> ErrorKind:
    """Of an operation on a tensor of the host with one of the device, as
    `tpuport.compat` refuses it.
    """
    return ErrorKind(
        "port",
        near_rules=("TPU313",),
        far_rules=("TPU507",),
        summary=f"an operation has one tensor on the device and one on the host, {operation}",
        remedy='make the tensor on the device of the others, device=x.device, or move it, x.to("jax")',
    )


def code_remedy(message: str) -> str:
    """What to do about an error of the code itself, by its message."""
    if _DTYPES.search(message):
        return "correct the code: give the inputs, and what it makes, the dtype of the weights; torch refuses it too"
    if _SHAPES.search(message) or _SIZES.search(message):
        return f"{_COMPARE}; torch refuses these as well"
    return "correct the code: it fails in the same way in torch, model(**inputs)"
