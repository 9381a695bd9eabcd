"""A program that serves the state which its own call has left behind.

The first call of a model often fills an attribute: a table moved to the device, a mask
made for this length, the features of the last call. Its state is another one then, and
the code is traced anew. But if that trace computes what the program of the first call
computes, with the table that is there now in place of the one that the program makes,
that program runs again, and nothing is compiled.

Both traces are compared by value numbers. What the new state adds is either read by
nothing, or a result of the last call which depends on no argument but weights that are
still the same arrays; the program then makes the very same values.
"""

import collections
import weakref
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tpuport.compat.jaxprs import keep_used_arguments
from tpuport.compilation.arguments.call_arguments import shapes_key
from tpuport.compilation.function_programs import CallProgram
from tpuport.compilation.prepared_call import PreparedCall, ProgramArguments
from tpuport.compilation.programs.program_settings import current_surroundings
from tpuport.compilation.programs.traced_once import Retraced
from tpuport.compilation.programs.value_numbers import ValueNumbers
from tpuport.compilation.results.call_results import OutputAndWrites

# Programs whose traces are kept, of those that leave something in their state.
_MOST_RUNS = 8
# What an argument of a program is, and where: "weight", "argument", "state" (by its
# path), "cache" or "key" (of random numbers).
Slot = tuple[str, Hashable]
Reference = weakref.ref[jax.Array]


class Run(NamedTuple):
    """A program that has run, and has left something in the state.

    Attributes:
        program: the program.
        key: of it.
        inputs: its latest arrays by slot, in the order of its inputs.
        shardings: of these.
        results: the arrays that it returned then, by number.
    """

    program: CallProgram
    key: Hashable
    inputs: dict[Slot, Reference]
    shardings: tuple[Any, ...]
    results: dict[int, Reference]

    def note(self, arrays: Sequence[Any], results: Sequence[Any]) -> bool:
        """Remember what the program was given, and has returned, now. False if two of
        its inputs have one slot.
        """
        if len(arrays) != len(self.inputs):
            return False
        # Both: a result says nothing of other inputs than those that it was made of.
        self.inputs.update(zip(self.inputs, map(weakref.ref, arrays), strict=True))
        self.results.clear()
        self.results.update(enumerate(map(weakref.ref, results)))
        return True


class ServedState(NamedTuple):
    """How a program serves another state.

    Attributes:
        run: of the program.
        sources: for each of its inputs the number of an input of the state's own
            program, or zeros for what it does not read.
        results: for each result of that program ("result", number of this one's) or
            ("argument", number of an input of that program).
        same: inputs of that program that have to be these arrays.
    """

    run: Run
    sources: tuple[int | jax.Array, ...]
    results: tuple[tuple[str, int], ...]
    same: tuple[tuple[int, Reference], ...]

    def inputs(self, arrays: Sequence[Any]) -> list[Any] | None:
        """The program's inputs for a call in this state; None if the state is no longer
        the one that the program has left.
        """
        if any(arrays[number] is not reference() for number, reference in self.same):
            return None
        inputs = [
            arrays[source] if isinstance(source, int) else source
            for source in self.sources
        ]
        if tuple(array.sharding for array in inputs) != self.run.shardings:
            return None
        return inputs

    def results_of(self, results: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        """What the state's own program would have returned."""
        return [
            results[number] if kind == "result" else arrays[number]
            for kind, number in self.results
        ]


class ServedStates:
    """The programs of a function that may serve further states."""

    def __init__(self) -> None:
        self._runs: collections.OrderedDict[Hashable, Run] = collections.OrderedDict()
        # By the key of each state's own program; None where no other serves it.
        self._served: dict[Hashable, ServedState | None] = {}

    def look(
        self,
        key: Hashable,
        program: CallProgram,
        arguments: ProgramArguments,
        call: PreparedCall,
    ) -> bool:
        """Look for a program that serves the state of a call, whose own has been
        captured.
        """
        run = self._runs.get(_call_key(key, arguments, call))
        served = None
        # A backward pass reads what its own forward pass has kept.
        if run is not None and arguments.static.recorded is None:
            served = _Comparison(run, program, arguments, call).served()
        self._served[key] = served
        return served is not None

    def run(
        self,
        program: CallProgram,
        key: Hashable,
        arguments: ProgramArguments,
        call: PreparedCall,
    ) -> list[Any]:
        """The results of a state's own program, or of one that serves the state."""
        arrays = program.arrays(arguments, call)
        served = self._served.get(key)
        if served is not None:
            inputs = served.inputs(arrays)
            try:
                if inputs is not None:
                    results = served.run.program.flat(inputs)
                    served.run.note(inputs, results)
                    return served.results_of(results, arrays)
            except Retraced:
                # jax has forgotten the program: the state's own serves it from now on.
                self._served[key] = None
                self._runs.clear()
        results = program.flat(arrays)
        result = program.flat.captured.results
        layout = result.layout if isinstance(result, OutputAndWrites) else None
        if layout is not None and layout.changes_state:
            self._note(key, program, arrays, results, arguments, call)
        return results

    def _note(
        self,
        key: Hashable,
        program: CallProgram,
        arrays: Sequence[Any],
        results: Sequence[Any],
        arguments: ProgramArguments,
        call: PreparedCall,
    ) -> None:
        """Note that a program has run which leaves something in the state."""
        call_key = _call_key(key, arguments, call)
        run = self._runs.get(call_key)
        if run is None or run.program is not program:
            slots = _slots(program, call)
            inputs = dict(zip(slots, map(weakref.ref, arrays), strict=True))
            shardings = tuple(array.sharding for array in arrays)
            run = Run(program, key, inputs, shardings, {})
            self._runs[call_key] = run
        if not run.note(arrays, results):
            del self._runs[call_key]
        if len(self._runs) > _MOST_RUNS:
            self._runs.popitem(last=False)


def _call_key(
    key: Hashable, arguments: ProgramArguments, call: PreparedCall
) -> Hashable:
    """Equal for calls that differ in nothing but the state of the function."""
    static = arguments.static
    return (
        static.layout, static.models, static.attention, static.donated, static.decided,
        shapes_key(call.divided.arrays), tuple(map(shapes_key, call.divided.donated)), current_surroundings(),
    )  # fmt: skip


def _slots(program: CallProgram, call: PreparedCall) -> list[Slot]:
    """What each input of a program is, in order."""
    tensors: list[Slot] = [
        ("argument", number) for number in range(len(call.divided.arrays))
    ]
    tensors += [("state", path) for path, _ in call.state.located_tensors()]
    tensors += [("numbers", ())] if call.numbers else []
    return program.inputs.labels(tensors)


class _Comparison:
    """A program that has run, beside the one of a call in the state after it.

    Args:
        run: of the program.
        program: the state's own.
        arguments: of the call.
    """

    def __init__(
        self,
        run: Run,
        program: CallProgram,
        arguments: ProgramArguments,
        call: PreparedCall,
    ) -> None:
        self._run = run
        self._program = program
        self._first, self._second = (
            each.flat.captured.program for each in (run.program, program)
        )
        self._slots = _slots(program, call)
        self._arrays = program.inputs.flatten(*arguments[:-1])
        self._numbers = ValueNumbers()
        self._inputs = {
            slot: self._numbers.number_of(slot) for slot in (*run.inputs, *self._slots)
        }

    def served(self) -> ServedState | None:
        """How the program serves the state; None if it does not."""
        if not self._are_comparable():
            return None
        sources = self._find_sources()
        if sources is None:
            return None
        run_inputs = [self._inputs[slot] for slot in self._run.inputs]
        run_results, run_effects = self._numbers.outputs(self._first, run_inputs)
        memos = self._find_memos(run_results)
        if memos is None:
            return None
        inputs = [
            memos.get(number, self._inputs[slot])
            for number, slot in enumerate(self._slots)
        ]
        results, effects = self._numbers.outputs(self._second, inputs)
        places = {number: ("argument", index) for index, number in enumerate(inputs)}
        places |= {
            number: ("result", index) for index, number in enumerate(run_results)
        }
        # The state has them already.
        places |= {value: ("argument", index) for index, value in memos.items()}
        if effects != run_effects or not places.keys() >= set(results):
            return None
        return ServedState(
            self._run,
            sources,
            tuple(places[number] for number in results),
            self._find_same(memos),
        )

    def _are_comparable(self) -> bool:
        """Whether each argument of both programs has a slot of its own, and none that
        the first overwrites has to stay.
        """
        # Random numbers would be drawn for another program.
        programs = (self._run.program, self._program)
        if any(program.flat.draws for program in programs):
            return False
        counts = [program.flat.count for program in programs]
        if counts != [len(self._run.inputs), len(set(self._slots))]:
            return False
        of_run, of_state = (
            {slots[number] for number in program.flat.donated}
            for slots, program in zip(
                (list(self._run.inputs), self._slots), programs, strict=True
            )
        )
        return of_run <= of_state

    def _find_sources(self) -> tuple[int | jax.Array, ...] | None:
        """Where the program's arguments are among those of the call; None if one that
        it reads is not there.
        """
        places = {slot: number for number, slot in enumerate(self._slots)}
        read = _read_arguments(self._first)
        sources: list[int | jax.Array] = []
        for number, slot in enumerate(self._run.inputs):
            aval = self._first.in_avals[number]
            form = (aval.shape, aval.dtype)
            place = places.get(slot)
            array = None if place is None else self._arrays[place]
            if array is not None and (array.shape, array.dtype) == form:
                sources.append(places[slot])
            elif number not in read:
                sources.append(jnp.zeros(*form, device=self._run.shardings[number]))
            else:
                return None
        return tuple(sources)

    def _find_memos(self, run_results: list[int]) -> dict[int, int] | None:
        """By its number, what each argument that the program lacks is among the values
        of the program: a result of the last run which it would make again. None if one
        that is read is no such result.
        """
        memos = {}
        for number in _read_arguments(self._second):
            if self._slots[number] in self._run.inputs:
                continue
            array = self._arrays[number]
            values = (
                run_results[index]
                for index, result in self._run.results.items()
                if result() is array
            )
            value = next(values, None)
            if value is None or not all(map(self._is_fixed, self._needs(value))):
                return None
            memos[number] = value
        return memos

    def _needs(self, value: int) -> list[Slot]:
        """The program's arguments that a value is computed of."""
        reachable = self._numbers.reachable([value])
        return [slot for slot in self._run.inputs if self._inputs[slot] in reachable]

    def _is_fixed(self, slot: Slot) -> bool:
        """Whether an argument is the array that it was in the last run, and will be so
        until somebody assigns another.
        """
        if slot[0] not in ("weight", "state") or slot not in self._slots:
            return False
        array = self._arrays[self._slots.index(slot)]
        return self._run.inputs[slot]() is array

    def _find_same(self, memos: dict[int, int]) -> tuple[tuple[int, Reference], ...]:
        """The memos, and what they are computed of."""
        numbers = set(memos)
        for value in memos.values():
            numbers |= set(map(self._slots.index, self._needs(value)))
        return tuple(
            (number, weakref.ref(self._arrays[number])) for number in sorted(numbers)
        )


def _read_arguments(program: Any) -> tuple[int, ...]:
    """The numbers of the arguments that a result or an effect depends on."""
    used, _ = keep_used_arguments(program)
    return used
