"""A run in float64 that is rounded at random, as a measure of what rounding does to a
model's results.

Stochastic arithmetic, as in Vignes, A stochastic arithmetic for reliable scientific
computation (1993): a result is known as far as random rounding leaves it.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch

from tpuport.internals.torch_internals import torch_pytree
from tpuport.verification.answering import ExactRecorder, is_fraction, shares_memory
from tpuport.verification.recording import Answer, CallKey, ModuleCall


class RoundedRecorder(ExactRecorder):
    """Records a run in float64 in which the arguments of each operator are rounded at
    random, by as much as torch rounds there: how far rounding alone takes a result.

    Whole numbers are not rounded, and choices are those of the run in float64: the
    other side of a step is not rounding.

    Args:
        answers: of the run in torch, and over them the choices in float64.
        dtypes: in which torch computes the calls of a line.
    """

    activity = "in float64, rounded at random,"

    def __init__(
        self,
        model: torch.nn.Module,
        answers: dict[CallKey, Answer],
        dtypes: Mapping[tuple[str, int, str], torch.dtype],
        seed: int,
        focus: ModuleCall | None = None,
    ) -> None:
        super().__init__(model, answers, focus)
        self._dtypes = dtypes
        self._generator = torch.Generator().manual_seed(seed)

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any], key: CallKey) -> Any:
        """Answer a call, or compute it with rounded arguments."""
        result = self.answered(func, args, kwargs, key)
        fractions = map(is_fraction, torch_pytree.tree_leaves(result))
        # What is written to, or a view, stays what it is.
        if (
            key in self._answers
            or not any(fractions)
            or shares_memory(result, (args, kwargs))
        ):
            return result
        unit = torch.finfo(self._dtypes.get(key[:3], torch.float32)).eps
        adds_up = _adds_up(func, args, kwargs, result)
        if adds_up:
            # Errors of n additions, whose signs are random, grow with the root of n.
            unit *= math.sqrt(_longest(args))
        args, kwargs = torch_pytree.tree_map_only(
            torch.Tensor, functools.partial(self._round, unit), (args, kwargs)
        )
        result = func(*args, **kwargs)
        if adds_up:
            result = torch_pytree.tree_map_only(
                torch.Tensor, functools.partial(self._round, unit), result
            )
        return result

    def _round(self, unit: float, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            size = torch.view_as_real(tensor.resolve_conj()).abs().amax(-1)
            noise = torch.complex(self._noise(tensor), self._noise(tensor))
            return tensor + unit * size * noise
        if not tensor.is_floating_point():
            return tensor
        rounded = tensor * (1 + unit * self._noise(tensor))
        return torch.where(tensor == tensor.round(), tensor, rounded)

    def _noise(self, tensor: torch.Tensor) -> torch.Tensor:
        """Half a unit at most, which is how far rounding goes."""
        noise = torch.rand(tensor.shape, generator=self._generator, dtype=torch.float64)
        return noise - 0.5


def _adds_up(
    func: Any, args: tuple, kwargs: dict[str, Any], result: torch.Tensor
) -> bool:
    """Whether elements of a result come of several of an argument's: not if every other
    element of the arguments changes only those in the same places.
    """
    if not isinstance(result, torch.Tensor):
        return True
    chosen = torch.arange(result.numel()).remainder(2).bool().reshape(result.shape)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if not is_fraction(tensor) or tensor.shape != result.shape:
            return tensor
        return torch.where(chosen, tensor + 1e-3 * (1 + tensor.abs()), tensor)

    changed = torch_pytree.tree_map_only(torch.Tensor, change, (args, kwargs))
    others = ~chosen
    same = func(*changed[0], **changed[1])[others].equal(result[others])
    leaves = torch_pytree.tree_leaves((args, kwargs))
    fractions = [leaf for leaf in leaves if is_fraction(leaf)]
    return not same or all(leaf.shape != result.shape for leaf in fractions)


def _longest(arguments: Any) -> int:
    """The largest size of a dimension of tensors: as many numbers may be added up."""
    leaves = torch_pytree.tree_leaves(arguments)
    sizes = [size for leaf in leaves if is_fraction(leaf) for size in leaf.shape]
    return max(sizes, default=1)
