"""What else the TPU compiler refuses, in a sentence."""

import re
from typing import Final, NamedTuple

from tpuport.topology.compile_report import Failure, Source
from tpuport.topology.failures.frames import Way, way_to


class _Known(NamedTuple):
    """A message of the compiler, and what it means."""

    pattern: re.Pattern[str]
    message: str
    remedy: str


def _known(pattern: str, message: str, remedy: str) -> _Known:
    return _Known(re.compile(pattern, re.DOTALL), message, remedy)


# The first that fits; groups of the pattern stand in the message.
_MESSAGES: Final = (
    _known(
        r"CompileTimeMosaicUnsupportedRhsType: Unsupported matmul RHS type on target: vector<[\dx]*x(\w+)>",
        "a kernel multiplies matrices of {0}, which the matrix units of this TPU do not take",
        "give the kernel bfloat16, or compile for a generation that has this type",
    ),
    _known(
        r"Mosaic failed to compile TPU kernel: (?:E\d+: )?(?:CompileTimeMosaic\w+: )?([^\n]+)",
        "a Pallas kernel cannot be compiled for this TPU: {0}",
        "change the kernel's block sizes or dtypes, or use another attention (--attention xla)",
    ),
    _known(
        r"(?:Unimplemented primitive in Pallas TPU lowering[^:]*: |primitive in Pallas TPU lowering for \w+: )([\w-]+)",
        "a Pallas kernel uses {0}, which kernels on a TPU do not have",
        "write the kernel without it, or do that part outside of it",
    ),
    _known(
        r"MLIR translation rule for primitive '([\w-]+)' not found for platform tpu",
        "the model uses {0}, which jax has for CPUs and not for TPUs",
        "compute that part on the host before the call, or write it with other operations",
    ),
    _known(
        r"Cannot (?:automatically )?partition|[Mm]osaic kernels cannot be automatically partitioned",
        "a kernel is called on arrays that are spread over the mesh, and nothing says how it is to be divided",
        "call it in jax.shard_map, or let tpuport.attention place it (--attention flash)",
    ),
    _known(
        r"[Cc]omplex(?: data)? types? (?:is|are)? ?not supported|UNIMPLEMENTED.*\b(c(?:64|128))\b",
        "the program has complex numbers where this TPU has none",
        "rotate with a real cosine and sine (tpuport lint: TPU403)",
    ),
    _known(
        r"No such compile option: '([\w-]+)'",
        "this libtpu has no compiler option {0}",
        "install the libtpu that this version of tpuport was tested with",
    ),
)  # fmt: skip


def refused(error: BaseException) -> Failure:
    """What the compiler refused, in a sentence, with the line of the user's code where Python knows of one.

    Args:
        error: raised while a traced program was lowered or compiled.
    """
    way = way_to(error)
    if known := recognised(way):
        return known
    text = _text(way)
    first = text.splitlines()[0].rstrip(".")
    return Failure(
        "compiler", f"the TPU compiler refuses the program: {first}", _source(way),
        remedy="see the whole message with --traceback; where it is about a kernel, try --attention xla",
        traceback=text,
    )  # fmt: skip


def recognised(way: Way) -> Failure | None:
    """What jax or the compiler has refused, where it is one of the things that are known; None where it is not."""
    text = _text(way)
    for known in _MESSAGES:
        if found := known.pattern.search(text):
            groups = [group or "" for group in found.groups()]
            message = known.message.format(*groups).rstrip(":. ")
            return Failure("compiler", message, _source(way), None, known.remedy, (), text)
    return None


def _text(way: Way) -> str:
    return str(way.error).strip() or type(way.error).__name__


def _source(way: Way) -> Source | None:
    frames = way.of_level(2)
    return frames[0].source() if frames else None
