"""The program of operators that were collected."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import torch

from tpuport import compat
from tpuport.compat import deferral
from tpuport.training.collected_steps import Step, tensors_in


class ProgramKey(NamedTuple):
    """What decides whether a program serves a collection."""

    steps: tuple[Hashable, ...]
    forms: tuple[Hashable, ...]
    results: tuple[int, ...]

    @classmethod
    def of(
        cls,
        steps: Sequence[Step],
        arrays: Sequence[Any],
        written: Sequence[int],
        kept: Sequence[int],
    ) -> "ProgramKey":
        """The key of a collection; arguments as of `UpdateProgram`."""
        forms = (
            array if array is None else (array.shape, array.dtype, array.sharding)
            for array in arrays
        )
        return cls(tuple(step.key for step in steps), tuple(forms), (*written, *kept))


class UpdateProgram:
    """Runs steps.

    Args:
        steps: in order.
        dtypes: of all tensors, by number.
        given: the numbers of those that there are before.
        written: of those that are overwritten.
        kept: of the new tensors that somebody has afterwards.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        dtypes: Sequence[torch.dtype],
        given: Sequence[int],
        written: Sequence[int],
        kept: Sequence[int],
    ) -> None:
        self._steps = tuple(steps)
        self._dtypes = tuple(dtypes)
        self._written = tuple(written)
        self._read = tuple(number for number in given if number not in set(written))
        self._made = [n for n in range(len(dtypes)) if n not in set(given)]
        self._results = (*written, *kept)
        self._jitted: Any = None
        self._traces = 0

    @property
    def compilations(self) -> int:
        """How many times it has been traced."""
        return self._traces

    def run(self, arrays: Sequence[Any], floats: Sequence[float]) -> list[Any]:
        """The new arrays of what is written, then those of what is kept.

        Args:
            arrays: by number.
            floats: by number.
        """
        overwritten = [arrays[number] for number in self._written]
        if self._jitted is None:
            # As sharded as they were: another sharding would compile again.
            shardings = [array.sharding for array in overwritten]
            kept = len(self._results) - len(self._written)
            self._jitted = jax.jit(
                self._update,
                donate_argnums=0,
                out_shardings=[*shardings, *[None] * kept],
            )
        read = [arrays[number] for number in self._read]
        return self._jitted(overwritten, read, list(floats))

    def _update(
        self, overwritten: list[Any], read: list[Any], floats: list[Any]
    ) -> list[Any]:
        """Traced."""
        self._traces += 1
        numbers = (*self._written, *self._read)
        tensors = {
            number: compat.wrap(array, self._dtypes[number])
            for number, array in zip(numbers, (*overwritten, *read), strict=True)
        }
        known = set(map(id, tensors.values()))
        made = iter(self._made)
        with compat.environment(), torch.no_grad(), deferral.deferring(None):
            for step in self._steps:
                for tensor in tensors_in(step.run(tensors, floats)):
                    if id(tensor) not in known:
                        known.add(id(tensor))
                        tensors[next(made)] = tensor
        return [compat.as_jax(tensors[number]) for number in self._results]
