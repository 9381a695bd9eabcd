"""Arrays that a program overwrites are donated to it, so that it writes into their
memory instead of a copy.

What a function overwrites is known once it has been captured: caches that are
arguments, buffers of models, and tensors of its state, written to in place or replaced
by others of the same form (`cache.k = torch.where(...)`); and arguments that the user
donates. An array that anything else refers to, so that it could be read after the call,
is copied before it is donated: the program stays the same, and the other sees what it
had.

A cache that a function reads and does not return is not donated: no result could have
its memory.
"""

import itertools
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from tpuport.compilation.results.call_results import OutputAndWrites
from tpuport.compilation.shared_tensors import Slot


class Overwrite(NamedTuple):
    """An array that a program overwrites.

    Attributes:
        slot: where it is.
        kind: a "written" tensor has the result afterwards. A "replaced" one leaves its
            place to another and keeps what it had, for whoever else has it. A "donated"
            one is the user's word that nobody has it.
    """

    slot: Slot
    kind: Literal["written", "replaced", "donated"]


def find_read_caches(result: Any, caches: Sequence[Sequence[Any]]) -> tuple[int, ...]:
    """The numbers of caches none of whose arrays has the form of a result."""
    forms = set(map(_form, jax.tree.leaves(result)))
    return tuple(
        number
        for number, arrays in enumerate(caches)
        if arrays and forms.isdisjoint(map(_form, arrays))
    )


def find_overwrites(
    result: Any,
    arrays: Mapping[Slot, Any],
    first_of_state: int,
    caches: Iterable[Any],
    donated: Iterable[int],
) -> tuple[Overwrite, ...]:
    """The arrays whose memory results of the same form may take over, in the order of
    these results.

    jax gives donated arrays to results of their form in order, so that each gets its
    own.

    Args:
        result: of the captured function, by the forms of its arrays.
        arrays: the tensors and weights; tensors of the state are numbered from
            `first_of_state`.
        caches: the arrays in caches, which are donated beside these.
        donated: numbers of the tensors that the user donates.
    """
    new: dict[Overwrite, Any] = {}
    if isinstance(result, OutputAndWrites):
        new = _overwriting_results(result, first_of_state)
    new = {
        overwrite: array
        for overwrite, array in new.items()
        if overwrite.slot in arrays and _form(array) == _form(arrays[overwrite.slot])
    }
    results = jax.tree.leaves(result)
    positions = {id(array): position for position, array in enumerate(results)}
    overwrites = sorted(new, key=lambda overwrite: positions[id(new[overwrite])])
    known = {overwrite.slot: overwrite for overwrite in overwrites}
    free = Counter(map(_form, results))
    free.subtract(map(_form, [*new.values(), *caches]))
    for number in donated:
        if number in known:
            overwrites[overwrites.index(known[number])] = Overwrite(number, "donated")
        elif free[_form(arrays[number])] > 0:
            free[_form(arrays[number])] -= 1
            overwrites.append(Overwrite(number, "donated"))
    return tuple(overwrites)


def _overwriting_results(
    result: OutputAndWrites, first_of_state: int
) -> dict[Overwrite, Any]:
    """The results that belong where a tensor was."""
    written: dict[Slot, Any] = {**result.arguments}
    written |= {
        first_of_state + number: array for number, array in result.state.items()
    }
    for model, arrays in enumerate(result.weights):
        written |= {(model, name): array for name, array in arrays.items()}
    replaced: dict[Slot, Any] = {}
    if result.layout is not None:
        arrays = jax.tree.leaves(result.output)
        replaced = {slot: arrays[index] for slot, index in result.layout.replaced}
    new = {Overwrite(slot, "written"): array for slot, array in written.items()}
    # What was written to before it was replaced gives its memory to what was written.
    return new | {
        Overwrite(slot, "replaced"): replaced[slot]
        for slot in replaced.keys() - written.keys()
    }


def _form(array: Any) -> Hashable:
    return getattr(array, "shape", None), getattr(array, "dtype", None)


def own_arrays(
    arrays: Sequence[jax.Array],
    containers: Iterable[Iterable[Any]],
    to_copy: Iterable[int],
    free: Iterable[int],
) -> list[jax.Array]:
    """The arrays, each a copy if anything refers to it beside one tensor and the
    containers.

    Args:
        containers: lists of this call that have the arrays, each of them with all its
            elements.
        to_copy, free: numbers of the arrays that are copied in any case, and in none.
    """
    expected = Counter(map(id, itertools.chain.from_iterable(containers)))
    to_copy, free = set(to_copy), set(free)
    owned = []
    for number, array in enumerate(arrays):
        # The loop's variable is counted, as in `_count_others`.
        is_shared = _count_references(arrays, number) > expected[id(array)] + _OTHERS
        # What is only described, to be lowered, has no memory.
        if (
            isinstance(array, jax.Array)
            and number not in free
            and (is_shared or number in to_copy)
        ):
            array = jnp.copy(array)
        owned.append(array)
    return owned


def is_held_elsewhere(tensors: Sequence[Any], number: int, expected: int) -> bool:
    """Whether more refers to a tensor than this list and as many others as expected."""
    return _count_references(tensors, number) > 1 + expected + _OWN_REFERENCES


def _count_references(values: Sequence[Any], number: int) -> int:
    return sys.getrefcount(values[number])


def _count_own() -> int:
    """How many references `_count_references` itself makes to a value that is only in
    one list.
    """
    return _count_references([object()], 0) - 1


def _count_others() -> int:
    """How many references there are to an array that is in one list and belongs to one
    tensor, beside that list.
    """
    # Not an array: that would start the devices at import, and nobody could join
    # processes after it.
    array = object()
    arrays = [array]
    # `array` stands for the tensor's reference; a loop has one of its own.
    return (
        next(_count_references(arrays, number) for number, array in enumerate(arrays))
        - 1
    )


_OTHERS = _count_others()
_OWN_REFERENCES = _count_own()
