"""Whether two results of the same computation differ by more than rounding, with
float64 as the referee.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch

from tpuport import compat

# How much farther from float64 than torch a result may be, and how many units of its
# dtype on top. Two libraries round in different places, so that their errors differ by
# small factors; a wrong formula's is a thousand times larger.
_RMS_FACTOR: Final = 4.0
_MAX_FACTOR: Final = 8.0
_MAX_UNITS: Final = 4.0
# The root mean square of n independent normal errors of one unit exceeds 1 + sqrt(2 x /
# n) units with a probability of exp(-x) at most: Laurent and Massart, Adaptive
# estimation of a quadratic functional, Annals of Statistics 28 (2000), lemma 1. With x
# = 4.5, about 1%, that is 1 + 3 / sqrt(n): for a single number the bound of a worst
# element.
_RMS_UNITS: Final = 1.0
_RMS_SPREAD: Final = 3.0
# Units that results may differ by if there is no referee: a few times what torch allows
# for one operator in its tests.
_UNITS_WITHOUT_REFEREE: Final = 64.0
# Anything beyond this is an infinity or a mask: masks hold the smallest number of their
# dtype, another one in float64.
_LARGEST: Final = 1e30
# Elements that are compared at a time.
_BLOCK: Final = 2**15
_BETWEEN: Final = 2


@dataclasses.dataclass(frozen=True)
class Deviation:
    """How a result on the device differs from torch's.

    Attributes:
        is_rounding: whether it is as near to float64 as torch's own.
        index: of the element that differs most; ours, torch, exact: its values, as
            text.
        error: the root mean square of the difference from float64, relative to the
            values; torch_error: torch's own.
        reason: what differs if it is not numbers: "shapes" and so on; then errors are
            infinite.
    """

    is_rounding: bool
    index: tuple[int, ...]
    ours: str
    torch: str
    exact: str
    error: float
    torch_error: float
    reason: str = ""

    def describe(self) -> str:
        """The values of the worst element, and both errors."""
        if self.reason:
            return f"{self.reason}: {self.ours} here, {self.torch} in torch"
        position = ""
        if self.index:
            position = f"at {list(self.index)} "
        return (
            f"{position}{self.ours} here, {self.torch} in torch, {self.exact} in float64; "
            f"relative error {self.error:.1e} here, {self.torch_error:.1e} in torch"
        )


def deviation(
    ours: torch.Tensor,
    theirs: torch.Tensor,
    exact: torch.Tensor | None,
    rounded: Sequence[torch.Tensor] = (),
) -> Deviation | None:
    """How a result differs from torch's; None if it does not.

    Args:
        ours: the result on the device, copied to the host.
        theirs: torch's, in the model's dtype.
        exact: the same result in float64, the referee. Without one, torch's counts as
            exact, and the bound is wider.
        rounded: the same in float64 where each operator's arguments were rounded at
            random. How far these are from the referee is rounding, also where torch is
            nearer by chance.
    """
    if ours.shape != theirs.shape:
        return Deviation(
            False,
            (),
            str(list(ours.shape)),
            str(list(theirs.shape)),
            "",
            math.inf,
            0.0,
            "other shapes",
        )
    if ours.numel() == 0:
        return None
    # What torch has in float64, a device has in float32, rounded.
    unit = _unit(compat.device_dtype(theirs.dtype))
    if exact is None or exact.shape != theirs.shape:
        exact, rounded = None, ()
        unit *= _UNITS_WITHOUT_REFEREE
    sums = _sums(ours, theirs, exact)
    if sums.between.largest == 0:
        return None
    rounding = sums.theirs
    for other in rounded if unit else ():
        if exact is not None and other.shape == exact.shape:
            rounding = rounding.larger(_sums(other, exact, exact).ours)
    units = _RMS_UNITS + _RMS_SPREAD / math.sqrt(sums.numbers)
    scale = sums.scale
    rms_bound = _RMS_FACTOR * rounding.rms + units * unit * scale.rms
    max_bound = _MAX_FACTOR * rounding.largest + _MAX_UNITS * unit * scale.largest
    is_rounding = sums.ours.rms <= rms_bound and sums.ours.largest <= max_bound
    # The element where the two libraries differ most, not one where both are far from
    # float64. Complex numbers are two each there, a real and an imaginary part.
    flat = sums.worst // (2 if ours.is_complex() else 1)
    index = tuple(map(int, torch.unravel_index(torch.tensor(flat), ours.shape)))
    referee = theirs if exact is None else exact
    our_text, torch_text, exact_text = _texts([ours, theirs, referee], index)
    # Errors are relative; where all values are 0, they are absolute.
    size = scale.rms or 1.0
    return Deviation(
        is_rounding, index, our_text, torch_text, exact_text,
        sums.ours.rms / size, rounding.rms / size,
    )  # fmt: skip


class _Norm(NamedTuple):
    """The root mean square of some numbers, and the largest of them by absolute
    value.
    """

    rms: float
    largest: float

    def larger(self, other: "_Norm") -> "_Norm":
        return _Norm(max(self.rms, other.rms), max(self.largest, other.largest))


class _Sums(NamedTuple):
    """What the bound needs to know about three tensors.

    Attributes:
        ours, theirs: how far they are from the referee.
        between: how far they are from each other; worst: the flat index of the element
            where that is most.
        scale: of the referee's numbers that are neither NaN nor masks.
    """

    numbers: int
    ours: _Norm
    theirs: _Norm
    between: _Norm
    scale: _Norm
    worst: int


def _sums(
    ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor | None
) -> _Sums:
    """Compare three tensors of one shape; None for the last takes torch's for it.

    Block by block: what a processor's cache holds is read several times at the price of
    once, and no block needs fresh memory.
    """
    first, second = _flat(ours), _flat(theirs)
    third = second if exact is None else _flat(exact)
    count = len(second)
    squares, largest = [0.0] * 4, [0.0] * 4
    worst = 0
    for start in range(0, count, _BLOCK):
        block = slice(start, start + _BLOCK)
        parts = _differences(first[block], second[block], third[block])
        for number, part in enumerate(parts):
            squares[number] += float(torch.linalg.vector_norm(part)) ** 2
            low, high = map(float, part.aminmax())
            size = max(-low, high)
            if size > largest[number]:
                largest[number] = size
                if number == _BETWEEN:
                    worst = start + int(part.abs_().argmax())
    ours_norm, torch_norm, between, scale = (
        _Norm(math.sqrt(square / count), size)
        for square, size in zip(squares, largest, strict=True)
    )
    return _Sums(count, ours_norm, torch_norm, between, scale, worst)


def _differences(
    values: torch.Tensor, torch_values: torch.Tensor, exact_values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of flat tensors: ours and torch's without the referee's, ours without torch's,
    and the referee's numbers.
    """
    all_values = values, torch_values, exact_values = (
        values.double(), torch_values.double(), exact_values.double(),
    )  # fmt: skip
    if all(map(_has_only_numbers, all_values)):
        return (
            values - exact_values,
            torch_values - exact_values,
            values - torch_values,
            exact_values,
        )
    values, torch_values, exact_values = (
        part.clamp(-_LARGEST, _LARGEST) for part in all_values
    )
    # Where float64 alone has an infinity or NaN, it is not a referee, and torch is.
    exact_values = torch.where(_is_number(exact_values), exact_values, torch_values)
    between = _distance(values, torch_values)
    # Infinities, masks and NaN are equal or different, and have no rounding. In the
    # bound for the numbers beside them, a single one would allow any difference.
    is_special = ~(
        _is_number(values) & _is_number(torch_values) & _is_number(exact_values)
    )
    return (
        _distance(values, exact_values).masked_fill_(is_special & (between == 0), 0.0),
        _distance(torch_values, exact_values).masked_fill_(is_special, 0.0),
        between,
        exact_values.masked_fill(is_special, 0.0),
    )


def _has_only_numbers(values: torch.Tensor) -> bool:
    """Whether there is neither NaN nor anything as large as infinities and masks."""
    low, high = values.aminmax()
    return bool((low > -_LARGEST) & (high < _LARGEST))


def total_distance(first: torch.Tensor, second: torch.Tensor) -> float:
    """The sum of absolute differences of two tensors of the same shape; equal
    infinities and NaN do not differ.
    """
    return float(_distance(_comparable(first), _comparable(second)).sum())


def same_dtype(ours: torch.dtype, theirs: torch.dtype) -> bool:
    """Whether a dtype on the device is the one that torch has; float64 is float32
    there.
    """
    return compat.device_dtype(ours) == compat.device_dtype(theirs)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The values as a vector; complex numbers are two each."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.detach().reshape(-1)


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """The values as real float64 numbers, those of masks limited."""
    return _flat(tensor).to(torch.float64).clamp(-_LARGEST, _LARGEST)


def _is_number(values: torch.Tensor) -> torch.Tensor:
    """Where comparable values are neither NaN nor as large as infinities and masks
    are.
    """
    return values.abs() < _LARGEST


def _distance(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The absolute difference: 0 where both are NaN, infinite where one is."""
    both = first.isnan() & second.isnan()
    difference = (first - second).abs().nan_to_num(math.inf)
    return difference.masked_fill(both, 0.0)


def _unit(dtype: torch.dtype) -> float:
    """The relative distance of neighbouring numbers of a dtype; 0 for integers, which
    are exact.
    """
    if dtype.is_floating_point or dtype.is_complex:
        return torch.finfo(dtype).eps
    return 0.0


def _texts(tensors: Sequence[torch.Tensor], index: tuple[int, ...]) -> list[str]:
    """The elements at an index, with more digits if two that differ would read the
    same.
    """
    values: list[Any] = [tensor[index].item() for tensor in tensors]
    texts = [
        f"{value:.7g}" if isinstance(value, float) else str(value) for value in values
    ]
    if len(set(texts)) < len(set(values)):
        return list(map(str, values))
    return texts
