"""Choices among equal values, whose order torch leaves open: `topk`, `sort` and their
like.

torch.topk: "the indices of the returned elements are not guaranteed to be stable";
torch.sort preserves the order of equal elements only with stable=True; torch.kthvalue,
median and mode name any of several. argmax, argmin, max and min return the first, so
that theirs is a tie only where rounding decides which is the largest.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from tpuport.verification.bounds import deviation
from tpuport.verification.recording import CallKey

_ANY_OF_EQUALS: Final = frozenset(
    {"topk", "sort", "argsort", "kthvalue", "median", "nanmedian", "mode"}
)
_FIRST_OF_EQUALS: Final = frozenset({"argmax", "argmin", "max", "min"})


class Choice(NamedTuple):
    """What an operator has chosen in a run, and from what; on the host.

    Attributes:
        source: the values to choose from.
        outputs: the tensors that it returned, values and indices or indices alone.
    """

    source: torch.Tensor
    outputs: Sequence[torch.Tensor]

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> "Choice":
        """From the values to choose from, and the results."""
        source, *outputs = tensors
        return cls(source, outputs)


@dataclasses.dataclass(frozen=True)
class Tie:
    """A call that chooses among equal values, and torch's choice.

    Attributes:
        key: of the call.
        indices: for each tensor that it returns torch's indices, or None for a tensor
            of values.
        is_exact: whether the values are equal, and not only by rounding.
    """

    key: CallKey
    indices: tuple[torch.Tensor | None, ...]
    is_exact: bool


def find_tie(
    operator: str,
    key: CallKey,
    theirs: Choice,
    ours: Choice,
    exact: torch.Tensor | None,
) -> Tie | None:
    """Whether an operator has chosen other indices than torch, and the same values;
    None if not.

    Each choice has to be right for the values that it was made from: distinct elements,
    in order or the extreme.

    Args:
        operator: its name.
        theirs, ours: in torch and on the device.
        exact: torch's source in float64.
    """
    if (
        operator not in _ANY_OF_EQUALS | _FIRST_OF_EQUALS
        or ours.source.shape != theirs.source.shape
    ):
        return None
    if [output.shape for output in ours.outputs] != [
        output.shape for output in theirs.outputs
    ]:
        return None
    for dimension in range(max(theirs.source.ndim, 1)):
        their_values, our_values = (
            _chosen_values(operator, choice, dimension) for choice in (theirs, ours)
        )
        if their_values is None or our_values is None:
            continue
        exact_values = None
        if exact is not None:
            layout = _layout(exact, _indices(theirs), dimension)
            exact_values = layout and layout.source.gather(layout.axis, layout.indices)
        difference = deviation(our_values, their_values, exact_values)
        if difference is None or difference.is_rounding:
            indices = tuple(
                None if output is not _indices(theirs) else output
                for output in theirs.outputs
            )
            return Tie(key, indices, is_exact=difference is None)
    return None


def _indices(choice: Choice) -> torch.Tensor:
    """The last result: values come first, where an operator returns them."""
    return choice.outputs[-1]


def _chosen_values(
    operator: str, choice: Choice, dimension: int
) -> torch.Tensor | None:
    """The values that were chosen along a dimension; None if these indices are not a
    right choice along it.
    """
    layout = _layout(choice.source, _indices(choice), dimension)
    if layout is None:
        return None
    source, indices, axis = layout
    if indices.numel() == 0 or indices.min() < 0 or indices.max() >= source.shape[axis]:
        return None
    chosen = source.gather(axis, indices)
    return chosen if _is_right(operator, choice, layout, chosen) else None


class _Layout(NamedTuple):
    """A source, indices with as many dimensions, and the dimension that they count
    along.
    """

    source: torch.Tensor
    indices: torch.Tensor
    axis: int


def _layout(
    source: torch.Tensor, indices: torch.Tensor, dimension: int
) -> _Layout | None:
    """How to read indices that may count along a dimension of a source; None if their
    shape says that they do not.
    """
    if indices.dtype not in (torch.int64, torch.int32):
        return None
    indices = indices.long()
    if indices.ndim == 0:
        return _Layout(source.flatten(), indices.reshape(1), 0)
    if indices.ndim == source.ndim - 1:
        indices = indices.unsqueeze(dimension)
    if indices.ndim != source.ndim or _without(source.shape, dimension) != _without(
        indices.shape, dimension
    ):
        return None
    return _Layout(source, indices, dimension)


def _without(shape: Sequence[int], dimension: int) -> list[int]:
    return [size for index, size in enumerate(shape) if index != dimension]


def _is_right(
    operator: str, choice: Choice, layout: _Layout, chosen: torch.Tensor
) -> bool:
    """Whether a choice follows from its own source."""
    source, indices, axis = layout
    if (indices.sort(axis).values.diff(dim=axis) == 0).any():
        return False
    if len(choice.outputs) == 2 and not torch.equal(
        choice.outputs[0].reshape(chosen.shape), chosen
    ):
        return False
    if operator in _FIRST_OF_EQUALS:
        first = source.argmax if operator.endswith("max") else source.argmin
        return torch.equal(first(axis, keepdim=True), indices)
    if len(choice.outputs) == 1:
        steps = chosen.double().diff(dim=axis)
        return bool((steps >= 0).all() or (steps <= 0).all())
    return True
