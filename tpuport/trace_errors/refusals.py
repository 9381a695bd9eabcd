"""What else jax or the TPU compiler refuses, in a sentence."""

import re
from typing import Final, NamedTuple

from tpuport.trace_errors.failure import Source, TraceFailure
from tpuport.trace_errors.libraries import Owner
from tpuport.trace_errors.tracebacks import ErrorPath, path_to


class _KnownMessage(NamedTuple):
    """A message of the compiler, and what it means; {0} is the pattern's group."""

    pattern: str
    message: str
    remedy: str


# The first that matches counts: the general failure of a kernel comes after the
# failures that say more.
_KNOWN_MESSAGES: Final = (
    _KnownMessage(
        r"CompileTimeMosaicUnsupportedRhsType: Unsupported matmul RHS type on target: vector<[\dx]*x(\w+)>",
        "a kernel multiplies matrices of {0}, which the matrix units of this TPU do not take",
        "give the kernel bfloat16, or compile for a generation that has this type",
    ),
    _KnownMessage(
        r"Mosaic failed to compile TPU kernel: (?:E\d+: )?(?:CompileTimeMosaic\w+: )?([^\n]+)",
        "a Pallas kernel cannot be compiled for this TPU: {0}",
        "change the kernel's block sizes or dtypes, or use another attention (--attention xla)",
    ),
    _KnownMessage(
        r"(?:Unimplemented primitive in Pallas TPU lowering[^:]*: |primitive in Pallas TPU lowering for \w+: )([\w-]+)",
        "a Pallas kernel uses {0}, which kernels on a TPU do not have",
        "write the kernel without it, or do that part outside of it",
    ),
    _KnownMessage(
        r"MLIR translation rule for primitive '([\w-]+)' not found for platform tpu",
        "the model uses {0}, which jax has for CPUs and not for TPUs",
        "compute that part on the host before the call, or write it with other operations",
    ),
    _KnownMessage(
        r"Cannot (?:automatically )?partition|[Mm]osaic kernels cannot be automatically partitioned",
        "a kernel is called on arrays that are spread over the mesh, and nothing says how to divide it",
        "call it in jax.shard_map, or let tpuport.attention place it (--attention flash)",
    ),
    _KnownMessage(
        r"[Cc]omplex(?: data)? types? (?:is|are)? ?not supported|UNIMPLEMENTED.*\b(?:c(?:64|128))\b",
        "the program has complex numbers, and this TPU has none",
        "rotate with a real cosine and sine (tpuport lint: TPU403)",
    ),
    _KnownMessage(
        r"No such compile option: '([\w-]+)'",
        "this libtpu has no compiler option {0}",
        "install the libtpu that this version of tpuport was tested with",
    ),
)


def explain_refusal(error: BaseException) -> TraceFailure:
    """What the compiler refused, in a sentence, with the line of the user's code if
    Python knows of one.

    Args:
        error: raised while a traced program was lowered or compiled.
    """
    path = path_to(error)
    known = known_refusal(path)
    if known is not None:
        return known
    text = _message(path)
    # The compiler's messages go on with the program's text.
    first_line = text.splitlines()[0].rstrip(".")
    return TraceFailure(
        "compiler",
        f"the TPU compiler refuses the program: {first_line}",
        _source(path),
        remedy="see the whole message with --traceback; where it is about a kernel, try --attention xla",
        traceback=text,
    )


def known_refusal(path: ErrorPath) -> TraceFailure | None:
    """What jax or the compiler refused, if its message is a known one."""
    text = _message(path)
    for known in _KNOWN_MESSAGES:
        # Some messages have line breaks between the words that identify them.
        if match := re.search(known.pattern, text, re.DOTALL):
            message = known.message.format(*match.groups()).rstrip(":. ")
            return TraceFailure(
                "compiler", message, _source(path), remedy=known.remedy, traceback=text
            )
    return None


def _message(path: ErrorPath) -> str:
    return str(path.error).strip() or type(path.error).__name__


def _source(path: ErrorPath) -> Source | None:
    frames = path.frames_of(Owner.MODEL)
    return frames[0].source() if frames else None
