"""The interpreter as a whole: calls and what is remembered of them, module-level names,
and the rules that listen.
"""

import ast
from typing import Any, Final, NamedTuple

from tpuport.lint.abstract_values import (
    BOOL,
    FALSE,
    NONE,
    STATIC,
    TRUE,
    UNKNOWN,
    External,
    Function,
    Instance,
    Sequence,
    Tensor,
    Value,
    class_of,
)
from tpuport.lint.events import Event, FunctionEntry
from tpuport.lint.gpu_packages import is_kernel
from tpuport.lint.interpreter import callables, control_flow, evaluation, execution
from tpuport.lint.interpreter.bound_arguments import (
    bound_values,
    completed_result,
    declared_values,
    promised_result,
)
from tpuport.lint.interpreter.call_record import Record
from tpuport.lint.interpreter.class_facts import MODEL_LIBRARIES, NOT_BUILT, Classes
from tpuport.lint.interpreter.compiled_methods import is_compiled_method
from tpuport.lint.interpreter.decorators import interpret_wrappers
from tpuport.lint.interpreter.frame import (
    Environment,
    Frame,
    set_receiver,
)
from tpuport.lint.interpreter.masked_reads import MaskedRead, asked_reads, start_read
from tpuport.lint.interpreter.object_state import changed_object, is_plain_object
from tpuport.lint.interpreter.parameters import annotation_value
from tpuport.lint.interpreter.python_builtins import is_builtin
from tpuport.lint.interpreter.recorder import CallMemory, Recorder
from tpuport.lint.interpreter.registries import filled
from tpuport.lint.interpreter.reported_findings import (
    Listeners,
    context_of,
    findings_of,
)
from tpuport.lint.joins import losses
from tpuport.lint.modules import FunctionInfo, ModuleInfo
from tpuport.lint.passed_arguments import Arguments
from tpuport.lint.patterns import matches_function
from tpuport.lint.project import Binding, Project, imported_name
from tpuport.lint.work import meter

# Calls deeper than this return what their annotations promise; no model calls that deep
# without recursion.
_DEPTH: Final = 40
# After so many different calls of one function, its declaration is interpreted instead
# of each further call.
_CALLS_PER_FUNCTION: Final = 8
# A nested function is called for each object anew, so calls of it are not remembered;
# deeper ones say nothing more.
_LEVELS: Final = 3
# What computes nothing: transformers registers hooks that keep outputs, on each module
# below, and writes files for debugging; diffusers warns.
_COMPUTES_NOTHING: Final = (
    "transformers.utils.output_capturing:maybe_install_capturing_hooks",
    "transformers.model_debugging_utils:model_addition_debugger_context",
    "diffusers.utils.deprecation_utils:deprecate",
)
_EXCEPTIONS: Final = ("Error", "Warning", "Exception", "Iteration", "Interrupt")


class _Activation(NamedTuple):
    """A function about to run, with values for its parameters; the other fields are
    those of its `Frame`.
    """

    function: Function
    values: Environment
    depth: int
    emitting: bool
    entry: bool = False
    building: Environment | None = None
    host: bool = False


class TracingInterpreter(Recorder):
    """Interprets functions and passes events to the rules."""

    expression_handlers = evaluation.HANDLERS | execution.EXPRESSION_HANDLERS
    statement_handlers = execution.STATEMENT_HANDLERS | control_flow.HANDLERS

    def __init__(self, project: Project, options: Any) -> None:
        super().__init__()
        self.project = project
        self.options = options
        self.classes = Classes(self)
        self._listeners = Listeners(options.rules)
        self._frames: list[Frame] = []
        self.route = []
        self._left_out: dict[FunctionInfo, bool] = {}
        self.changed_receiver = None
        self._has_masked_reads = False

    # --- calls ---

    def declared_parameters(
        self, info: FunctionInfo, receiver: Value | None
    ) -> Environment:
        """What the parameters of an entry point are by its definition."""
        return declared_values(self, Function(info, receiver), entry=True)

    def interpret_call(
        self, info: FunctionInfo, receiver: Value | None, values: Environment
    ) -> Record:
        """Interpret a function from which tracing starts, with these parameters."""
        self._trust(receiver)
        # Each call may interpret what it calls as often as any other.
        self._memory.variants.clear()
        record = self.start_recording()
        function = Function(info, receiver)
        self._call(_Activation(function, values, depth=0, emitting=True, entry=True))
        self.records.pop()
        return record

    def interpret_constructor(
        self, info: FunctionInfo, receiver: Value | None
    ) -> Record:
        """Interpret a constructor for what it demands of packages that need a GPU."""
        record = self.start_recording()
        function = Function(info, receiver)
        values = declared_values(self, function, entry=False)
        self.constructs = True
        self._run(_Activation(function, values, depth=1, emitting=False, building={}))
        self.constructs = False
        self.records.pop()
        return record

    def interpret_loop(self, info: FunctionInfo, receiver: Value | None) -> Record:
        """Interpret a function of the host, which is not traced, while the models that
        it calls are.
        """
        record = self.start_recording()
        function = Function(info, receiver)
        values = declared_values(self, function, entry=True)
        self._call(_Activation(function, values, depth=0, emitting=False, host=True))
        self.records.pop()
        return record

    def apply(
        self, frame: Frame, callee: Value, arguments: Arguments, node: ast.Call
    ) -> Value:
        return callables.apply(frame, callee, arguments, node)

    def call_declared(
        self, caller: Frame, function: Function, entry: bool = False
    ) -> Value:
        values = declared_values(self, function, entry)
        return self._call(self._called_from(caller, function, values))

    def call_function(
        self, caller: Frame, function: Function, arguments: Arguments
    ) -> Value:
        is_elsewhere = function.info.module is not caller.module
        if caller.host and is_elsewhere and not self._starts_trace(caller, function):
            # What a loop's file imports, a library's own loop for instance, calls
            # models in its own way.
            return promised_result(self, function.info)
        function, values = self._bind_arguments(function, arguments)
        activation = self._called_from(caller, function, values)
        if not caller.is_building(function.bound):
            return self._call(activation)
        # A constructor calls a method of its object.
        info = function.info
        is_base = info.module is not caller.module and not info.qualname.endswith(
            "__init__"
        )
        if is_base or (info.owner is not None and info.owner.node.name in NOT_BUILT):
            # What a base class of another file does after construction (weights, hooks)
            # sets no attribute we need.
            return promised_result(self, info)
        return self._run(activation._replace(building=caller.building))

    def _called_from(
        self, caller: Frame, function: Function, values: Environment
    ) -> _Activation:
        """A call; the host's loops call compiled models."""
        starts_trace = self._starts_trace(caller, function)
        if starts_trace:
            self._trust(function.bound)
        emitting = caller.emitting or starts_trace
        return _Activation(
            function,
            values,
            caller.depth + 1,
            emitting,
            host=caller.host and not starts_trace,
        )

    def _trust(self, model: Value | None) -> None:
        """Trust all code from now on if a trace starts with a library's model."""
        info = class_of(model)
        self.trusts_all = info is not None and self.classes.is_library_model(info)

    def _starts_trace(self, caller: Frame, function: Function) -> bool:
        """Whether a loop of the host calls a model's compiled method."""
        info = class_of(function.bound)
        is_compiled = caller.host and is_compiled_method(function.info.name)
        return is_compiled and info is not None and self.classes.is_module(info)

    def build(
        self,
        init: FunctionInfo,
        instance: Instance,
        attributes: Environment,
        arguments: Arguments | None = None,
        caller: Frame | None = None,
    ) -> None:
        function = Function(init, instance)
        if arguments is None or caller is None:
            activation = _Activation(
                function, declared_values(self, function, entry=False), 1, False
            )
        else:
            function, values = self._bind_arguments(function, arguments)
            activation = _Activation(
                function, values, caller.depth + 1, caller.emitting
            )
        self._run(activation._replace(building=attributes))

    def _call(self, activation: _Activation) -> Value:
        """Run a function, or take the result of an equal call."""
        function, values, depth, emitting, entry, _, host = activation
        if self._is_left_out(function.info) or is_kernel(function.info.decorators):
            return promised_result(self, function.info)
        closure = function.info.closure
        call = (function, emitting, entry, host, tuple(values.items()))
        key = (*call, id(closure), self.constructs, self.trusts_all)
        remembered = self._memory.calls.get(key)
        if remembered is None and not entry and self._shared.accepts(function, values):
            remembered = self._shared_record(key, activation)
        self.changed_receiver = None
        if remembered is not None:
            self.records[-1].absorb(remembered)
            self.changed_receiver = remembered.receiver
            return remembered.result
        # Recursion with equal arguments would never end; that of a nested function has
        # other arguments at each level.
        if (
            key in self._memory.running
            or depth > _DEPTH
            or self._is_deep_in(function.info)
        ):
            return self._returned_so_far(function.info)
        self._memory.running.add(key)
        record = self.start_recording()
        losses_before = losses.count
        try:
            record.result = self._run(activation)
        finally:
            self._memory.running.discard(key)
            record.lost |= losses.count > losses_before
            self.stop_recording()
        # A nested function's meaning depends on the frame around it, which changes.
        if closure is None:
            self._memory.calls[key] = record
        self.changed_receiver = record.receiver
        return record.result

    def _shared_record(self, key: Any, activation: _Activation) -> Record:
        """What a call results in that all files make alike; it is interpreted as if it
        were the first one.
        """
        shared = self._shared
        record = shared.get(key, self.route)
        if record is None:
            units, cuts = meter.units, meter.cuts
            memory, self._memory = self._memory, CallMemory()
            shared.is_running = True
            try:
                self._call(activation._replace(depth=1))
            finally:
                shared.is_running = False
                inner, self._memory = self._memory, memory
            record = inner.calls[key]
            if not shared.keeps(record):
                memory.calls |= inner.calls
            elif meter.cuts == cuts:
                shared.put(key, record, self.route, meter.units - units)
        self._memory.calls[key] = record
        return record

    def _is_deep_in(self, info: FunctionInfo) -> bool:
        """Whether a nested function has called itself several times."""
        return (
            info.closure is not None
            and sum(frame.info is info for frame in self._frames) >= _LEVELS
        )

    def _returned_so_far(self, info: FunctionInfo) -> Value:
        """What a recursive call returns: a tensor, if the call that is running would
        return one where it ends.
        """
        running = next(
            (frame for frame in reversed(self._frames) if frame.info is info), None
        )
        if running is not None and isinstance(running.returned, Tensor):
            return running.returned
        return promised_result(self, info)

    def _trusted_frame(self, module: ModuleInfo) -> Frame | None:
        """The frame that runs, if its code is trusted as that of libraries is."""
        is_trusted = self.trusts_all or module.top_package in MODEL_LIBRARIES
        # The scanner reports what nothing runs.
        return self._frames[-1] if is_trusted and self._frames else None

    def _is_left_out(self, info: FunctionInfo) -> bool:
        """Whether a patch replaces a function, so that nothing in it is traced, or it
        computes nothing.
        """
        if info not in self._left_out:
            self._left_out[info] = any(
                matches_function(pattern, info.module.path, info.qualname)
                for pattern in (*self.options.patched, *_COMPUTES_NOTHING)
            )
        return self._left_out[info]

    def _run(self, activation: _Activation) -> Value:
        """Run a function, or take what one of another package promises."""
        info = activation.function.info
        if not self._frames or not self.project.is_installed_elsewhere(
            info.module, self._frames[-1].module
        ):
            return self._run_body(activation)
        with meter.ending_call():
            return self._run_body(activation)
        return promised_result(self, info)

    def _run_body(self, activation: _Activation) -> Value:
        function, values, depth, emitting, entry, building, host = activation
        info = function.info
        if depth > _DEPTH:
            return promised_result(self, info)
        frame = Frame(self, info.module, info, info.closure, depth)
        frame.emitting, frame.entry, frame.building, frame.host = (
            emitting,
            entry,
            building,
            host,
        )
        frame.env = dict(values)
        set_receiver(frame, function, values)
        if (
            building is None
            and frame.parent is None
            and is_plain_object(self.classes, frame.receiver)
        ):
            frame.receivers = []
        record = self.records[-1]
        record.consulted.add(str(info.module.path))
        # Code that is only evaluated, a constructor's for instance, is not traced.
        if emitting:
            record.traced.add((info, class_of(function.bound)))
        self.route.append(info.qualname)
        self._frames.append(frame)
        try:
            frame.report(FunctionEntry(info.node, info, entry, values))
            result = self._result(frame, info)
            if frame.receivers:
                record.receiver = changed_object(frame.receiver, frame.receivers)
            return interpret_wrappers(frame, info, values, result)
        finally:
            self.route.pop()
            self._frames.pop()

    def _result(self, frame: Frame, info: FunctionInfo) -> Value:
        if isinstance(info.node, ast.Lambda):
            return frame.evaluate(info.node.body)
        # Control that reaches the end of a function returns None.
        if frame.execute(info.node.body):
            frame.add_returned(NONE)
            frame.add_end()
        if frame.yielded is not None:
            return Sequence("iterator", None, frame.yielded)
        if frame.returned is None:
            return promised_result(self, info)
        return completed_result(self, frame.returned, info)

    # --- parameters ---

    def _bind_arguments(
        self, function: Function, arguments: Arguments
    ) -> tuple[Function, Environment]:
        """A function and its parameters in a call; of one different call too many, by
        the declaration alone.
        """
        values = bound_values(self, function, arguments)
        calls = self._memory.variants[function.info]
        call = (function, tuple(values.items()))
        if (
            call in calls
            or len(calls) < _CALLS_PER_FUNCTION
            or function.info.closure is not None
        ):
            calls.add(call)
            return function, values
        if is_plain_object(self.classes, function.bound):
            # Each state of an object would be another call.
            function = Function(function.info, Instance(class_of(function.bound)))
        return function, bound_values(
            self, function, Arguments([], {}, is_counted=False)
        )

    # --- names ---

    def annotation(self, node: ast.expr | None, module: ModuleInfo) -> Value:
        if node is None:
            return UNKNOWN
        if node not in module.annotations:
            # A class may be annotated with itself.
            module.annotations[node] = UNKNOWN
            module.annotations[node] = annotation_value(self, node, module)
        return module.annotations[node]

    def module_expression(
        self, module: ModuleInfo, node: ast.expr, receiver: Instance | None = None
    ) -> Value:
        # Most are defaults of parameters.
        if isinstance(node, ast.Constant):
            return evaluation.constant_value(node.value)
        frame = Frame(self, module)
        if receiver is not None:
            frame.env["self"] = receiver
        return frame.evaluate(node)

    def global_name(self, module: ModuleInfo, name: str) -> Value:
        if name not in module.values:
            # Modules may import each other's names in a circle, and then it is this
            # that they find.
            module.values[name] = imported_name(module, name)
            module.values[name] = self._resolve_name(module, name)
        return module.values[name]

    def _resolve_name(self, module: ModuleInfo, name: str) -> Value:
        bound = self.project.lookup(module, name)
        if isinstance(bound, ast.expr):
            value = filled(self, module, name, self.module_expression(module, bound))
            # A module's flag may be set by whoever imports the module, but no package
            # is installed by that.
            is_open = value in (TRUE, FALSE) and name not in module.unavailable
            return BOOL if is_open else value
        if bound is not None:
            return self.resolve_binding(bound)
        if is_builtin(name):
            return External(f"builtins.{name}")
        if name.startswith("__") or name.endswith(_EXCEPTIONS):
            return STATIC
        return UNKNOWN

    def resolve_binding(self, value: Value) -> Value:
        if isinstance(value, Binding):
            return self.global_name(value.module, value.name)
        return value

    # --- rules ---

    def report_read(self, read: MaskedRead) -> None:
        # An expression may be evaluated once more, without events.
        if self._frames[-1].emitting:
            self.records[-1].ask(read)

    def report(
        self, event: Event, module: ModuleInfo, function: str
    ) -> MaskedRead | None:
        if self._has_masked_reads:
            for read in asked_reads(event):
                self.report_read(read)
        listeners = self._listeners.of(event)
        if not listeners:
            return None
        context = context_of(module, function, self.options)
        trusted = self._trusted_frame(module)
        found = findings_of(event, listeners, context, module, self.route, trusted)
        findings = tuple(found)
        read = start_read(event, findings) if findings and trusted else None
        if read is not None:
            self._has_masked_reads = True
            self.records[-1].reads.add(read)
            return read
        for finding in findings:
            self.records[-1].add(finding.key, finding)
        return None
