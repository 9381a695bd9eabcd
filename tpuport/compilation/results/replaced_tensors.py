"""Which tensors a function has replaced by others: the program may write these into
their memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tpuport.compilation.arguments.call_layout import Rebuilt
from tpuport.compilation.results.state_writes import StateTrace
from tpuport.compilation.shared_tensors import Slot, WeightSlot
from tpuport.objects import object_graph


def replaced_in_arguments(
    rebuilt: Rebuilt,
    changed: Sequence[int],
    leaves: Sequence[Any],
    results: Mapping[int, int],
) -> dict[Slot, int]:
    """Traced. Tensors of the arguments that only changed objects had, and no longer
    have.

    Args:
        leaves: all that leaves the program.
        results: the numbers of the arrays of new tensors, by the ids of these.

    Returns:
        By the number of the tensor, the number of the array that has its place.
    """
    numbers = {
        id(rebuilt.leaves[leaf]): number
        for number, leaf in enumerate(rebuilt.tensor_leaves)
    }
    replaced: dict[Slot, int] = {}
    for number in changed:
        before = rebuilt.states[number]
        after = object_graph.read_state(rebuilt.objects[number])
        for old, new in object_graph.matching_contents(before, after):
            is_tensor = id(old) in numbers and id(old) not in rebuilt.replaced
            if is_tensor and id(new) in results:
                replaced[numbers[id(old)]] = results[id(new)]
    if not replaced:
        return {}
    # Whoever has an argument by itself, or an object that stays, has the tensor after
    # the call.
    remaining = [*rebuilt.args, *rebuilt.kwargs.values(), *leaves]
    for number, state in rebuilt.states.items():
        remaining += [] if number in changed else state.contents()
    in_use = set(map(id, remaining))
    return {
        tensor: array
        for tensor, array in replaced.items()
        if id(rebuilt.leaves[rebuilt.tensor_leaves[tensor]]) not in in_use  # type: ignore[call-overload]
    }


def replaced_in_state(
    trace: StateTrace,
    pairs: Sequence[tuple[Any, Any]],
    leaves: Sequence[Any],
    results: Mapping[int, int],
) -> dict[Slot, int]:
    """Traced. As `replaced_in_arguments`, of tensors of the state, by their numbers
    there, and of weights.

    Args:
        pairs: what was in each place, and what is there now.
    """
    remaining = set(map(id, leaves))
    replaced: dict[Slot, int] = {}
    for old, new in pairs:
        index = results.get(id(new))
        if index is None or index in replaced.values() or id(old) in remaining:
            continue
        slot = trace.slot_in_one_place(old)
        if slot is not None:
            replaced[slot] = index
    return replaced


def weights_replaced(
    trace: StateTrace, pairs: Sequence[tuple[Any, Any]], results: Mapping[int, int]
) -> dict[int, WeightSlot]:
    """Traced. By the number of an array, the weight of its shape whose place it has."""
    slots: dict[int, WeightSlot] = {}
    for old, new in pairs:
        slot = trace.slot_of(old) if id(new) in results else None
        if isinstance(slot, tuple) and old.shape == new.shape:
            slots[results[id(new)]] = slot
    return slots
