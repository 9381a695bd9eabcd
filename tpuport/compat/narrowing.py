"""Code that asks for 64 bits a number, of which the device computes 32: a warning with
its line, once for each line.
"""

import contextlib
import contextvars
import sys
import warnings
from collections.abc import Iterator
from types import FrameType

import torch

from tpuport.compat.convert import device_dtype
from tpuport.trace_errors.libraries import Owner, owner_of


class NarrowingWarning(UserWarning):
    """A tensor on the device has fewer digits than the one that torch would compute."""


# Torch itself computes tolerances in float64, and from torch 2.15 on ranks of
# quantiles, and nobody's code asks for it.
WITH_WIDE_STEPS = frozenset(
    {
        torch.linalg.pinv, torch.pinverse, torch.linalg.matrix_rank, torch.quantile, torch.nanquantile,
        torch.Tensor.quantile, torch.Tensor.nanquantile,
    }
)  # fmt: skip
_is_silenced: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "narrowing is silenced", default=False
)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Warn of nothing inside of the block: for a trace whose program never runs."""
    token = _is_silenced.set(True)
    try:
        yield
    finally:
        _is_silenced.reset(token)


def warn(dtype: torch.dtype) -> None:
    """Warn of a tensor that code asks for in this dtype, float64 or complex128, at the
    line that does.
    """
    if _is_silenced.get():
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_library(frame):
        frame = frame.f_back
    if frame is None:
        return
    asked, narrow = (
        str(name).removeprefix("torch.") for name in (dtype, device_dtype(dtype))
    )
    # The registry lets each line warn once, as for any other warning.
    warnings.warn_explicit(
        f"{asked} becomes {narrow} on the device, with 7 digits instead of 16 (TPU401): ask for "
        f"{narrow}, or compute it on the host, before the call",
        NarrowingWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _is_library(frame: FrameType) -> bool:
    return (
        owner_of(frame.f_code.co_filename, str(frame.f_globals.get("__name__", "")))
        == Owner.LIBRARY
    )
