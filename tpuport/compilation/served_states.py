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
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tpuport.compat.jaxprs import keep_used_arguments
from tpuport.compilation.call_arguments import shapes_key
from tpuport.compilation.call_results import OutputAndWrites
from tpuport.compilation.compiled_program import Program, current_surroundings
from tpuport.compilation.prepared_call import PreparedCall, ProgramArguments
from tpuport.compilation.value_numbers import ValueNumbers

# Programs whose traces are kept, of those that leave something in their state.
_MOST_RUNS = 8
# What an argument of a program is, and where: "weight", "argument", "state" (by its
# path), "cache" or "key" (of random numbers).
Slot = tuple[str, Hashable]
Reference = weakref.ref[jax.Array]


class Run(NamedTuple):
    """A program that has run, and has left something in the state.

    Attributes:
        traced: as jax has traced it.
        form: its arguments without the arrays, which would live as long as this.
        inputs: its latest arrays by slot, in the order of its jaxpr.
        shardings: of these.
        signature: as in `Program`, and `surroundings`.
        results: the arrays that it returned then, by number.
    """

    traced: Any
    form: ProgramArguments
    inputs: dict[Slot, Reference]
    shardings: tuple[Any, ...]
    signature: Hashable
    surroundings: Hashable
    results: dict[int, Reference]

    def note(self, arguments: ProgramArguments, result: Any) -> bool:
        """Remember what the program was given, and has returned, now. False if the
        arguments have another structure (a weight has got a second name), or two of
        them one slot.
        """
        arrays, structure = jax.tree.flatten(arguments[:-1])
        same_structure = structure == jax.tree.structure(self.form[:-1])
        if not same_structure or len(arrays) != len(self.inputs):
            return False
        # Both: a result says nothing of other inputs than those that it was made of.
        self.inputs.update(zip(self.inputs, map(weakref.ref, arrays), strict=True))
        self.results.clear()
        self.results.update(enumerate(map(weakref.ref, jax.tree.leaves(result))))
        return True


class ServedState(NamedTuple):
    """How a program serves another state.

    Attributes:
        run: of the program.
        sources: for each of its arguments the number of an argument of the state's own
            trace, or zeros for what it does not read.
        results: for each result of that trace ("result", number of the program's) or
            ("argument", number of an argument of the trace).
        structure: of that trace's results.
        same: arguments of that trace that have to be these arrays.
    """

    run: Run
    sources: tuple[int | jax.Array, ...]
    results: tuple[tuple[str, int], ...]
    structure: Any
    same: tuple[tuple[int, Reference], ...]

    def arguments(
        self, call: ProgramArguments, surroundings: Hashable
    ) -> ProgramArguments | None:
        """The program's arguments for a call in this state; None if the state is no
        longer the one that the program has left.
        """
        arrays = jax.tree.leaves(call[:-1])
        if surroundings != self.run.surroundings or any(
            arrays[number] is not reference() for number, reference in self.same
        ):
            return None
        inputs = [
            arrays[source] if isinstance(source, int) else source
            for source in self.sources
        ]
        if tuple(array.sharding for array in inputs) != self.run.shardings:
            return None
        form = self.run.form
        parts = jax.tree.unflatten(jax.tree.structure(form[:-1]), inputs)
        return _with_parts(form, parts)

    def result(self, result: Any, call: ProgramArguments) -> Any:
        """What the state's own program would have returned."""
        results, inputs = jax.tree.leaves(result), jax.tree.leaves(call[:-1])
        leaves = [
            results[number] if kind == "result" else inputs[number]
            for kind, number in self.results
        ]
        return jax.tree.unflatten(self.structure, leaves)


class ServedStates:
    """The programs of a function that may serve further states."""

    def __init__(self) -> None:
        self._runs: collections.OrderedDict[Hashable, Run] = collections.OrderedDict()
        # By the key of each state's own program; None where no other serves it.
        self._served: dict[Hashable, ServedState | None] = {}
        self._traced: dict[Hashable, Any] = {}

    def look(
        self,
        key: Hashable,
        traced: Any,
        arguments: ProgramArguments,
        call: PreparedCall,
    ) -> bool:
        """Look for a program that serves the state of a call, whose own has been traced
        for the first time.
        """
        run = self._runs.get(_call_key(arguments, call))
        served = None
        if run is not None:
            served = _Comparison(run, traced, arguments, call).served()
        self._served[key] = served
        if served is None:
            self._traced = {key: traced}
        return served is not None

    def run(
        self,
        program: Program,
        key: Hashable,
        arguments: ProgramArguments,
        call: PreparedCall,
    ) -> Any:
        """The result of a state's own program, or of one that serves the state."""
        surroundings = current_surroundings()
        served = self._served.get(key)
        if served is not None:
            inputs = served.arguments(arguments, surroundings)
            if inputs is not None:
                result = program(*inputs, signature=served.run.signature)
                served.run.note(inputs, result)
                return served.result(result, arguments)
        result = program(*arguments, signature=key)
        self._note(key, arguments, call, surroundings, result)
        return result

    def _note(
        self,
        key: Hashable,
        arguments: ProgramArguments,
        call: PreparedCall,
        surroundings: Hashable,
        result: Any,
    ) -> None:
        """Note that a state's own program has run."""
        traced = self._traced.pop(key, None)
        if not isinstance(result, OutputAndWrites) or result.state_changes is None:
            return
        call_key = _call_key(arguments, call)
        run = self._runs.get(call_key)
        if run is None or run.signature != key:
            if traced is None:
                return
            run = _new_run(key, traced, arguments, call, surroundings)
            self._runs[call_key] = run
        if not run.note(arguments, result):
            del self._runs[call_key]
        if len(self._runs) > _MOST_RUNS:
            self._runs.popitem(last=False)


def _new_run(
    key: Hashable,
    traced: Any,
    arguments: ProgramArguments,
    call: PreparedCall,
    surroundings: Hashable,
) -> Run:
    slots, arrays = _slots(arguments, call), jax.tree.leaves(arguments[:-1])
    form = _with_parts(arguments, jax.tree.map(lambda _: 0, arguments[:-1]))
    inputs = dict(zip(slots, map(weakref.ref, arrays), strict=True))
    shardings = tuple(array.sharding for array in arrays)
    return Run(traced, form, inputs, shardings, key, surroundings, {})


def _with_parts(arguments: ProgramArguments, parts: Any) -> ProgramArguments:
    """The arguments with others in place of all that are arrays."""
    weights, tensors, overwritten, donated = parts
    return ProgramArguments(weights, tensors, overwritten, donated, arguments.static)


def _call_key(arguments: ProgramArguments, call: PreparedCall) -> Hashable:
    """Equal for calls that differ in nothing but the state of the function."""
    static = arguments.static
    return (
        static.layout, static.models, static.attention, static.donated, static.decided,
        shapes_key(call.divided.arrays), tuple(map(shapes_key, call.divided.donated)),
    )  # fmt: skip


def _slots(arguments: ProgramArguments, call: PreparedCall) -> list[Slot]:
    """What each array among the arguments is, in the order of the program's jaxpr."""
    static = arguments.static
    tensors: list[Slot] = [
        ("argument", number) for number in range(len(call.divided.arrays))
    ]
    tensors += [("state", path) for path, _ in call.state.located_tensors()]
    tensors += [("numbers", ())] if static.numbers else []
    tensors += [
        ("cache", (number, index))
        for number, size in static.read_caches
        for index in range(size)
    ]

    def slot_at(path: tuple[Any, ...]) -> Slot:
        steps: list[Any] = [
            getattr(key, "idx", getattr(key, "key", None)) for key in path
        ]
        part, *inner = steps
        match part:
            case 0:
                return "weight", tuple(inner)
            case 1:
                return tensors[inner[0]]
            case 2:
                slot = static.overwritten[inner[0]]
                return ("weight", slot) if isinstance(slot, tuple) else tensors[slot]
        return "cache", tuple(inner)

    pairs, _ = jax.tree_util.tree_flatten_with_path(tuple(arguments[:-1]))
    return [slot_at(path) for path, _ in pairs]


class _Comparison:
    """A program that has run, beside the trace of a call in the state after it.

    Args:
        run: of the program.
        traced: the state's own program.
        arguments: of the call.
    """

    def __init__(
        self, run: Run, traced: Any, arguments: ProgramArguments, call: PreparedCall
    ) -> None:
        self._run = run
        self._traced = traced
        self._arguments = arguments
        self._slots = _slots(arguments, call)
        self._arrays = jax.tree.leaves(arguments[:-1])
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
        run_results, run_effects = self._numbers.outputs(
            self._run.traced.jaxpr, run_inputs
        )
        memos = self._find_memos(run_results)
        if memos is None:
            return None
        inputs = [
            memos.get(number, self._inputs[slot])
            for number, slot in enumerate(self._slots)
        ]
        results, effects = self._numbers.outputs(self._traced.jaxpr, inputs)
        places = {number: ("argument", index) for index, number in enumerate(inputs)}
        places |= {
            number: ("result", index) for index, number in enumerate(run_results)
        }
        # The state has them already.
        places |= {value: ("argument", index) for index, value in memos.items()}
        if effects != run_effects or not places.keys() >= set(results):
            return None
        return ServedState(
            self._run, sources, tuple(places[number] for number in results),
            jax.tree.structure(self._traced.out_info), self._find_same(memos),
        )  # fmt: skip

    def _are_comparable(self) -> bool:
        """Whether each argument of both programs has a slot of its own, and none that
        the first overwrites has to stay.
        """
        # Random numbers are further arguments, and would be drawn for another program.
        counts = [
            len(traced.jaxpr.jaxpr.invars)
            for traced in (self._run.traced, self._traced)
        ]
        has_slots = counts == [len(self._run.inputs), len(set(self._slots))]
        first, first_of_run = (
            len(jax.tree.leaves(part[:2])) for part in (self._arguments, self._run.form)
        )
        overwritten = set(list(self._run.inputs)[first_of_run:])
        return has_slots and overwritten <= set(self._slots[first:])

    def _find_sources(self) -> tuple[int | jax.Array, ...] | None:
        """Where the program's arguments are among those of the call; None if one that
        it reads is not there.
        """
        places = {slot: number for number, slot in enumerate(self._slots)}
        program = self._run.traced.jaxpr
        read = _read_arguments(program)
        sources: list[int | jax.Array] = []
        for number, slot in enumerate(self._run.inputs):
            aval = program.jaxpr.invars[number].aval
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
        for number in _read_arguments(self._traced.jaxpr):
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
