"""Calls that repeat an earlier one with other tensors, of which nothing is prepared
again.

A call is prepared once for each form of its arguments. As long as the state of the
function is the same, and the arguments are tensors and plain values of the same forms,
the next call needs the arrays of its tensors alone:

1. find what was prepared, by the forms of the arguments;
2. gather the arrays, in the order of the program's inputs, and run it;
3. ask whether the state of the function is the same, while the device computes; if not,
   drop the results;
4. make tensors of them.

Calls that the program changes something for, that decide by values, or that give
objects, are prepared each time (`call_preparation`).
"""

import contextlib
import operator
from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

import jax
import torch
from jax.core import Tracer

from tpuport import attention, compat
from tpuport.checkpoint import port_count
from tpuport.compat.tracing import trace_lock
from tpuport.compilation import layers
from tpuport.compilation.function_programs import CallProgram
from tpuport.compilation.prepared_call import PreparedCall, ProgramArguments
from tpuport.compilation.programs.compiled_program import current_surroundings
from tpuport.compilation.programs.flat_program import Retraced
from tpuport.compilation.results.call_results import OutputAndWrites
from tpuport.internals.torchax_internals import ARRAY
from tpuport.objects.state.python_state import PythonState

# Forms of one function for which calls are kept.
_MOST_FORMS: Final = 64
_array_of = operator.attrgetter(ARRAY)
# Values that are the same in a program if they and their types are equal.
_PLAIN = frozenset({bool, int, str, bytes, type(None), torch.dtype})


class Forms(NamedTuple):
    """The forms of the arguments of a call, and its tensors.

    Attributes:
        key: equal for arguments that differ in nothing but the values of tensors.
        tensors: on the device or the host, in order.
        arrays: of these.
    """

    key: Hashable
    tensors: list[torch.Tensor]
    arrays: list[jax.Array]


class _Held:
    """An array that belongs to no tensor of a model, such as a rotary table."""

    def __init__(self, array: Any) -> None:
        setattr(self, ARRAY, array)


class _Stack:
    """The array that weights of blocks are rows of; the whole may be replaced."""

    def __init__(self, stacked: Any) -> None:
        self._stacked = stacked


setattr(_Stack, ARRAY, property(lambda stack: stack._stacked.array))


def find_forms(args: tuple, kwargs: dict[str, Any]) -> Forms | None:
    """The forms of arguments that are different tensors, and plain values; None if
    there is anything else among them.
    """
    device_class = compat.device_class()
    key: list[Hashable] = [len(args), *kwargs]
    tensors: list[torch.Tensor] = []
    arrays: list[jax.Array] = []
    for value in (*args, *kwargs.values()):
        cls = type(value)
        if cls in _PLAIN:
            key.append((cls, value))
            continue
        if cls is device_class:
            array = vars(value).get(ARRAY)
            if not isinstance(array, jax.Array) or isinstance(array, Tracer):
                return None
            if array.is_deleted():
                return None
        elif cls is torch.Tensor and value.device.type == "cpu":
            if value.layout is not torch.strided or value.is_quantized:
                return None
            array = compat.to_jax(value)
        else:
            return None
        key.append((array.shape, array.dtype, array.weak_type, value.dtype))
        tensors.append(value)
        arrays.append(array)
    if len(set(map(id, tensors))) < len(tensors):
        return None
    return Forms(tuple(key), tensors, arrays)


class WarmCall:
    """A call that was prepared, for others of its form.

    Args:
        program: of the call.
        state: of the function.
        sources: for each input of the program what has its array, or the number of a
            tensor among the arguments.
        scan_layers: as of `CompiledFunction`.

    Attributes:
        state: as above.
    """

    def __init__(
        self,
        program: CallProgram,
        state: PythonState,
        sources: Sequence[Any],
        scan_layers: bool | None,
    ) -> None:
        self._program = program
        self.state = state
        self._version = state.version
        self._weights = _weights(state)
        self._settings = _settings(state, scan_layers)
        # The arguments are in one row, between weights and tensors of the state.
        places = [number for number, part in enumerate(sources) if type(part) is int]
        first, end = (places[0], places[-1] + 1) if places else (0, 0)
        self._arguments = [sources[place] for place in places]
        self._before, self._after = sources[:first], sources[end:]
        # Whether a run that turns out to be one too many has changed nothing.
        self._is_pure = program.flat.is_pure and jax.process_count() == 1
        # Quantized weights are of several arrays.
        self._has_structures = any(
            not isinstance(_array_of(source), jax.Array)
            for source in (*self._before, *self._after)
        )

    def run(self, forms: Forms, scan_layers: bool | None) -> tuple[Any] | None:
        """What the function returns for arguments of this form; None if something else
        has changed since.
        """
        results = None
        with trace_lock:
            if _settings(self.state, scan_layers) != self._settings:
                return None
            arrays = self._gather(forms)
            # Somebody else traces the model.
            if arrays and isinstance(arrays[0], Tracer):
                return None
            if self._is_pure:
                # The device computes while the state is compared. If that has changed,
                # nobody gets what it computed, and the error of arrays that are no
                # longer there is one of the call that is prepared then.
                with contextlib.suppress(Exception):
                    results = self._program.flat(arrays)
            if not self.state.is_current() or not self._has_same_weights():
                return None
        try:
            if results is None:
                results = self._program.flat(arrays)
        except Retraced:
            return None
        return (self._program.result(results),)

    def _gather(self, forms: Forms) -> list[Any]:
        """The inputs of the program."""
        arrays = [
            *map(_array_of, self._before),
            *(forms.arrays[number] for number in self._arguments),
            *map(_array_of, self._after),
        ]
        return jax.tree.leaves(arrays) if self._has_structures else arrays

    def _has_same_weights(self) -> bool:
        """Whether no weight was replaced by another tensor."""
        if self.state.version is self._version:
            return True
        version = self.state.version
        weights = _weights(self.state)
        if len(weights) != len(self._weights) or not all(
            map(operator.is_, weights, self._weights)
        ):
            return False
        self._version = version
        return True


def _weights(state: PythonState) -> list[torch.Tensor]:
    return [
        weight
        for module in state.modules
        for weight in state.named_weights(module).values()
    ]


def _settings(state: PythonState, scan_layers: bool | None) -> tuple[Hashable, ...]:
    """What a program is made for beside the arguments and the state."""
    return (
        scan_layers,
        attention.registered_settings(),
        current_surroundings(),
        *map(port_count, state.modules),
    )


class WarmCalls:
    """The calls of a function that were prepared, by their forms."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, WarmCall] = {}

    def run(
        self, args: tuple, kwargs: dict[str, Any], scan_layers: bool | None
    ) -> tuple[Any] | None:
        """What the function returns, if nothing has to be prepared for a call.

        Nothing here refers to the arrays of the arguments after it: what a program
        overwrites would be copied for it.
        """
        forms = find_forms(args, kwargs) if self._calls else None
        if forms is None:
            return None
        warm = self._calls.get(forms.key)
        return warm and warm.run(forms, scan_layers)

    def note(
        self,
        args: tuple,
        kwargs: dict[str, Any],
        program: CallProgram,
        arguments: ProgramArguments,
        call: PreparedCall,
        scan_layers: bool | None,
    ) -> None:
        """Keep a call that has run, if others of its form need no more than the arrays
        of their tensors.
        """
        if not _needs_arrays_alone(program, arguments, call):
            return
        forms = find_forms(args, kwargs)
        sources = forms and _find_sources(forms, arguments, call)
        if forms is None or sources is None:
            return
        # Calls in an earlier state are prepared again in any case, and would keep the
        # models of that state alive.
        self._calls = {
            key: warm for key, warm in self._calls.items() if warm.state is call.state
        }
        if len(self._calls) >= _MOST_FORMS:
            self._calls.clear()
        self._calls[forms.key] = WarmCall(program, call.state, sources, scan_layers)


def _needs_arrays_alone(
    program: CallProgram, arguments: ProgramArguments, call: PreparedCall
) -> bool:
    """Whether a program takes no more of a call than the arrays of its tensors, and
    changes nothing for the caller.
    """
    flat, static = program.flat, arguments.static
    kinds = {argument.kind for argument in static.layout.arguments}
    return not (
        isinstance(flat.captured.results, OutputAndWrites)
        or flat.donated
        or static.donated
        or static.decided is not None
        or static.numbers
        or call.divided.layout.structure.nodes
        or kinds - {"tensor", "static"}
    )


def _find_sources(
    forms: Forms, arguments: ProgramArguments, call: PreparedCall
) -> list[Any] | None:
    """For each input of a program what has its array, or the number of a tensor among
    the arguments; None if an array belongs to none of these.
    """
    sources: list[Any] = []
    for module, arrays in zip(call.state.modules, arguments.weights, strict=True):
        named = call.state.named_weights(module)
        stacks = layers.stacked_arrays(named)
        for name, array in arrays.items():
            tensor = named.get(name)
            if tensor is not None and vars(tensor).get(ARRAY) is array:
                sources.append(tensor)
            elif id(array) in stacks:
                sources.append(_Stack(stacks[id(array)]))
            elif tensor is not None:
                return None  # computes its array when it is read
            else:
                sources += map(_Held, jax.tree.leaves(array))
    numbers = {id(tensor): number for number, tensor in enumerate(forms.tensors)}
    leaves = call.divided.graph.leaves
    for leaf in call.divided.tensor_leaves:
        sources.append(numbers[id(leaves[leaf])])
    shared = {number for number, _ in arguments.static.shared}
    sources += [
        tensor
        for number, tensor in enumerate(call.state.tensors)
        if number not in shared
    ]
    return sources
