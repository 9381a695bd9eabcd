"""What came of one call of an operator, beside torch: equal, refused by name, or different."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import torch
from torch.utils import _pytree as pytree

from tpuport import compat
from tpuport.errors import PortError

# Relative to each element, and to the largest element of a result: sums of other order round to that.
_TOLERANCES = {
    torch.float32: (1e-4, 1e-5),
    torch.complex64: (1e-4, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-3),
    torch.float16: (2e-3, 2e-4),
}
# Of a result that torch itself rounds, against its own error in double precision.
_WORSE_THAN_TORCH = 3.0
_NAMED_BY = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class Outcome(NamedTuple):
    """A verdict ("equal", "refused", "unexplained" for an error that does not name the operator, "different")."""

    verdict: str
    reason: str = ""


def error_outcome(error: Exception, torchs: Exception | None) -> Outcome:
    """The verdict on an exception where torch gives a result, or an exception of its own."""
    if torchs is not None:
        return Outcome("equal")
    message = " ".join(str(error).split())[:300]
    reason = f"{type(error).__name__}: {message}"
    if isinstance(error, _NAMED_BY):
        return Outcome("refused", "needs a value while it is traced")
    names = isinstance(error, PortError) or "has no lowering" in message or "aten." in message
    return Outcome("refused" if names else "unexplained", reason)


def compare(mine: Any, torchs: Any, exact: Callable[[], Any] | None, *, values: bool = True) -> Outcome:
    """Compare outputs: structure, kinds, dtypes, shapes and, unless they are random, values.

    Args:
        mine: with tensors on the host.
        torchs: of torch on the CPU.
        exact: gives the same in double precision; asked only where values differ.
        values: whether they are compared.
    """
    ours, theirs = pytree.tree_leaves(mine), pytree.tree_leaves(torchs)
    if len(ours) != len(theirs):
        return Outcome("different", f"{len(ours)} outputs for {len(theirs)}")
    for one, other in zip(ours, theirs, strict=True):
        difference = _difference_of_form(one, other)
        if difference:
            return Outcome("different", difference)
    if not values:
        return Outcome("equal")
    errors = [_difference(one, other) for one, other in zip(ours, theirs, strict=True)]
    if not any(errors):
        return Outcome("equal")
    if exact is not None and _as_good_as_torch(ours, theirs, exact):
        return Outcome("equal")
    return Outcome("different", next(filter(None, errors)))


def _difference_of_form(one: Any, other: Any) -> str:
    if not isinstance(other, torch.Tensor):
        return "" if type(one) is type(other) else f"{type(one).__name__} for {type(other).__name__}"
    if not isinstance(one, torch.Tensor):
        return f"{type(one).__name__} for a tensor"
    expected = _narrowed(other.dtype)
    if one.dtype != expected:
        return f"{one.dtype} for {expected}".replace("torch.", "")
    return "" if one.shape == other.shape else f"shape {list(one.shape)} for {list(other.shape)}"


def _narrowed(dtype: torch.dtype) -> torch.dtype:
    """The dtype that a tensor of this one has on the device."""
    return compat.torch_dtype(compat.jax_dtype(dtype))


def _difference(one: Any, other: Any) -> str:
    """Where values differ by more than rounding; empty if they do not."""
    if not isinstance(other, torch.Tensor):
        return "" if one == other or one != one else f"{one} for {other}"
    other = other.to(one.dtype).resolve_conj().resolve_neg()
    wrong = ~_close(one, other) if one.dtype in _TOLERANCES else one != other
    if not wrong.any():
        return ""
    where = tuple(int(index) for index in wrong.nonzero()[0])
    return (
        f"{int(wrong.sum())} of {wrong.numel()} values: {one[where].item():.6g} for {other[where].item():.6g}"
    )


def _close(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    relative, of_largest = _TOLERANCES[one.dtype]
    wide = torch.complex128 if one.dtype.is_complex else torch.float64
    one, other = one.to(wide), other.to(wide)
    finite = other[other.isfinite()].abs()
    absolute = of_largest * max(1.0, float(finite.max()) if finite.numel() else 1.0)
    return torch.isclose(one, other, rtol=relative, atol=absolute, equal_nan=True)


def _as_good_as_torch(ours: list[Any], theirs: list[Any], exact: Callable[[], Any]) -> bool:
    """Whether ours is about as far from the result in double precision as torch's is, in every tensor."""
    try:
        truth = pytree.tree_leaves(exact())
    except Exception:  # noqa: BLE001 - an operator without double precision has no referee
        return False
    if len(truth) != len(ours):
        return False
    for one, other, true in zip(ours, theirs, truth, strict=True):
        if not isinstance(other, torch.Tensor) or not _difference(one, other):
            continue
        if one.dtype not in _TOLERANCES or true.shape != one.shape:
            return False
        wide = torch.complex128 if one.dtype.is_complex else torch.float64
        true, mine, torchs = true.to(wide), one.to(wide), other.to(wide)
        allowed = _WORSE_THAN_TORCH * (torchs - true).abs().nan_to_num(0.0, 0.0, 0.0).max()
        close = _close(one, true.to(one.dtype)) | ((mine - true).abs() <= allowed) | (mine == torchs)
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
    if any(_difference(one, other) for one, other in zip(ours[:-1], theirs[:-1], strict=True)):
        return False
    place, torchs_place = ours[-1].long(), theirs[-1]
    return any(
        (place.ndim < source.ndim or _distinct(place, dim))
        and torch.equal(_gathered(source, place, dim), _gathered(source, torchs_place, dim))
        for dim in range(source.ndim)
        if _fits(source, torchs_place, dim) and _fits(source, place, dim)
    )


def _gathered(source: torch.Tensor, place: torch.Tensor, dim: int) -> torch.Tensor:
    found = torch.gather(source, dim, place if place.ndim == source.ndim else place.unsqueeze(dim))
    return found.nan_to_num(0.0) if found.dtype.is_floating_point else found


def _fits(source: torch.Tensor, place: torch.Tensor, dim: int) -> bool:
    if place.ndim != source.ndim:
        place = place.unsqueeze(min(dim, place.ndim))
    others = [
        one == other
        for axis, (one, other) in enumerate(zip(place.shape, source.shape, strict=False))
        if axis != dim
    ]
    return place.ndim == source.ndim and all(others) and bool((place < source.shape[dim]).all())


def _distinct(place: torch.Tensor, dim: int) -> bool:
    ordered = place.sort(min(dim, place.ndim - 1)).values if place.ndim else place.reshape(1)
    return bool((ordered.diff(dim=min(dim, ordered.ndim - 1)) != 0).all())
