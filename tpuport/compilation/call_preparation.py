"""A call of a function, prepared for its program: its arguments divided, the state of
the function, the numbers that vary.
"""

import collections
import functools
import types
import weakref
from collections.abc import Callable, Sequence, Set
from typing import Any

import jax.numpy as jnp
import torch

from tpuport import attention
from tpuport.checkpoint import port_count
from tpuport.compat.tracing import trace_lock
from tpuport.compilation import layers
from tpuport.compilation.arguments.call_arguments import (
    check_static,
    divide_arguments,
    parameters_of,
    positional_names,
    usable_array,
)
from tpuport.compilation.arguments.call_layout import Layout, is_inside
from tpuport.compilation.arguments.call_numbers import CallNumbers, Numbers, is_number
from tpuport.compilation.arguments.call_signature import CallSignature
from tpuport.compilation.model_weights import (
    collect_arrays,
    current_state,
    narrow_weights,
)
from tpuport.compilation.prepared_call import (
    PreparedCall,
    ProgramArguments,
    StaticPart,
)
from tpuport.compilation.shared_tensors import weights_in_state
from tpuport.compilation.varying_numbers import VaryingNumbers
from tpuport.objects import object_graph
from tpuport.objects.state.python_state import PythonState
from tpuport.objects.traced_numbers import Path

# States that are kept, of a function that gets other functions in turn.
_MOST_STATES = 4


def _split_owner(function: Callable) -> tuple[Callable, tuple[Any, ...]]:
    """The function to call, and its first argument if it is a method of an object of
    the user's own.

    So what the object consists of is an argument like others, and what the method
    changes in it is changed.
    """
    owner = getattr(function, "__self__", None)
    if isinstance(function, types.MethodType) and object_graph.is_own_object(owner):
        return function.__func__, (owner,)
    if object_graph.is_own_object(function):
        return type(function).__call__, (function,)
    return function, ()


class CallPreparation:
    """Prepares the calls of one function.

    Args:
        function, modules: as of `CompiledFunction`.
        traced, donated, static: patterns of names, as of `compile`.

    Attributes:
        run_function: what is called while tracing.
        numbers: that vary from call to call.
        donated: as above.
    """

    def __init__(
        self,
        function: Callable,
        modules: Sequence[torch.nn.Module] | None,
        traced: tuple[str, ...],
        donated: tuple[str, ...],
        static: tuple[str, ...],
    ) -> None:
        self.run_function, self._owner = _split_owner(function)
        self.numbers = VaryingNumbers()
        self._function = function
        self._fixed_modules = None if modules is None else list(modules)
        self._traced, self.donated, self._static = traced, donated, static
        self._parameters = parameters_of(
            getattr(function, "forward", self.run_function)
        )
        self._signature = CallSignature(function, (*traced, *donated))
        # By what the arguments lead to.
        self._states: collections.OrderedDict[tuple, PythonState] = (
            collections.OrderedDict()
        )

    def prepare(
        self, args: tuple, kwargs: dict, decided: Set[str], *, stacks_layers: bool
    ) -> PreparedCall:
        """The arguments and the state of a call.

        Args:
            decided: names of inputs whose values are a part of the program.
            stacks_layers: whether blocks are to run in a loop.
        """
        varying = self.numbers.paths
        while True:
            call = self._prepare_with(args, kwargs, decided, stacks_layers, varying)
            fixed = self.numbers.fixed(call)
            if not fixed:
                return call
            varying -= fixed

    def plain_numbers(self, call: PreparedCall) -> Numbers:
        """All numbers of a call that may vary, by path, with those of defaults."""
        defaults: Numbers = {
            ("argument", name): parameter.default
            for name, parameter in self._parameters.items()
            if is_number(parameter.default)
        }
        in_state = call.state.plain_numbers()
        return defaults | call.divided.plain_numbers() | in_state

    def _prepare_with(
        self,
        args: tuple,
        kwargs: dict,
        decided: Set[str],
        stacks_layers: bool,
        varying: frozenset[Path],
    ) -> PreparedCall:
        """As `prepare`, with these numbers as arguments of the program."""

        def is_static(name: str) -> bool:
            return name in decided or is_inside(name, self._static)

        args, kwargs = self._signature.simplified(args, kwargs, is_static)
        divide = functools.partial(
            divide_arguments, self._name_positional(args), kwargs, self._traced,
            self.donated, is_static, varying,
        )  # fmt: skip
        divided = divide()
        check_static(self._static, divided.graph.names, self._parameters)
        with trace_lock:
            state = self.current_state(
                divided.layout, varying, stacks_layers=stacks_layers
            )
            # What the function also reaches by itself is one object in the trace, too.
            graph = divided.graph
            tensors = (leaf for leaf in graph.leaves if isinstance(leaf, torch.Tensor))
            both_ways = state.shared_with((*graph.objects.values(), *tensors))
            if both_ways:
                divided = divide(shared=both_ways)
            named = list(map(state.named_weights, state.modules))
            weights = list(map(collect_arrays, named))
            models = tuple(
                (weakref.ref(module), port_count(module)) for module in state.modules
            )
            shared = weights_in_state(state.tensors, named)
            state_arrays: list[Any] = [
                usable_array(tensor, path) for path, tensor in state.located_tensors()
            ]
        for number, _ in shared:
            state_arrays[number] = None
        in_state = {path: value for path, (_, value) in state.numbers.items()}
        static = StaticPart(
            divided.layout,
            models,
            state.key,
            attention.registered_settings(),
            self.donated,
            narrow=tuple(map(narrow_weights, named, weights)),
            shared=shared,
            numbers=CallNumbers(divided.numbers | in_state),
        )
        tensors = divided.arrays + state_arrays
        if static.numbers:
            tensors.append(jnp.asarray(list(static.numbers.values.values())))
        arguments = ProgramArguments(weights, tensors, divided.donated, static)
        return PreparedCall(arguments, divided, state)

    def current_state(
        self,
        layout: Layout | None = None,
        varying: frozenset[Path] = frozenset(),
        *,
        stacks_layers: bool,
    ) -> PythonState:
        """The state of the function now.

        Args:
            layout: of the arguments that it is called with.
            varying: as of `PythonState`.
            stacks_layers: whether blocks are to run in a loop.
        """
        make_state = functools.partial(self.make_state, layout, varying)
        roots = () if layout is None else (*layout.modules(), *layout.code)
        known = self._states.pop(roots, None)
        if known is not None and known.varying != varying:
            known = None
        state = current_state(known, make_state)
        if stacks_layers:
            for module in state.modules:
                layers.stack_layers(module)
            state = current_state(state, make_state)
        # Of models among the arguments the latest alone, so that others can be freed.
        if any(isinstance(part, torch.nn.Module) for part in roots):
            self._states.clear()
        self._states[roots] = state
        if len(self._states) > _MOST_STATES:
            self._states.popitem(last=False)
        return state

    def make_state(
        self, layout: Layout | None, varying: frozenset[Path] = frozenset()
    ) -> PythonState:
        """A new state of the function; arguments as of `current_state`."""
        arguments = [] if layout is None else layout.modules()
        code = () if layout is None else layout.code
        modules = self._fixed_modules
        if modules is not None:
            modules = list(dict.fromkeys((*modules, *arguments)))
        # A partial function reaches its arguments. An object whose method is compiled
        # is an argument itself, and no part of the state.
        function = (
            functools.partial(self._function, *arguments)
            if arguments
            else self._function
        )
        return PythonState(
            function, modules, start=self.run_function, code=code, varying=varying
        )

    def _name_positional(self, args: tuple) -> dict[str, Any]:
        """Positional arguments by the names of their parameters, in order; those of
        `*args` are numbered.
        """
        names = positional_names(self._parameters)
        names += [
            f"argument {number}"
            for number in range(len(names), len(self._owner) + len(args))
        ]
        return dict(zip(names, (*self._owner, *args), strict=False))
