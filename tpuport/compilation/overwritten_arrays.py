"""Arrays that a program overwrites are donated to it, so that it writes into their memory instead of a copy.

What a function overwrites is known once it has been traced: caches that are arguments, buffers of models, and tensors
of its state. That trace ends with `OverwritesKnown`, and the next one has these arrays in a donated argument of the
program. An array that anything else refers to, so that it could be read after the call, is copied before it is donated:
the program stays the same, and the other sees what it had.
"""

import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tpuport.compilation.call_results import OutputAndWrites

# The number of a tensor of the program, or the number of a model and the name of a weight.
Slot = int | tuple[int, str]


class OverwritesKnown(Exception):
    """No error: it ends a trace that has shown which arrays a program overwrites.

    Attributes:
        slots: of these.
    """

    def __init__(self, slots: tuple[Slot, ...]) -> None:
        super().__init__("the arrays that a program overwrites are known now")
        self.slots = slots


def find_slots(
    result: Any, weights: Sequence[dict[str, Any]], tensors: Sequence[Any], first_of_state: int
) -> tuple[Slot, ...]:
    """Traced. The arrays that a function overwrites with arrays of the same form.

    Args:
        result: of the trace.
        weights, tensors: arguments of the program; the state's tensors are the last of these, from `first_of_state`.
    """
    if not isinstance(result, OutputAndWrites):
        return ()
    written: dict[Slot, Any] = {**result.arguments}
    written |= {first_of_state + number: array for number, array in result.state.tensors.items()}
    for model, arrays in enumerate(result.weights):
        written |= {(model, name): array for name, array in arrays.items()}
    return tuple(
        slot for slot, array in written.items() if _form(array) == _form(_array_at(slot, weights, tensors))
    )


def _array_at(slot: Slot, weights: Sequence[dict[str, Any]], tensors: Sequence[Any]) -> Any:
    if isinstance(slot, int):
        return tensors[slot]
    model, name = slot
    return weights[model].get(name)


def _form(array: Any) -> Hashable:
    return getattr(array, "shape", None), getattr(array, "dtype", None)


def split(
    weights: Sequence[dict[str, Any]], tensors: Sequence[Any], slots: Iterable[Slot]
) -> tuple[list[dict[str, Any]], list[Any], list[Any]]:
    """The weights and tensors that are not overwritten, and the arrays that are."""
    overwritten = [_array_at(slot, weights, tensors) for slot in slots]
    gone = set(slots)
    other_weights = [
        {name: array for name, array in arrays.items() if (model, name) not in gone}
        for model, arrays in enumerate(weights)
    ]
    # An empty entry keeps the numbers of the others, and is nothing for jax.
    others = [None if number in gone else tensor for number, tensor in enumerate(tensors)]
    return other_weights, others, overwritten


def join(
    weights: Sequence[dict[str, Any]],
    tensors: Sequence[Any],
    overwritten: Sequence[Any],
    slots: Iterable[Slot],
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Weights and tensors as before `split`."""
    weights, tensors = list(map(dict, weights)), list(tensors)
    for slot, array in zip(slots, overwritten, strict=True):
        if isinstance(slot, int):
            tensors[slot] = array
        else:
            model, name = slot
            weights[model][name] = array
    return weights, tensors


def own_arrays(arrays: Sequence[jax.Array], containers: Iterable[Iterable[Any]]) -> list[jax.Array]:
    """The arrays, each a copy if anything refers to it beside one tensor and the containers.

    Args:
        containers: lists of this call that have the arrays, each of them with all its elements.
    """
    expected = Counter(id(element) for container in containers for element in container)
    return [
        # What is only described, to be lowered, has no memory.
        jnp.copy(array)
        if isinstance(array, jax.Array) and _count_references(arrays, number) > expected[id(array)] + _OTHERS
        else array
        for number, array in enumerate(arrays)
    ]


def _count_references(arrays: Sequence[Any], number: int) -> int:
    return sys.getrefcount(arrays[number])


def _count_others() -> int:
    """How many references there are to an array that is in one list and belongs to one tensor, beside that list."""
    # Not an array: that would start the devices at import, and nobody could join processes after it.
    array = object()
    arrays = [array]
    # `array` stands for the tensor's reference; a loop has one of its own.
    return next(_count_references(arrays, number) for number, array in enumerate(arrays)) - 1


_OTHERS = _count_others()
