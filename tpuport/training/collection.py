"""Operators that are collected and run as one program, which serves each later
collection of the same form.

The code of an optimizer runs on the host in every step, as in torch: its decisions, its
counters and its learning rate are Python's. What it does to tensors on the device is
collected, and the numbers in it are arguments of the program, so that another learning
rate compiles nothing.
"""

import sys
from typing import Any, Final

import jax
import jax.numpy as jnp
import torch

from tpuport import compat
from tpuport.compat import aliasing
from tpuport.compat.declarations import Answer, Call
from tpuport.internals.torch_internals import OpOverload, schema_of
from tpuport.internals.torchax_internals import ARRAY
from tpuport.training import pending_tensors
from tpuport.training.collected_steps import (
    NEEDS_NUMBERS,
    Form,
    Outcome,
    Step,
    StepKey,
    numbers_in,
    tensors_in,
    try_step,
)
from tpuport.training.update_programs import ProgramKey, UpdateProgram

# References to a tensor that only a collection has: its list, and the question.
_OWN_REFERENCES: Final = 2


class NotCollected(Exception):
    """An operator has arguments that are not collected."""


class Programs:
    """What earlier collections have taught.

    Attributes:
        outcomes: of steps.
        programs: of collections.
    """

    def __init__(self) -> None:
        self.outcomes: dict[StepKey, Outcome] = {}
        self.programs: dict[ProgramKey, UpdateProgram] = {}


class Collection:
    """Collects operators of one thread.

    Args:
        programs: of earlier collections.
    """

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._clear()

    def _clear(self) -> None:
        self._steps: list[Step] = []
        self._floats: list[float] = []
        # By number: the tensors, and the arrays that they had when they were first met;
        # None for those that a step makes.
        self._tensors: list[Any] = []
        self._arrays: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._written: dict[int, None] = {}

    def collect(self, call: Call) -> Answer | None:
        """As of `deferral.Collector`."""
        if not _may_be_collected(call.function) or not tensors_in(
            (call.args, tuple(call.kwargs.values()))
        ):
            return None
        outcome = self._note(call, lifts=True)
        if outcome is NEEDS_NUMBERS:
            outcome = self._note(call, lifts=False)
        if outcome is None:
            return None
        for number in outcome.written:
            self._written[number] = None
            pending_tensors.await_array(self._tensors[number], self.run)
        return Answer(self._results(outcome.results))

    def _note(self, call: Call, *, lifts: bool) -> Outcome | None:
        """Add a step, unless it needs its numbers, or arguments of it are of another
        kind.

        Args:
            lifts: whether its numbers are to be arguments of the program.
        """
        count = len(self._floats)
        try:
            args = tuple(self._described(value, lifts=lifts) for value in call.args)
            kwargs = tuple(
                (name, self._described(value, lifts=lifts))
                for name, value in call.kwargs.items()
            )
        except NotCollected:
            del self._floats[count:]
            return None
        step = Step(call.function, args, kwargs)
        tensors = [self._tensors[number] for number in numbers_in((args, kwargs))]
        key = StepKey.of(step, tensors)
        if key not in self._programs.outcomes:
            self._programs.outcomes[key] = try_step(step, self._tensors, self._floats)
        outcome = self._programs.outcomes[key]
        if outcome is NEEDS_NUMBERS:
            del self._floats[count:]
        else:
            self._steps.append(step)
        return outcome

    def _described(self, value: Any, *, lifts: bool) -> Any:
        """An argument as it is in a step."""
        if compat.is_ported(value):
            # A step knows tensors by themselves, and not what else a write reaches.
            if aliasing.may_share_memory(value):
                raise NotCollected
            return Step.Tensor(self._number_of(value))
        if type(value) is float and lifts:
            self._floats.append(value)
            return Step.Float(len(self._floats) - 1)
        if isinstance(value, torch.Tensor):
            # torch takes a tensor of the host without dimensions for a number.
            if value.ndim or not value.is_floating_point() or value.is_meta:
                raise NotCollected
            return self._described(value.item(), lifts=lifts)
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return tuple(self._described(part, lifts=lifts) for part in value)
        return value

    def _number_of(self, tensor: Any) -> int:
        number = self._numbers.get(id(tensor))
        array = vars(tensor).get(ARRAY)
        # An operator that was not collected may have written to it since.
        if number is None or (array is not None and array is not self._arrays[number]):
            number = self._numbers[id(tensor)] = len(self._tensors)
            self._tensors.append(tensor)
            self._arrays.append(array)
        return number

    def _results(self, results: Any) -> Any:
        """What an operator returns: its arguments, and new tensors."""
        match results:
            case int():
                return self._tensors[results]
            case Form():
                form: Any = results.aval
                tensor: Any = compat.wrap(form, results.dtype)
                pending_tensors.await_array(tensor, self.run)
                self._number_of(tensor)
                return tensor
            case list():
                return [self._results(part) for part in results]
        return results

    def run(self) -> None:
        """Run what has been collected."""
        steps, floats, tensors, arrays = (
            self._steps, self._floats, self._tensors, self._arrays,
        )  # fmt: skip
        given = [number for number, array in enumerate(arrays) if array is not None]
        written = [number for number in self._written if arrays[number] is not None]
        self._numbers.clear()
        # Others are values on the way.
        kept = [
            number
            for number, array in enumerate(arrays)
            if array is None and sys.getrefcount(tensors[number]) > _OWN_REFERENCES
        ]
        self._clear()
        if not steps:
            return
        key = ProgramKey.of(steps, arrays, written, kept)
        program = self._programs.programs.get(key)
        try:
            if program is None:
                dtypes = [tensor.dtype for tensor in tensors]
                program = UpdateProgram(steps, dtypes, given, written, kept)
            results = program.run(_owned(arrays, written), floats)
        except BaseException:
            # As nothing has been computed: what was collected is lost.
            for number in written:
                pending_tensors.give_array(tensors[number], arrays[number])
            raise
        self._programs.programs[key] = program
        for number, array in zip((*written, *kept), results, strict=True):
            pending_tensors.give_array(tensors[number], array)
        for number in written:
            aliasing.propagate(tensors[number])


def _owned(arrays: list[Any], written: list[int]) -> list[Any]:
    """The arrays, each of those that the program overwrites a copy if anybody else has
    it.
    """
    owned = list(arrays)
    for number in written:
        # The two lists, and the question.
        if sys.getrefcount(owned[number]) > _ARRAY_REFERENCES:
            owned[number] = jnp.copy(owned[number])
        elif not owned[number].committed:
            # So that the next call finds the results of this one in the same place.
            owned[number] = jax.device_put(owned[number], owned[number].sharding)
    return owned


_ARRAY_REFERENCES: Final = 3


def _may_be_collected(operator: Any) -> bool:
    """Whether an operator gives tensors that are no views, and draws nothing."""
    if not isinstance(operator, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return False
    return all(
        "Tensor" in str(result.type)
        and (result.alias_info is None or result.alias_info.is_write)
        for result in schema_of(operator).returns
    )
