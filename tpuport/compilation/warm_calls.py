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
import types
import weakref
from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

import jax
import torch
from jax.core import Tracer

from tpuport import attention, compat
from tpuport.checkpoint import port_count
from tpuport.compat.recording import requires_gradient
from tpuport.compat.tracing import trace_lock
from tpuport.compilation import layers
from tpuport.compilation.function_programs import CallProgram
from tpuport.compilation.model_weights import narrow_weights
from tpuport.compilation.prepared_call import PreparedCall, ProgramArguments
from tpuport.compilation.programs.program_settings import current_surroundings
from tpuport.compilation.programs.traced_once import Retraced
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
        are_on_device: whether all of them are on the device.
    """

    key: Hashable
    tensors: list[torch.Tensor]
    are_on_device: bool


class _Table:
    """A place of an array that belongs to no tensor of a model, a rotary table."""

    def __init__(self, array: Any) -> None:
        self._array = weakref.ref(array)

    def __getitem__(self, key: None) -> Any:
        return types.SimpleNamespace(**{ARRAY: self._array()})


class _Stack:
    """A place of an array that weights of blocks are rows of."""

    def __init__(self, stacked: Any) -> None:
        self._stacked = weakref.ref(stacked)

    def __getitem__(self, key: None) -> Any:
        stacked = self._stacked()
        return types.SimpleNamespace(**{ARRAY: stacked and stacked.array})


# Where a tensor is: `owner[key]`, the name in a dictionary of a module. Not the tensor
# itself, which would keep a model alive, nor a weak reference, with which torch would
# not swap it for another.
_Place = tuple[Any, Any]


def find_forms(args: tuple, kwargs: dict[str, Any]) -> Forms | None:
    """The forms of arguments that are different tensors, and plain values; None if
    there is anything else among them.
    """
    device_class = compat.device_class()
    key: list[Hashable] = [torch.is_grad_enabled(), len(args), *kwargs]
    tensors: list[torch.Tensor] = []
    are_on_device = True
    for value in (*args, *kwargs.values()):
        cls = type(value)
        if cls in _PLAIN:
            key.append((cls, value))
            continue
        if cls is float:
            # By its digits: 0.0 is not -0.0, and NaN is NaN.
            key.append((cls, value.hex()))
            continue
        if cls is device_class:
            array = vars(value).get(ARRAY)
            if not isinstance(array, jax.Array) or isinstance(array, Tracer):
                return None
            if array.is_deleted():
                return None
            form = array.shape, array.dtype, array.weak_type
        elif cls is torch.Tensor and value.device.type == "cpu":
            if value.layout is not torch.strided or value.is_quantized:
                return None
            form = tuple(value.shape), compat.jax_dtype(value.dtype), False
            are_on_device = False
        else:
            return None
        key.append((*form, value.dtype))
        tensors.append(value)
    if len(set(map(id, tensors))) < len(tensors):
        return None
    key += requires_gradient(tensors) if torch.is_grad_enabled() else ()
    return Forms(tuple(key), tensors, are_on_device)


class WarmCall:
    """A call that was prepared, for others of its form. It lives as long as the state.

    Args:
        program: of the call.
        state: of the function.
        sources: for each input of the program where its tensor is, or the number of a
            tensor among the arguments.
        recorded: the tensors whose gradients autograd records, as such sources.
        scan_layers: as of `CompiledFunction`.
    """

    def __init__(
        self,
        program: CallProgram,
        state: PythonState,
        sources: Sequence[_Place | int],
        recorded: Sequence[_Place | int],
        scan_layers: bool | None,
    ) -> None:
        self._program = program
        self._recorded = tuple(recorded)
        self._state = weakref.ref(state)
        self._version = state.version
        self._names = _weight_names(state)
        self._settings = _settings(state, scan_layers)
        # The arguments are in one row, between weights and tensors of the state.
        self._arguments = [part for part in sources if isinstance(part, int)]
        places = [part for part in sources if not isinstance(part, int)]
        first = next((n for n, part in enumerate(sources) if isinstance(part, int)), 0)
        self._before, self._after = places[:first], places[first:]
        # Nothing else tells when a weight is frozen, or is no longer.
        self._requiring = _requiring(places) if torch.is_grad_enabled() else None
        # Whether a run that turns out to be one too many has changed nothing.
        self._is_pure = program.flat.is_pure and jax.process_count() == 1
        # Quantized weights are of several arrays.
        self._has_structures = any(
            not isinstance(_array_of(owner[key]), jax.Array) for owner, key in places
        )

    def run(self, forms: Forms, scan_layers: bool | None) -> tuple[Any] | None:
        """What the function returns for arguments of this form; None if something else
        has changed since.
        """
        results, state = None, self._state()
        with trace_lock:
            if state is None or _settings(state, scan_layers) != self._settings:
                return None
            if self._requiring is not None and self._has_other_requirements():
                return None
            # To copy a tensor of the host takes longer than to compare the state.
            is_early = self._is_pure and forms.are_on_device
            if not is_early and not self.is_current(state):
                return None
            arrays = self._gather(forms)
            # Something is gone, or somebody else traces the model.
            if arrays is None or (arrays and isinstance(arrays[0], Tracer)):
                return None
            if is_early:
                # The device computes while the state is compared. If that has changed,
                # nobody gets what it computed, and the error of arrays that are no
                # longer there is one of the call that is prepared then.
                with contextlib.suppress(Exception):
                    results = self._program.flat(arrays)
            if is_early and not self.is_current(state):
                return None
        try:
            if results is None:
                results = self._program.flat(arrays)
        except (Retraced, FloatingPointError):
            # The prepared call captures the code anew, or says which line makes a NaN.
            return None
        output = self._program.result(results)
        if self._recorded:
            flat: Any = self._program.flat
            flat.attach(output, results, self._recorded_tensors(forms))
        return (output,)

    def _has_other_requirements(self) -> bool:
        """Whether other weights require a gradient than before, or some are gone."""
        try:
            return _requiring([*self._before, *self._after]) != self._requiring
        except LookupError:
            return True

    def _recorded_tensors(self, forms: Forms) -> list[torch.Tensor]:
        return [
            forms.tensors[source] if isinstance(source, int) else source[0][source[1]]
            for source in self._recorded
        ]

    def _gather(self, forms: Forms) -> list[Any] | None:
        """The inputs of the program; None if one of them is gone, or has become what
        has no array.
        """
        try:
            arrays = [
                *(_array_of(owner[key]) for owner, key in self._before),
                *(compat.to_jax(forms.tensors[number]) for number in self._arguments),
                *(_array_of(owner[key]) for owner, key in self._after),
            ]
        except (AttributeError, LookupError):
            return None
        return jax.tree.leaves(arrays) if self._has_structures else arrays

    def is_current(self, state: PythonState) -> bool:
        """Whether the state is what it was, and the weights have the same names; others
        in their places are inputs like these.
        """
        if not state.is_current():
            return False
        version = state.version
        if version is not self._version:
            if _weight_names(state) != self._names:
                return False
            self._version = version
        return True


def _requiring(places: Sequence[_Place]) -> list[bool]:
    """Whether each of the tensors requires a gradient."""
    return requires_gradient(owner[key] for owner, key in places)


def _weight_names(state: PythonState) -> list[tuple[str, ...]] | None:
    """The names of the weights of each model, those with several by the first, and of
    those of int32; None if a weight is also a tensor of the state.
    """
    of_state = set(map(id, state.tensors))
    names = []
    for module in state.modules:
        weights = state.named_weights(module)
        if not of_state.isdisjoint(map(id, weights.values())):
            return None
        names.append(tuple(weights))
        arrays = {name: vars(weight).get(ARRAY) for name, weight in weights.items()}
        names.append(narrow_weights(weights, arrays))
    return names


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
        # The states have them.
        self._calls: weakref.WeakValueDictionary[Hashable, WarmCall] = (
            weakref.WeakValueDictionary()
        )

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
        recorded = _recorded_sources(forms, arguments, call)
        warm = WarmCall(program, call.state, sources, recorded, scan_layers)
        if len(call.state.kept) >= _MOST_FORMS:
            call.state.kept.clear()
        call.state.kept[forms.key] = self._calls[forms.key] = warm


def _needs_arrays_alone(
    program: CallProgram, arguments: ProgramArguments, call: PreparedCall
) -> bool:
    """Whether a program takes no more of a call than the arrays of its tensors, and
    changes nothing for the caller.
    """
    flat, static = program.flat, arguments.static
    kinds = {argument.kind for argument in static.layout.arguments}
    return not (
        program.dtypes is None
        or flat.donated
        or static.donated
        or static.decided is not None
        or static.numbers
        or call.divided.layout.structure.nodes
        or kinds - {"tensor", "static"}
    )


def _find_sources(
    forms: Forms, arguments: ProgramArguments, call: PreparedCall
) -> list[_Place | int] | None:
    """For each input of a program where its tensor is, or the number of a tensor among
    the arguments; None if an array belongs to none of these.
    """
    if arguments.static.shared:
        return None
    sources: list[_Place | int] = []
    for module, arrays in zip(call.state.modules, arguments.weights, strict=True):
        places = call.state.weight_places(module)
        stacks = layers.stacked_arrays(call.state.named_weights(module))
        for name, array in arrays.items():
            place = places.get(name)
            if place is not None:
                owner, key = place
                # A row of a stacked array, and a view, have no array of their own.
                if vars(owner[key]).get(ARRAY) is not array:
                    return None
                sources.append(place)
            elif id(array) in stacks:
                sources.append((_Stack(stacks[id(array)]), None))
            else:
                sources += [(_Table(part), None) for part in jax.tree.leaves(array)]
    numbers = {id(tensor): number for number, tensor in enumerate(forms.tensors)}
    leaves = call.divided.graph.leaves
    for leaf in call.divided.tensor_leaves:
        sources.append(numbers[id(leaves[leaf])])
    tensors = call.state.tensors
    return [*sources, *((tensors, number) for number in range(len(tensors)))]


def _recorded_sources(
    forms: Forms, arguments: ProgramArguments, call: PreparedCall
) -> list[_Place | int]:
    """Where the tensors are whose gradients autograd records."""
    recorded = arguments.static.recorded
    numbers = {id(tensor): number for number, tensor in enumerate(forms.tensors)}
    sources: list[_Place | int] = []
    for slot in () if recorded is None else recorded.slots:
        if isinstance(slot, int):
            number = numbers.get(id(call.tensor_at(slot)))
            of_state = slot - len(call.divided.tensor_leaves)
            sources.append((call.state.tensors, of_state) if number is None else number)
        else:
            model, name = slot
            sources.append(call.state.weight_places(call.state.modules[model])[name])
    return sources
