"""What a compiled function returns and changes: described while it is traced, restored
after the program has run.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import torch

from tpuport import compat
from tpuport.compat import aliasing
from tpuport.compat.convert import NarrowIntegers
from tpuport.compat.tracing import trace_lock
from tpuport.compilation.arguments.call_arguments import DividedArguments, static_value
from tpuport.compilation.arguments.call_layout import Layout, Rebuilt
from tpuport.compilation.arguments.call_numbers import settle
from tpuport.compilation.model_weights import overwrite, write_weights
from tpuport.compilation.results.state_writes import StateArrays, StateWrites
from tpuport.errors import PortError
from tpuport.internals.torch_internals import version_of
from tpuport.objects import object_graph, pytrees
from tpuport.objects.state.python_state import PythonState
from tpuport.objects.static_values import StaticValue
from tpuport.objects.traced_numbers import Path, of_this_trace

NamedTensor = tuple[str, Any]


class Original(NamedTuple):
    """A leaf of a result that is a leaf of the arguments.

    Attributes:
        number: of the argument's leaf.
        is_returned: whether it is a part of the output, where tensors are on the
            device.
    """

    number: int
    is_returned: bool


class StateObject(NamedTuple):
    """A leaf of a result that the function reaches by itself, by its number in the
    state.
    """

    number: int


_Leaf = int | Original | StateObject | StaticValue


class ResultLayout(NamedTuple):
    """How to make a function's output, and the new states of its arguments, from the
    arrays of a program.

    Attributes:
        structure: of the output and the changed objects. Objects of the arguments have
            their numbers among these.
        leaves: for each leaf the number of an array, an original, an object of the
            state, or a static value.
        replaced: (number of a tensor of the arguments, number of the array that has its
            place now), for tensors that are nowhere else in the arguments. These arrays
            come first.
    """

    structure: object_graph.Structure
    leaves: tuple[_Leaf, ...]
    replaced: tuple[tuple[int, int], ...] = ()


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class OutputAndWrites:
    """The result of a program whose function changes what it was given, or returns more
    than tensors.

    What was changed comes first, as jax gives the memory of donated arrays to the first
    results of their form.

    Attributes:
        arguments: the new arrays of tensors among the arguments, by their number.
        weights: for each model the new arrays of its weights, by name.
        state: the arrays of what it changed in the function's state.
        output: of the function; its arrays, if there is a layout.
        layout: None for an output that jax can return as it is, of a function that
            changes no object.
        state_changes: where the arrays of the state belong; None if the function
            changed nothing there.
    """

    arguments: dict[int, Any]
    weights: list[dict[str, Any]]
    state: StateArrays
    output: Any
    layout: ResultLayout | None = dataclasses.field(
        default=None, metadata={"static": True}
    )
    state_changes: StateWrites | None = dataclasses.field(
        default=None, metadata={"static": True}
    )

    def restore(
        self, call: DividedArguments, state: PythonState, numbers: Mapping[Path, int]
    ) -> Any:
        """The output, after all that the function changed has been changed in what the
        caller has.

        Args:
            numbers: of the call.
        """
        tensors = [call.graph.leaves[number] for number in call.tensor_leaves]
        names = [call.graph.names[number] for number in call.tensor_leaves]
        # Tensors of the state are numbered after those of the arguments.
        written = self.arguments | {
            len(tensors) + number: array for number, array in self.state.tensors.items()
        }
        located = state.located_tensors()
        self._refuse_overlaps(list(zip(names, tensors, strict=True)), located, state)
        tensors += [tensor for _, tensor in located]
        for index, array in written.items():
            overwrite(tensors[index], array)
        for model, arrays in zip(state.modules, self.weights, strict=True):
            write_weights(model, arrays)
        if self.state_changes is not None:
            # Another thread that traces has its own values in the same attributes.
            with trace_lock:
                self.state_changes.apply(state, self.state.assigned, numbers)
        if self.layout is None:
            return compat.as_torch(self.output)
        arrays = compat.as_torch(self.output)
        leaves = [
            _restore_leaf(leaf, arrays, call.graph.leaves, state, numbers)
            for leaf in self.layout.leaves
        ]
        roots, _ = object_graph.unflatten(
            self.layout.structure, leaves, call.graph.objects
        )
        return roots[0]

    def _refuse_overlaps(
        self,
        arguments: Sequence[NamedTensor],
        located: Sequence[NamedTensor],
        state: PythonState,
    ) -> None:
        """PortError if a tensor that was written to shares memory with another one: the
        program had two copies.
        """
        written = [arguments[number] for number in self.arguments]
        written += [located[number] for number in self.state.tensors]
        others: list[NamedTensor] = []
        for model, arrays in zip(state.modules, self.weights, strict=True):
            weights = state.named_weights(model)
            others += weights.items()
            written += [(name, weights[name]) for name in arrays]
        if not written:
            return
        # A tensor of the state that is a weight is one argument, as the weight.
        known = {id(weight) for _, weight in others}
        others += [
            (path, tensor) for path, tensor in located if id(tensor) not in known
        ]
        _refuse_same(written, arguments, others)
        _refuse_views(written, [*arguments, *others])


def _restore_leaf(
    leaf: _Leaf,
    arrays: list[Any],
    originals: Sequence[Any],
    state: PythonState,
    numbers: Mapping[Path, int],
) -> Any:
    match leaf:
        case int():
            return arrays[leaf]
        case StateObject():
            return state.nodes[leaf.number]
        case StaticValue():
            return settle(leaf.value, numbers)
    original = originals[leaf.number]
    if isinstance(original, object_graph.HostArray):
        # The caller's own NumPy array, not the copy that the program took.
        return original.source
    if (
        leaf.is_returned
        and object_graph.is_array(original)
        and not compat.is_ported(original)
    ):
        return compat.as_torch(compat.to_jax(torch.as_tensor(original)))
    return original


def collect_results(
    output: Any,
    rebuilt: Rebuilt,
    weights: list[dict[str, Any]],
    state: PythonState,
    written: StateArrays,
    state_changes: StateWrites | None,
) -> Any:
    """Traced. What the program returns: the output alone if that is all.

    Args:
        output: of the function.
        weights: for each model what it has written to, by name.
        state: of the function.
        written: the arrays of what the function changed there, and `state_changes`
            where they belong.
    """
    # The output may have caches, or outputs of libraries, whose classes jax does not
    # know yet.
    pytrees.register_used(output)
    _refuse_host_writes(rebuilt)
    writes = _find_writes(rebuilt)
    changed = _changed_objects(rebuilt)
    arrays, layout = _describe(output, rebuilt, changed, state)
    if layout is None:
        arrays = jax.tree.map(
            lambda leaf: _as_array(leaf) if object_graph.is_array(leaf) else leaf,
            output,
        )
        # Most functions write to nothing, and their programs have no other results than
        # their own.
        if (
            not writes
            and not any(weights)
            and not written.tensors
            and state_changes is None
        ):
            return arrays
    return OutputAndWrites(writes, weights, written, arrays, layout, state_changes)


def find_changed_caches(
    layout: Layout, given: Sequence[Sequence[Any]], rebuilt: Rebuilt
) -> tuple[int, ...]:
    """Traced. The numbers of the caches among the arguments that have changed.

    Args:
        given: for each cache the arrays that were in it.
    """
    caches = [
        (leaf, argument.content)
        for leaf, argument in zip(rebuilt.leaves, layout.arguments, strict=True)
        if argument.kind == "cache"
    ]
    changed = []
    for number, ((cache, form), arrays) in enumerate(zip(caches, given, strict=True)):
        leaves, new_form = jax.tree.flatten(cache)
        is_same = new_form == form and all(
            compat.as_jax(leaf) is array
            for leaf, array in zip(leaves, arrays, strict=True)
        )
        if not is_same:
            changed.append(number)
    return tuple(changed)


def _refuse_host_writes(rebuilt: Rebuilt) -> None:
    """Traced. PortError if the function has written to a tensor whose values are a part
    of the program.
    """
    for name, tensor in rebuilt.host_tensors.items():
        if version_of(tensor):
            raise PortError(
                f"compiled code writes in place to {name}, whose values are a part of the program",
                where=name,
                fix="write to a clone() of it",
            )


def _find_writes(rebuilt: Rebuilt) -> dict[int, Any]:
    """Traced. The new arrays of tensors that no longer have those that they started
    with, by their number.
    """
    writes = {}
    for index, (number, array) in enumerate(
        zip(rebuilt.tensor_leaves, rebuilt.arrays, strict=True)
    ):
        tensor = rebuilt.leaves[number]
        if id(tensor) not in rebuilt.replaced and compat.as_jax(tensor) is not array:
            writes[index] = compat.as_jax(tensor)
    return writes


def _changed_objects(rebuilt: Rebuilt) -> list[int]:
    """Numbers of the objects with other attributes or items than before, and of those
    with replaced leaves.

    Raises:
        PortError: a class that is registered with jax was changed.
    """
    changed = []
    for number, before in rebuilt.states.items():
        value = rebuilt.objects[number]
        is_changed = object_graph.is_changed(before, object_graph.read_state(value))
        # Such an object is a value for jax: the caller's is not rebuilt, so the change
        # would be lost.
        if is_changed and before.is_registered:
            cls = type(value)
            raise PortError(
                f"compiled code changes a {cls.__module__}.{cls.__qualname__} in place, which is registered with jax "
                "as a value",
                where=cls.__qualname__,
                fix="return it, and go on with the one that is returned",
            )
        has_replaced = any(id(leaf) in rebuilt.replaced for leaf in before.contents())
        if is_changed or (has_replaced and not before.is_registered):
            changed.append(number)
    return changed


def _describe(
    output: Any, rebuilt: Rebuilt, changed: list[int], state: PythonState
) -> tuple[list[Any], ResultLayout | None]:
    """Traced. The arrays of the output and of changed objects, with a layout if jax
    alone could not return them.
    """
    known = {
        number: value
        for number, value in rebuilt.objects.items()
        if not rebuilt.states[number].is_registered
    }
    flattener = object_graph.Flattener(
        caches_are_leaves=False,
        whole=state.node_numbers,
        known=known,
        first=len(rebuilt.objects),
    )
    flattener.add_root("the result", output)
    returned = len(flattener.leaves)
    if (
        not changed
        and not flattener.meets_known
        and object_graph.is_for_jax(flattener.graph())
    ):
        return [], None
    # A tensor that is returned and belongs to an object has two forms: on the device,
    # and the caller's own.
    flattener.forget_leaves(rebuilt.leaves)
    for number in changed:
        flattener.add_known("an argument", number, known[number])
    graph = flattener.graph()
    # Plain values are compared by value, and one that Python shares says nothing about
    # where it came from.
    originals = {
        id(leaf.array if isinstance(leaf, object_graph.HostArray) else leaf): number
        for number, leaf in enumerate(rebuilt.leaves)
        if id(leaf) not in rebuilt.replaced and not object_graph.is_plain(leaf)
    }
    arrays: list[Any] = []
    leaves: list[_Leaf] = []
    for index, (leaf, name) in enumerate(zip(graph.leaves, graph.names, strict=True)):
        source = leaf.source if isinstance(leaf, object_graph.HostArray) else leaf
        if id(source) in originals:
            leaves.append(Original(originals[id(source)], is_returned=index < returned))
        elif object_graph.is_array(leaf):
            leaves.append(len(arrays))
            arrays.append(_as_array(leaf))
        elif id(leaf) in state.node_numbers:
            leaves.append(StateObject(state.node_numbers[id(leaf)]))
        else:
            object_graph.refuse_captured_tensors(leaf, name)
            leaves.append(static_value(of_this_trace(leaf), name))
    _refuse_returned_views(graph.leaves[returned:], graph.names[returned:])
    replaced = _find_replaced(rebuilt, changed, graph, leaves)
    order = dict.fromkeys((*replaced.values(), *range(len(arrays))))
    numbers = {former: number for number, former in enumerate(order)}
    layout = ResultLayout(
        graph.structure,
        tuple(numbers[leaf] if isinstance(leaf, int) else leaf for leaf in leaves),
        tuple((tensor, numbers[array]) for tensor, array in replaced.items()),
    )
    return [arrays[number] for number in order], layout


def _find_replaced(
    rebuilt: Rebuilt,
    changed: list[int],
    graph: object_graph.Graph,
    leaves: list[_Leaf],
) -> dict[int, int]:
    """Traced. Tensors of the arguments that only changed objects had, and no longer
    have.

    Args:
        graph: of the result and the changed objects; `leaves` are its leaves as they
            leave the program.

    Returns:
        By the number of the tensor, the number of the array that has its place.
    """
    numbers = {
        id(rebuilt.leaves[leaf]): number
        for number, leaf in enumerate(rebuilt.tensor_leaves)
    }
    arrays = {
        id(value): leaf
        for value, leaf in zip(graph.leaves, leaves, strict=True)
        if isinstance(leaf, int)
    }
    replaced = {}
    for number in changed:
        before, after = (
            rebuilt.states[number],
            object_graph.read_state(rebuilt.objects[number]),
        )
        for old, new in object_graph.matching_contents(before, after):
            if (
                id(old) in numbers
                and id(old) not in rebuilt.replaced
                and id(new) in arrays
            ):
                replaced[numbers[id(old)]] = arrays[id(new)]
    if not replaced:
        return {}
    # Whoever has an argument by itself, or an object that stays, has the tensor after
    # the call.
    remaining = [*rebuilt.args, *rebuilt.kwargs.values(), *graph.leaves]
    for number, state in rebuilt.states.items():
        remaining += [] if number in changed else state.contents()
    in_use = set(map(id, remaining))
    return {
        tensor: array
        for tensor, array in replaced.items()
        if id(rebuilt.leaves[rebuilt.tensor_leaves[tensor]]) not in in_use
    }


def _refuse_returned_views(leaves: list[Any], names: list[str]) -> None:
    """Traced. PortError if a function leaves tensors in objects that share memory,
    which would be two afterwards.
    """
    tensors = [
        (leaf, name)
        for leaf, name in zip(leaves, names, strict=True)
        if isinstance(leaf, torch.Tensor)
    ]
    for (tensor, name), (other, other_name) in itertools.combinations(tensors, 2):
        if aliasing.may_overlap(tensor, other):
            raise PortError(
                f"compiled code leaves {other_name} as a view of the memory of {name}",
                where=other_name,
                fix="keep a clone(), or only one of the two, and take the view where it is needed",
            )


def _as_array(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return jax.numpy.asarray(value)
    array = compat.to_jax(value)
    return NarrowIntegers(array) if value.dtype is torch.int32 else array


def _refuse_same(
    written: Sequence[NamedTensor],
    arguments: Sequence[NamedTensor],
    others: Sequence[NamedTensor],
) -> None:
    """PortError if an argument that was written to is a weight, or a tensor of the
    state, too.
    """
    names = {id(tensor): name for name, tensor in others}
    changed = {id(tensor) for _, tensor in written}
    for name, tensor in arguments:
        if id(tensor) in changed and id(tensor) in names:
            _refuse_write(name, names[id(tensor)])


def _refuse_views(
    written: Sequence[NamedTensor], tensors: Sequence[NamedTensor]
) -> None:
    """PortError if a tensor that was written to has memory in common with another
    one.
    """
    # Most tensors share memory with none, and a model has many.
    sharing = [
        (name, tensor) for name, tensor in tensors if aliasing.may_share_memory(tensor)
    ]
    changed = [
        (name, tensor) for name, tensor in written if aliasing.may_share_memory(tensor)
    ]
    for (name, tensor), (other_name, other) in itertools.product(changed, sharing):
        if other is not tensor and aliasing.may_overlap(tensor, other):
            _refuse_write(name, other_name)


def _refuse_write(name: str, other: str) -> NoReturn:
    raise PortError(
        f"compiled code writes to {name}, which shares memory with {other}",
        where=name,
        fix="keep or pass only one of the two and take the view inside of the function, or a clone()",
    )
