"""What a compiled function returns and changes: described while it is traced, restored
after the program has run.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jax
import torch

from tpuport import compat
from tpuport.compat import aliasing
from tpuport.compat.tracing import trace_lock
from tpuport.compilation.arguments.call_arguments import DividedArguments
from tpuport.compilation.arguments.call_layout import Layout, Rebuilt
from tpuport.compilation.model_weights import overwrite, write_weights
from tpuport.compilation.results.leaving_values import LeavingValues, as_array
from tpuport.compilation.results.replaced_tensors import (
    replaced_in_arguments,
    replaced_in_state,
    weights_replaced,
)
from tpuport.compilation.results.result_layout import (
    LiveCall,
    Result,
    ResultLayout,
)
from tpuport.compilation.results.state_writes import StateChanges, StateTrace
from tpuport.errors import PortError
from tpuport.internals.torch_internals import version_of
from tpuport.objects import object_graph
from tpuport.objects.state.python_state import PythonState
from tpuport.objects.traced_numbers import Path

NamedTensor = tuple[str, Any]


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
        state: the new arrays of tensors of its state, by their number.
        output: of the function; if there is a layout, all other arrays that leave it.
        layout: None for an output that jax can return as it is, of a function that
            changes no object and assigns nothing to its state.
    """

    arguments: dict[int, Any]
    weights: list[dict[str, Any]]
    state: dict[int, Any]
    output: Any
    layout: ResultLayout | None = dataclasses.field(
        default=None, metadata={"static": True}
    )

    @property
    def returned(self) -> list[Any]:
        """The arrays of the output alone."""
        if self.layout is None:
            return jax.tree.leaves(self.output)
        leaves = self.layout.leaves[: self.layout.returned]
        return [self.output[leaf.array] for leaf in leaves if isinstance(leaf, Result)]

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
            len(tensors) + number: array for number, array in self.state.items()
        }
        located = state.located_tensors()
        self._refuse_overlaps(list(zip(names, tensors, strict=True)), located, state)
        tensors += [tensor for _, tensor in located]
        for index, array in written.items():
            overwrite(tensors[index], array)
        for model, arrays in zip(state.modules, self.weights, strict=True):
            write_weights(model, arrays)
        arrays = compat.as_torch(self.output)
        if self.layout is None:
            return arrays
        live = LiveCall(arrays, call.graph.leaves, state, numbers)
        # Another thread that traces has its own values in the attributes of the state.
        with trace_lock if self.layout.changes_state else contextlib.nullcontext():
            return self.layout.restore(live, call.graph.objects)

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
        written += [located[number] for number in self.state]
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


def collect_results(
    output: Any, rebuilt: Rebuilt, weights: list[dict[str, Any]], trace: StateTrace
) -> Any:
    """Traced. What the program returns: the output alone if that is all.

    Args:
        output: of the function.
        weights: for each model what it has written to, by name.
        trace: of the function's state.

    Raises:
        PortError: a value cannot leave the program.
    """
    _refuse_host_writes(rebuilt)
    writes = _find_writes(rebuilt)
    changes = trace.find_changes()
    arrays, layout = _describe(output, rebuilt, trace, changes)
    if layout is None:
        arrays = jax.tree.map(
            lambda leaf: as_array(leaf) if object_graph.is_array(leaf) else leaf,
            output,
        )
        # Most functions write to nothing, and their programs have no other results than
        # their own.
        if not writes and not any(weights) and not changes.tensors:
            return arrays
    return OutputAndWrites(writes, weights, changes.tensors, arrays, layout)


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
    output: Any, rebuilt: Rebuilt, trace: StateTrace, changes: StateChanges
) -> tuple[list[Any], ResultLayout | None]:
    """Traced. The arrays of the output, of changed objects and of what is assigned to
    the state, with a layout if jax alone could not return them.
    """
    changed = _changed_objects(rebuilt)
    values = LeavingValues(rebuilt, trace)
    values.add_output(output)
    if (
        not (changed or changes.assignments or changes.host or values.meets_known)
        and object_graph.is_for_jax(values.graph())
    ):  # fmt: skip
        return [], None
    values.add_assigned(changes)
    first = len(values.leaves)
    values.add_changed(changed)
    graph = values.graph()
    leaves = values.forms(graph)
    _refuse_returned_views(graph.leaves[first:], graph.names[first:])
    results = {
        id(value): leaf.array
        for value, leaf in zip(graph.leaves, leaves, strict=True)
        if isinstance(leaf, Result)
    }
    replaced = replaced_in_arguments(rebuilt, changed, graph.leaves, results)
    in_state = replaced_in_state(trace, changes.replaced, graph.leaves, results)
    for slot, index in in_state.items():
        if index not in replaced.values():
            # Tensors of the state are numbered after those of the arguments.
            count = len(rebuilt.tensor_leaves)
            replaced[slot + count if isinstance(slot, int) else slot] = index
    weights = weights_replaced(trace, changes.replaced, results)
    order = dict.fromkeys((*replaced.values(), *range(len(values.arrays))))
    numbers = {former: number for number, former in enumerate(order)}
    layout = ResultLayout(
        graph.structure,
        tuple(
            Result(numbers[leaf.array], leaf.requires_grad, weights.get(leaf.array))
            if isinstance(leaf, Result)
            else leaf
            for leaf in leaves
        ),
        values.returned,
        tuple((slot, numbers[index]) for slot, index in replaced.items()),
        tuple(changes.assignments),
        changes.host,
        values.kept,
        values.leaves_kept(graph.structure),
    )
    return [values.arrays[number] for number in order], layout


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
