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

from tpuport.compilation.call_arguments import shapes_key
from tpuport.compilation.call_results import OutputAndWrites
from tpuport.compilation.prepared_call import PreparedCall, ProgramArguments
from tpuport.compilation.value_numbers import ValueNumbers
from tpuport.jaxprs import keep_used_arguments

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
        arguments: without their arrays, which would live as long as this.
        given: its arrays by slot, in the order of its jaxpr.
        shardings: of these.
        signature: as in `Program`, and `surroundings`.
        results: the latest arrays that it returned, by number.
    """

    traced: Any
    arguments: ProgramArguments
    given: dict[Slot, Reference]
    shardings: tuple[Any, ...]
    signature: Hashable
    surroundings: Hashable
    results: dict[int, Reference]

    def note_results(self, result: Any) -> None:
        """Remember what the program has returned now."""
        self.results.clear()
        self.results.update(enumerate(map(weakref.ref, jax.tree.leaves(result))))


class ServedState(NamedTuple):
    """How a program serves another state.

    Attributes:
        run: of the program.
        sources: for each of its arguments the number of one of the state's own trace,
            or zeros for what it does not read.
        results: for each result of that trace ("result", number of the program's) or
            ("argument", number of one of its own).
        structure: of that trace's results.
        same: arguments of that trace that have to be these arrays.
    """

    run: Run
    sources: tuple[int | jax.Array, ...]
    results: tuple[tuple[str, int], ...]
    structure: Any
    same: tuple[tuple[int, Reference], ...]

    def arguments(
        self, own: ProgramArguments, surroundings: Hashable
    ) -> ProgramArguments | None:
        """The program's arguments for a call in this state; None if the state is no
        longer the one that the program has left.

        Args:
            own: the arguments of the call.
        """
        arrays = jax.tree.leaves(own[:-1])
        if surroundings != self.run.surroundings or any(
            arrays[number] is not reference() for number, reference in self.same
        ):
            return None
        given = [
            arrays[source] if isinstance(source, int) else source
            for source in self.sources
        ]
        if tuple(array.sharding for array in given) != self.run.shardings:
            return None
        form = self.run.arguments
        filled = jax.tree.unflatten(jax.tree.structure(form[:-1]), given)
        return _made_of(filled, form)

    def result(self, result: Any, own: ProgramArguments) -> Any:
        """What the state's own program would have returned."""
        self.run.note_results(result)
        arrays, given = jax.tree.leaves(result), jax.tree.leaves(own[:-1])
        leaves = [
            arrays[number] if kind == "result" else given[number]
            for kind, number in self.results
        ]
        return jax.tree.unflatten(self.structure, leaves)


class ServedStates:
    """The programs of one function that may serve further states."""

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
        served = None if run is None else _find_served(run, traced, arguments, call)
        self._served[key] = served
        if served is None:
            self._traced = {key: traced}
        return served is not None

    def served(self, key: Hashable) -> ServedState | None:
        """How another program serves this state."""
        return self._served.get(key)

    def note(
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
        if run is not None and run.signature == key:
            run.note_results(result)
            return
        if traced is None:
            return
        slots, arrays = _slots(arguments, call), jax.tree.leaves(arguments[:-1])
        form = jax.tree.map(lambda _: 0, arguments[:-1])
        run = Run(
            traced,
            _made_of(form, arguments),
            dict(zip(slots, map(weakref.ref, arrays), strict=True)),
            tuple(array.sharding for array in arrays),
            key,
            surroundings,
            {},
        )
        run.note_results(result)
        self._runs[call_key] = run
        if len(self._runs) > _MOST_RUNS:
            self._runs.popitem(last=False)


def _made_of(parts: Any, arguments: ProgramArguments) -> ProgramArguments:
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
    tensors = len(call.divided.arrays)
    paths = [path for path, _ in call.state.located_tensors()]
    kept = [
        ("cache", (number, index))
        for number, size in static.read_caches
        for index in range(size)
    ]
    places: list[Slot] = [("argument", number) for number in range(tensors)]
    places += [("state", path) for path in paths]
    places += kept

    def slot_of(path: tuple[Any, ...]) -> Slot:
        steps: list[Any] = [
            getattr(key, "idx", getattr(key, "key", None)) for key in path
        ]
        part, *inner = steps
        match part:
            case 0:
                return "weight", tuple(inner)
            case 1:
                return places[inner[0]]
            case 2:
                slot = static.overwritten[inner[0]]
                return ("weight", slot) if isinstance(slot, tuple) else places[slot]
        return "cache", tuple(inner)

    pairs, _ = jax.tree_util.tree_flatten_with_path(tuple(arguments[:-1]))
    return [slot_of(path) for path, _ in pairs]


def _find_served(
    run: Run, traced: Any, arguments: ProgramArguments, call: PreparedCall
) -> ServedState | None:
    """How a program that has run serves the state of a call; None if it does not.

    Args:
        traced: the state's own program.
        arguments: of the call.
    """
    slots, arrays = _slots(arguments, call), jax.tree.leaves(arguments[:-1])
    programs = (run.traced.jaxpr, traced.jaxpr)
    # Random numbers would be drawn for another program.
    if any(
        len(program.jaxpr.invars) != len(names)
        for program, names in zip(programs, (run.given, slots), strict=True)
    ):
        return None
    sources = _find_sources(run, slots, arrays)
    if sources is None or not _donates_less(run, arguments, slots):
        return None
    numbers = ValueNumbers()
    inputs = {slot: numbers.number_of(slot) for slot in (*run.given, *slots)}
    made, effects = numbers.outputs(programs[0], [inputs[slot] for slot in run.given])
    # What the state has from the last call, if the program would make the same again.
    memos: dict[int, int] = {}
    same: dict[int, Reference] = {}
    for number in _read_arguments(programs[1]):
        slot = slots[number]
        if slot in run.given:
            continue
        value = _number_left(run, arrays[number], made)
        needed = (
            None
            if value is None
            else _needed_arrays(
                run,
                numbers.reachable([value]),
                inputs,
                dict(zip(slots, arrays, strict=True)),
            )
        )
        if value is None or needed is None:
            return None
        memos[number] = value
        same[number] = weakref.ref(arrays[number])
        same |= {
            slots.index(name): weakref.ref(array) for name, array in needed.items()
        }
    given = [memos.get(number, inputs[slot]) for number, slot in enumerate(slots)]
    own, own_effects = numbers.outputs(programs[1], given)
    places = {number: ("argument", index) for index, number in enumerate(given)}
    places |= {number: ("result", index) for index, number in enumerate(made)}
    places |= {value: ("argument", number) for number, value in memos.items()}
    if own_effects != effects or not places.keys() >= set(own):
        return None
    return ServedState(
        run, sources, tuple(places[number] for number in own),
        jax.tree.structure(traced.out_info), tuple(same.items()),
    )  # fmt: skip


def _find_sources(
    run: Run, slots: Sequence[Slot], arrays: Sequence[Any]
) -> tuple[int | jax.Array, ...] | None:
    """Where the arguments of a program are among those of a call; None if one is not
    there.
    """
    places = {slot: number for number, slot in enumerate(slots)}
    read = set(_read_arguments(run.traced.jaxpr))
    sources: list[int | jax.Array] = []
    for number, slot in enumerate(run.given):
        variable = run.traced.jaxpr.jaxpr.invars[number]
        form = (variable.aval.shape, variable.aval.dtype)
        place = places.get(slot)
        if place is not None and (arrays[place].shape, arrays[place].dtype) == form:
            sources.append(place)
        elif number not in read:
            sources.append(jnp.zeros(*form, device=run.shardings[number]))
        else:
            return None
    return tuple(sources)


def _donates_less(run: Run, arguments: ProgramArguments, slots: Sequence[Slot]) -> bool:
    """Whether whatever a program overwrites may be overwritten in a call."""
    first, count = (
        len(jax.tree.leaves(part[:2])) for part in (run.arguments, arguments)
    )
    return set(list(run.given)[first:]) <= set(slots[count:])


def _read_arguments(program: Any) -> tuple[int, ...]:
    used, _ = keep_used_arguments(program)
    return used


def _number_left(run: Run, array: Any, made: Sequence[int]) -> int | None:
    """The number of the result of the last run that this array is."""
    return next(
        (made[index] for index, result in run.results.items() if result() is array),
        None,
    )


def _needed_arrays(
    run: Run, reachable: set[int], inputs: dict[Slot, int], arrays: dict[Slot, Any]
) -> dict[Slot, Any] | None:
    """The arrays that a value is computed of, by slot; None if these are not those of
    the last run, or may be others in the next.
    """
    needed = {slot for slot in run.given if inputs[slot] in reachable}
    is_fixed = all(
        slot[0] in ("weight", "state") and run.given[slot]() is arrays.get(slot)
        for slot in needed
    )
    return {slot: arrays[slot] for slot in needed} if is_fixed else None
