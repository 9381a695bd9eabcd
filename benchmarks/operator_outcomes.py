"""What came of one call of an operator, beside torch: equal, different, or why there is no result."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import torch
from torch.utils import _pytree as pytree

from tpuport.compat.convert import device_dtype
from tpuport.errors import MissingDtypeError, PortError

# Relative to each element, and to the largest element of a result: sums of other order round to that.
_TOLERANCES = {
    torch.float32: (1e-4, 1e-5),
    torch.complex64: (1e-4, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-3),
    torch.float16: (2e-3, 2e-4),
}
# Of a result that torch itself rounds, against its own error in double precision.
_WORSE_THAN_TORCH = 3.0
_VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class Outcome(NamedTuple):
    """A verdict and, unless it is "equal", the reason.

    The others are "needs a value" while it is traced, "dtype" for one that the device does not have, "refused" by name
    for everything else, "unexplained" for an error that does not name the operator, and "different".
    """

    verdict: str
    reason: str = ""


def error_outcome(error: Exception, torchs: Exception | None) -> Outcome:
    """The verdict on an exception where torch gives a result, or an exception of its own."""
    if torchs is not None:
        return Outcome("equal")
    message = " ".join(str(error).split())[:300]
    reason = f"{type(error).__name__}: {message}"
    if isinstance(error, _VALUE_ERRORS):
        return Outcome("needs a value", "asks for a value while it is traced")
    if isinstance(error, MissingDtypeError):
        return Outcome("dtype", reason)
    names = isinstance(error, PortError) or "has no lowering" in message or "aten." in message
    return Outcome("refused" if names else "unexplained", reason)


def compare(
    mine: Any,
    torchs: Any,
    exact: Callable[[], Any] | None,
    *,
    values: bool = True,
    signs: bool = False,
) -> Outcome:
    """Compare outputs: structure, kinds, dtypes, shapes and, unless they are random, values.

    Args:
        mine: with tensors on the host.
        torchs: of torch on the CPU.
        exact: gives the same in double precision; asked only where values differ.
        values: whether they are compared.
        signs: whether the signs of zeros are, which torch defines where double precision has the same.
    """
    ours, theirs = pytree.tree_leaves(mine), pytree.tree_leaves(torchs)
    if len(ours) != len(theirs):
        return Outcome("different", f"{len(ours)} outputs for {len(theirs)}")
    for actual, expected in zip(ours, theirs, strict=True):
        difference = _difference_of_form(actual, expected)
        if difference:
            return Outcome("different", difference)
    if not values:
        return Outcome("equal")
    errors = [_difference(actual, expected) for actual, expected in zip(ours, theirs, strict=True)]
    if not any(errors):
        zeros = _difference_of_zeros(ours, theirs, exact) if signs and exact is not None else ""
        return Outcome("different", zeros) if zeros else Outcome("equal")
    if exact is not None and _as_good_as_torch(ours, theirs, exact):
        return Outcome("equal")
    return Outcome("different", next(filter(None, errors)))


def _difference_of_form(actual: Any, expected: Any) -> str:
    if not isinstance(expected, torch.Tensor):
        return (
            "" if type(actual) is type(expected) else f"{type(actual).__name__} for {type(expected).__name__}"
        )
    if not isinstance(actual, torch.Tensor):
        return f"{type(actual).__name__} for a tensor"
    dtype = device_dtype(expected.dtype)
    if actual.dtype != dtype:
        return f"{actual.dtype} for {dtype}".replace("torch.", "")
    return "" if actual.shape == expected.shape else f"shape {list(actual.shape)} for {list(expected.shape)}"


def _difference(actual: Any, expected: Any) -> str:
    """Where values differ by more than rounding; empty if they do not."""
    if not isinstance(expected, torch.Tensor):
        return (
            ""
            if actual == expected or (actual != actual and expected != expected)
            else f"{actual} for {expected}"
        )
    expected = expected.to(actual.dtype).resolve_conj().resolve_neg()
    wrong = ~_close(actual, expected) if actual.dtype in _TOLERANCES else actual != expected
    if not wrong.any():
        return ""
    where = tuple(int(index) for index in wrong.nonzero()[0])
    return f"{int(wrong.sum())} of {wrong.numel()} values: {actual[where].item():.6g} for {expected[where].item():.6g}"


def _difference_of_zeros(ours: list[Any], theirs: list[Any], exact: Callable[[], Any]) -> str:
    """Where a zero has another sign than torch's, in single and in double precision; empty if nowhere."""
    if not any(map(_opposite_zeros, ours, theirs)):
        return ""
    try:
        truth = pytree.tree_leaves(exact())
    except Exception:  # noqa: BLE001 - an operator without double precision has no referee
        return ""
    for actual, expected, true in zip(ours, theirs, truth, strict=False):
        count = _opposite_zeros(actual, expected) and _opposite_zeros(actual, true)
        if count:
            return f"{count} of {actual.numel()} values: another sign of zero"
    return ""


def _opposite_zeros(left: Any, right: Any) -> int:
    """How many zeros of two tensors have opposite signs."""
    if not isinstance(left, torch.Tensor) or not (left.is_floating_point() or left.is_complex()):
        return 0
    parts = [torch.view_as_real(one.resolve_conj()) if one.is_complex() else one for one in (left, right)]
    if parts[0].shape != parts[1].shape:
        return 0
    are_zero = (parts[0] == 0) & (parts[1] == 0)
    return int((are_zero & (parts[0].signbit() != parts[1].signbit())).sum())


def _close(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    relative, of_largest = _TOLERANCES[actual.dtype]
    wide = torch.complex128 if actual.dtype.is_complex else torch.float64
    actual, expected = actual.to(wide), expected.to(wide)
    finite = expected[expected.isfinite()].abs()
    absolute = of_largest * max(1.0, float(finite.max()) if finite.numel() else 1.0)

    def close(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.isclose(left, right, rtol=relative, atol=absolute, equal_nan=True)

    if not wide.is_complex:
        return close(actual, expected)
    # Beside an infinite part, the distance is not a number.
    are_close = close(torch.view_as_real(actual.resolve_conj()), torch.view_as_real(expected.resolve_conj()))
    return close(actual, expected) | are_close.all(dim=-1)


def _as_good_as_torch(ours: list[Any], theirs: list[Any], exact: Callable[[], Any]) -> bool:
    """Whether ours is about as far from the result in double precision as torch's is, in every tensor."""
    try:
        truth = pytree.tree_leaves(exact())
    except Exception:  # noqa: BLE001 - an operator without double precision has no referee
        return False
    if len(truth) != len(ours):
        return False
    for actual, expected, true in zip(ours, theirs, truth, strict=True):
        if not isinstance(expected, torch.Tensor) or not _difference(actual, expected):
            continue
        if actual.dtype not in _TOLERANCES or true.shape != actual.shape:
            return False
        wide = torch.complex128 if actual.dtype.is_complex else torch.float64
        true, mine, torchs = true.to(wide), actual.to(wide), expected.to(wide)
        allowed = _WORSE_THAN_TORCH * (torchs - true).abs().nan_to_num(0.0, 0.0, 0.0).max()
        close = _close(actual, true.to(actual.dtype)) | ((mine - true).abs() <= allowed) | (mine == torchs)
        if not bool((close | (mine.isnan() & torchs.isnan())).all()):
            return False
    return True


def same_elements(source: torch.Tensor, mine: Any, torchs: Any) -> bool:
    """Whether two results of an operator that orders elements differ only in which of equal ones they name.

    Args:
        source: what was ordered.
        mine: elements and their places in `source` along a dimension, or places alone.
        torchs: the same of torch.
    """
    ours, theirs = pytree.tree_leaves(mine), pytree.tree_leaves(torchs)
    if any(_difference(actual, expected) for actual, expected in zip(ours[:-1], theirs[:-1], strict=True)):
        return False
    indices, torch_indices = ours[-1].long(), theirs[-1]
    return any(
        (indices.ndim < source.ndim or _distinct(indices, dim))
        and _same(_gathered(source, indices, dim), _gathered(source, torch_indices, dim))
        for dim in range(source.ndim)
        if _fits(source, torch_indices, dim) and _fits(source, indices, dim)
    )


def _gathered(source: torch.Tensor, indices: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.gather(source, dim, indices if indices.ndim == source.ndim else indices.unsqueeze(dim))


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return bool(((left == right) | ((left != left) & (right != right))).all())


def _fits(source: torch.Tensor, indices: torch.Tensor, dim: int) -> bool:
    if indices.ndim != source.ndim:
        indices = indices.unsqueeze(min(dim, indices.ndim))
    others = [
        actual == expected
        for axis, (actual, expected) in enumerate(zip(indices.shape, source.shape, strict=False))
        if axis != dim
    ]
    return indices.ndim == source.ndim and all(others) and bool((indices < source.shape[dim]).all())


def _distinct(indices: torch.Tensor, dim: int) -> bool:
    ordered = indices.sort(min(dim, indices.ndim - 1)).values if indices.ndim else indices.reshape(1)
    return bool((ordered.diff(dim=min(dim, ordered.ndim - 1)) != 0).all())
