"""What `tpuport.compile` returns: weights are arguments, flags are static, caches are
donated, recompilations are counted.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import torch

from tpuport import trace_errors
from tpuport.compat import randomness
from tpuport.compat.asked_values import AskedValues
from tpuport.compat.caught_errors import CaughtErrors
from tpuport.compat.operators.masked_selection import without_selections
from tpuport.compat.recording import gradients_recorded
from tpuport.compat.tracing import is_tracing, trace_lock
from tpuport.compat.user_frames import is_raised_in_model_library
from tpuport.compilation import layers, rotary, torch_transforms
from tpuport.compilation.arguments.call_arguments import (
    is_prepared_by_patches,
    prepare_arguments,
)
from tpuport.compilation.arguments.call_numbers import (
    NumbersFixed,
)
from tpuport.compilation.arguments.number_operators import number_operators
from tpuport.compilation.call_preparation import CallPreparation
from tpuport.compilation.decisions.host_inputs import (
    find_candidates,
    put_on_device,
    small_counts,
    values_known,
)
from tpuport.compilation.decisions.value_decisions import ValueDecisions, advise
from tpuport.compilation.function_programs import CallProgram, FunctionPrograms
from tpuport.compilation.model_weights import (
    check_constants,
    use_weights,
)
from tpuport.compilation.prepared_call import (
    PreparedCall,
    ProgramArguments,
    StaticPart,
)
from tpuport.compilation.programs.capture import capture
from tpuport.compilation.programs.flat_program import FlatProgram
from tpuport.compilation.programs.interrupted_caches import cleared_if_spoiled
from tpuport.compilation.programs.passes import Draft, Overwritable, run_passes
from tpuport.compilation.programs.program_inputs import ProgramInputs
from tpuport.compilation.programs.program_settings import current_surroundings
from tpuport.compilation.programs.traced_once import Retraced
from tpuport.compilation.recorded_programs import (
    NotRecorded,
    divide,
    recorded_tensors,
    refuse_gradients,
    run_backward,
)
from tpuport.compilation.results.call_results import (
    OutputAndWrites,
    collect_results,
    find_changed_caches,
)
from tpuport.compilation.results.state_writes import StateTrace, check_leaks
from tpuport.compilation.served_states import ServedStates
from tpuport.compilation.varying_numbers import NumbersChanged
from tpuport.compilation.warm_calls import WarmCalls
from tpuport.errors import PortError
from tpuport.internals.torch_internals import torch_pytree
from tpuport.libraries.library_classes import is_library_model
from tpuport.objects import pytrees
from tpuport.objects.traced_numbers import Guard, settled_numbers, traced_numbers

logger = logging.getLogger("tpuport")


# What is done with the program of a call: `use(program, arguments, call, key)`.
Use = Callable[[CallProgram, ProgramArguments, PreparedCall, Hashable], Any]


class _Done(NamedTuple):
    """A call that has run: its program, the arguments and the results of that."""

    program: CallProgram
    arguments: ProgramArguments
    call: PreparedCall
    results: list[Any]


class CompiledFunction:
    """What `tpuport.compile` returns: called like the original, with torch tensors on
    the host or on the device.

    Args:
        function: a ported model, a method of one, or a function that uses ported
            models.
        name: what logs call it; None for the function's own name.
        modules: the ported models that the function uses; None to look for them.
        scan_layers, traced, donate, check_indices, static: as in `compile`.

    Attributes:
        program: the programs underneath; `program.compilations` counts.
        scan_layers: as in `compile`; counts for programs that are made from then on.
        scanned, declined: lists of blocks in the program made last, that run in a loop
            and that do not.
    """

    def __init__(
        self,
        function: Callable,
        name: str | None = None,
        modules: Sequence[torch.nn.Module] | None = None,
        scan_layers: bool | None = None,
        traced: Sequence[str] = (),
        donate: str | Sequence[str] = (),
        check_indices: bool | None = None,
        static: str | Sequence[str] = (),
    ) -> None:
        if isinstance(function, CompiledFunction) or not callable(function):
            raise PortError(
                f"this is a {type(function).__name__}, which cannot be compiled",
                where="the first argument of compile",
                fix="give a ported model, a method of it, or a function that calls it",
            )
        pytrees.register()
        self._function = function
        self.scan_layers = scan_layers
        # A single name is one, and not its letters.
        donate = (donate,) if isinstance(donate, str) else tuple(donate)
        static = (static,) if isinstance(static, str) else tuple(static)
        self._preparation = CallPreparation(
            function, modules, tuple(traced), donate, static
        )
        self._numbers = self._preparation.numbers
        self.scanned: tuple[layers.ScannedBlocks, ...] = ()
        self.declined: tuple[layers.DeclinedBlocks, ...] = ()
        # What the code that was captured last changes.
        self._changed_caches: tuple[int, ...] = ()
        self._rotary_tables = rotary.ProgramTables()
        self._served_states = ServedStates()
        self._warm_calls = WarmCalls()
        self._guards_of_trace: tuple[Guard, ...] = ()
        self._backward: Any = None
        # Why the function cannot be traced while autograd records.
        self._unrecorded: Exception | None = None
        self._is_recording = False
        name = name or str(getattr(function, "__qualname__", type(function).__name__))
        self._decisions = ValueDecisions(name, self._run)
        self.program = FunctionPrograms(name, check_indices=check_indices)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled program. Tensors and modules' weights are arguments, caches
        are donated, the rest is static.

        Raises:
            PortError: an argument is neither a tensor nor hashable, a module's weights
                are not on the device, or the function reaches a model in a way that
                leaves its weights constants of the program.
            trace_errors.CannotTrace: the function's code cannot be traced; says where,
                and what to do.
        """
        if is_tracing():
            # A part of the program around it, whose state and weights it uses.
            return self._call_inside(args, kwargs)
        torch_transforms.refuse_transforms(self.program.name)
        output = self.run_warm(args, kwargs)
        if output is not None:
            return output[0]
        return self.run_prepared(args, kwargs)

    def run_prepared(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What the function returns for a call that is prepared first."""
        if self._unrecorded is None:
            self._is_recording = False
            try:
                return self._run_prepared(args, kwargs)
            except Exception as error:
                if not self._is_recording and not isinstance(error, NotRecorded):
                    raise
                self._unrecorded = error
        # Whoever only computes with the model needs no gradients.
        with torch.no_grad():
            output = self._run_prepared(args, kwargs)
        if torch.is_grad_enabled():
            refuse_gradients(output, self._unrecorded)
        return output

    def _run_prepared(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        done = self._call_program(self._run_program, args, kwargs)
        call = done.call
        if not is_prepared_by_patches(self._function):
            self._warm_calls.note(
                args, kwargs, done.program, done.arguments, call, self.scan_layers
            )
        call.retire_caches()
        output = self._finish(done)
        recorded = done.arguments.static.recorded
        if recorded is not None:
            flat: Any = done.program.flat
            flat.attach(output, done.results, list(map(call.tensor_at, recorded.slots)))
        return output

    def _finish(self, done: _Done) -> Any:
        call = done.call
        if self._preparation.donated:
            call.mark_donated(self._preparation.donated, self.program.name)
        # Not around the program, which jax may trace once more.
        with settled_numbers(call.numbers.values):
            result = done.program.result(done.results)
            if not isinstance(result, OutputAndWrites):
                return result
            return result.restore(call.divided, call.state, call.numbers.values)

    def run_warm(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Any] | None:
        """What the function returns, if nothing has to be prepared for a call."""
        return self._warm_calls.run(args, kwargs, self.scan_layers)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """jax.stages.Lowered for these arguments; its inputs are arrays alone."""
        program, arrays = self.program_of(*args, **kwargs)
        return program.lower(arrays)

    def program_of(self, *args: Any, **kwargs: Any) -> tuple[FlatProgram, list[Any]]:
        """The program for these arguments, and its inputs."""

        def use(
            program: CallProgram,
            arguments: ProgramArguments,
            call: PreparedCall,
            key: Hashable,
        ) -> tuple[FlatProgram, list[Any]]:
            return program.flat, program.arrays(arguments, call)

        return self._call_program(use, args, kwargs)

    @property
    def modules(self) -> list[torch.nn.Module]:
        """The ported models that the function reaches now."""
        with trace_lock:
            state = self._preparation.current_state(
                stacks_layers=bool(self.scan_layers)
            )
            return state.modules

    def _call_inside(self, args: tuple, kwargs: dict) -> Any:
        """Traced. Call the function itself, with its tensors on the device."""
        args, kwargs = prepare_arguments(self._function, args, kwargs)
        args, kwargs = torch_pytree.tree_map_only(
            torch.Tensor, put_on_device, (args, kwargs)
        )
        return self._function(*args, **kwargs)

    @cleared_if_spoiled()
    def _call_program(self, use: Use, args: tuple, kwargs: dict) -> Any:
        """What is done with the program for a call of the function."""
        args, kwargs = prepare_arguments(self._function, args, kwargs)
        with trace_errors.explained(self._function, catch=trace_errors.is_of_code):
            try:
                return self._use_program(use, args, kwargs)
            except Exception as error:
                if not trace_errors.asks_for_values(error):
                    raise
                owner = getattr(self._function, "__self__", self._function)
                is_of_library = is_library_model(owner)
                candidates = find_candidates(
                    self._prepare_call(args, kwargs).divided.named_tensors()
                )
                prepare_call = functools.partial(self._prepare_call, args, kwargs)
                # The user's own lines are for their author to decide.
                if (
                    is_of_library or is_raised_in_model_library(error)
                ) and self._decisions.compute_from_now_on(
                    prepare_call(), only_from_weights=True
                ):
                    return self._use_program(use, args, kwargs)
                needed = self._decisions.find_needed_inputs(candidates, prepare_call)
                if (
                    not needed
                    and is_of_library
                    and self._decisions.compute_from_now_on(prepare_call())
                ):
                    return self._use_program(use, args, kwargs)
                if not needed or not is_of_library:
                    # Own code may be meant for any values, so that its author decides.
                    advice = advise(self._function, needed or candidates.others)
                    with trace_errors.explained(
                        self._function,
                        catch=trace_errors.is_of_code,
                        alternative=advice,
                    ):
                        raise
                self._decisions.keep_on_host(needed)
            return self._use_program(use, args, kwargs)

    def _use_program(self, use: Use, args: tuple, kwargs: dict) -> Any:
        call = self._decisions.add_computed(self._prepare_call(args, kwargs))
        with randomness.call_generators(call.divided.generators):
            try:
                arguments, key = self._choose_program(call)
                for program in self.program.known(key):
                    with contextlib.suppress(Retraced):
                        return use(program, arguments, call, key)
                program = self._capture_program(arguments, call, key)
            except NumbersChanged:
                return self._use_program(use, args, kwargs)
            return use(program, arguments, call, key)

    def _run_program(
        self,
        program: CallProgram,
        arguments: ProgramArguments,
        call: PreparedCall,
        key: Hashable,
    ) -> _Done:
        call = call._replace(changed_caches=program.changed_caches)
        try:
            results = self._served_states.run(program, key, arguments, call)
        except FloatingPointError:
            # jax_debug_nans is on: the code itself, operation by operation, says where.
            self._run(*arguments[:-1], arguments.static)
            raise
        return _Done(program, arguments, call, results)

    def _capture_program(
        self, arguments: ProgramArguments, call: PreparedCall, key: Hashable
    ) -> CallProgram:
        """A new program.

        Raises:
            NumbersChanged: the call has other numbers among its arguments now.
        """
        inputs, static = ProgramInputs.of(*arguments[:-1]), arguments.static
        self._is_recording = static.recorded is not None

        def run(*arrays: Any) -> Any:
            results = self._run(*inputs.unflatten(arrays), static)
            return (results, self._backward[1]) if static.recorded else results

        arrays = inputs.flatten(*arguments[:-1])
        loops = (
            not static.recorded
            and self.scan_layers is not False
            and any(map(layers.stacked_lists, arguments.weights))
        )
        with (
            self._numbers.fixed_by_errors(call),
            layers.record_calls() if loops else contextlib.nullcontext() as blocks,
        ):
            captured = capture(
                run,
                arrays,
                self.program.name,
                checks_indices=self.program.checks_indices,
            )
        backward = None
        if static.recorded:
            count = len(jax.tree.leaves(captured.results[0]))
            captured, backward = divide(captured, self._backward[0], count)
        self._numbers.add_program(call, self._guards_of_trace)
        check_constants(self.program.name, list(captured.program.consts))
        given = static.layout.tensors_named(static.donated)
        overwritable = Overwritable(inputs, arrays, len(call.divided.arrays), given)
        draft = run_passes(
            Draft(
                captured,
                None
                if self.program.checks_indices or static.recorded
                else overwritable,
                blocks,
            )
        )
        if blocks is not None:
            self.scanned, self.declined = draft.scanned, draft.declined
        program = self.program.make(draft, arguments, self._changed_caches, backward)
        if self._served_states.look(key, program, arguments, call):
            self.program.forget_trace()
        self.program.add(key, program)
        self._is_recording = False
        return program

    def _choose_program(self, call: PreparedCall) -> tuple[ProgramArguments, Hashable]:
        """The arguments for the program whose comparisons of numbers have the outcomes
        of a call, with rotary tables, and its key.

        Raises:
            NumbersChanged: the call has other numbers among its arguments now.
        """
        branch = self._numbers.find_program(call) if call.numbers else 0
        arguments = call.arguments
        if branch:
            static = arguments.static._replace(branch=branch)
            arguments = arguments._replace(static=static)
        key = (arguments.static, *call.shapes_key, current_surroundings())
        if not self.program.knows(key) and self._numbers.learn(
            self._preparation.plain_numbers(call)
        ):
            raise NumbersChanged
        weights, tensors, donated, static = arguments
        run = functools.partial(self._run, static=static)
        weights = self._rotary_tables.add_to(
            weights, key, call.state.modules, run, tensors, donated
        )
        return arguments._replace(weights=weights), key

    def traced_parts(self, args: tuple, kwargs: dict) -> tuple[Callable, tuple]:
        """(the function to trace for a call, the arrays to trace it with), without
        rotary tables.
        """
        call = self._prepare_call(args, kwargs)
        weights, tensors, donated, static = call.arguments

        def run(weights: list, tensors: list, donated: list) -> Any:
            assert call.state is not None  # the key has only a weak reference to it
            return self._run(weights, tensors, donated, static)

        return run, (weights, tensors, donated)

    def _prepare_call(
        self, args: tuple, kwargs: dict, decisive: Sequence[str] = ()
    ) -> PreparedCall:
        """The call's arguments and state; the values of inputs with these names are a
        part of the program, too.
        """
        decided = self._decisions.inputs.union(decisive)
        call = self._preparation.prepare(
            args, kwargs, decided, stacks_layers=bool(self.scan_layers)
        )
        return call.recorded()

    def _run(
        self,
        weights: list,
        tensors: list,
        donated: list,
        static: StaticPart,
        answers: AskedValues | None = None,
    ) -> Any:
        """Traced. Put the arguments together again and call the function with the
        weights in place.

        Args:
            answers: to the code that asks for values; None for those of `static`.
        """
        if answers is None and static.decided is not None:
            answers = AskedValues([value.as_tensor() for value in static.decided])
        state = static.state.state
        assert state is not None  # the call that is being traced has it
        tensors, state_tensors, number_array = static.split_tensors(tensors)
        trace = StateTrace(state, state_tensors, static.shared)
        models: list[Any] = [reference() for reference, _ in static.models]
        with (
            traced_numbers(static.numbers.values) as numbers,
            use_weights(models, weights) as in_use,
            trace.recorded(in_use),
        ):
            rebuilt = static.layout.join(tensors, donated, state, static.donated)
            tensors_given = [rebuilt.leaves[leaf] for leaf in rebuilt.tensor_leaves]
            inputs = recorded_tensors(
                static.recorded,
                [weights_in_use.tensors for weights_in_use in in_use],
                [*tensors_given, *state.tensors],
            )
            on_host = bool(rebuilt.host_tensors) or answers is not None
            with (
                values_known(self._function, on_host=on_host),
                answers or contextlib.nullcontext(),
                CaughtErrors(),
                number_operators(numbers, static.numbers.paths, number_array),
            ):
                if answers is not None:
                    answers.ask(small_counts(weights))
                with gradients_recorded(bool(inputs)):
                    output = without_selections(
                        self._preparation.run_function(*rebuilt.args, **rebuilt.kwargs)
                    )
                    if inputs:
                        pytrees.register_used(output)
                        self._backward = run_backward(output, inputs)
            numbers.close()
            if numbers.fixed:
                raise NumbersFixed(frozenset(numbers.fixed))
            self._guards_of_trace = numbers.guards
            self._changed_caches = find_changed_caches(static.layout, donated, rebuilt)
            writes = [weights_in_use.find_writes() for weights_in_use in in_use]
            results = collect_results(output, rebuilt, writes, trace)
        if not state.is_current():
            check_leaks(self._preparation.make_state(static.layout))
        return results
