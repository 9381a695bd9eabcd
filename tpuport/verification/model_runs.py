"""The runs of a model that are compared: in torch, in float64, and compiled on the
device.
"""

import contextlib
import contextvars
import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from unittest import mock

import jax
import torch

from tpuport import checkpoint, compat
from tpuport.compat import autocast
from tpuport.compat.jaxprs import without_dead_code
from tpuport.compat.tracing import trace_lock
from tpuport.compilation import CompiledFunction, prepare_arguments
from tpuport.errors import PortError
from tpuport.objects.object_graph import Parts, unflatten
from tpuport.objects.state.remembered_results import tensors_forgotten
from tpuport.topology.advice.float32_products import (
    Float32Product,
    find_float32_products,
)
from tpuport.verification.answering import (
    DeviceRecorder,
    DrawRecorder,
    ExactRecorder,
    Refusals,
    TorchRecorder,
    widen_tensor,
)
from tpuport.verification.recording import (
    Answer,
    CallKey,
    ModuleCall,
    Recorder,
    Recording,
    named_tensors,
)
from tpuport.verification.rounding import RoundedRecorder

_Copied = TypeVar("_Copied")


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The inputs of a call of the model.

    Attributes:
        positional: in order.
        keywords: by name.
    """

    positional: tuple[Any, ...]
    keywords: dict[str, Any]

    @classmethod
    def of(cls, inputs: Any) -> "Arguments":
        """From a mapping of arguments by name, a tuple or list of positional ones, or a
        single argument.
        """
        match inputs:
            case Mapping():
                return cls((), dict(inputs))
            case tuple() | list():
                return cls(tuple(inputs), {})
        return cls((inputs,), {})

    def named(self) -> dict[str, Any]:
        """All arguments by name; positional ones have their number as name."""
        return {
            str(index): value for index, value in enumerate(self.positional)
        } | self.keywords

    def copy(self) -> "Arguments":
        """The same values, which a run may write to."""
        return _copy(self)

    def widened(self) -> "Arguments":
        """A copy with floating-point tensors in float64, those inside of the user's own
        objects too.
        """
        # Copied first: objects are changed in place.
        copied = self.copy()
        parts = Parts(caches_are_leaves=False)
        parts.add_root("arguments", (copied.positional, copied.keywords))
        graph = parts.graph()
        leaves = list(map(widen_tensor, graph.leaves))
        [widened], _ = unflatten(graph.structure, leaves, graph.objects)
        return Arguments(*widened)


def _copy(value: _Copied) -> _Copied:
    """A copy, of computed tensors without their history for gradients, which torch
    would not copy.
    """
    copy_leaf = torch.Tensor.__deepcopy__

    def copy_tensor(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        return copy_leaf(tensor if tensor.is_leaf else tensor.detach(), memo)

    with mock.patch.object(torch.Tensor, "__deepcopy__", copy_tensor):
        return copy.deepcopy(value)


def copy_model(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of a model in evaluation mode.

    Raises:
        PortError: it cannot be copied.
    """
    try:
        return _copy(model).eval()
    except Exception as error:
        raise PortError(
            f"the model cannot be copied: {type(error).__name__}: {error}",
            where=type(model).__name__,
            fix="let copy.deepcopy(model) work: check runs copies of it, in torch and on the device",
        ) from error


def refusing_signature(model: torch.nn.Module, arguments: Arguments) -> str:
    """The signature of a model's forward if it does not take these arguments; "" if it
    does.
    """
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*arguments.positional, **arguments.keywords)
    except TypeError:
        return str(signature)
    return ""


def refusals_of(model: torch.nn.Module, arguments: Arguments) -> Refusals:
    """What torch refuses when it runs a model that fails."""
    inputs = arguments.copy()
    refusals = Refusals((inputs.positional, inputs.keywords))
    with contextlib.suppress(Exception), torch.no_grad(), refusals:
        copy_model(model)(*inputs.positional, **inputs.keywords)
    return refusals


def run_torch(
    model: torch.nn.Module, arguments: Arguments, focus: ModuleCall | None = None
) -> Recording:
    """Run the model in torch on the host, where patches of libraries call the original
    functions.
    """
    return record_torch(model, arguments.copy(), focus)


def record_torch(
    model: torch.nn.Module, inputs: Arguments, focus: ModuleCall | None = None
) -> Recording:
    """As `run_torch`, with these very inputs, to which the model may write."""
    return _run_on_host(model, inputs, TorchRecorder(model, focus))


def run_exact(
    model: torch.nn.Module,
    arguments: Arguments,
    answers: dict[CallKey, Answer],
    focus: ModuleCall | None = None,
) -> Recording:
    """Run the model in torch in float64, with the branches and random numbers of a run
    in torch.

    Args:
        model: in float64 already.
        answers: from the run in torch.
    """
    return _run_on_host(
        model, arguments.widened(), ExactRecorder(model, answers, focus)
    )


def run_rounded(
    model: torch.nn.Module,
    arguments: Arguments,
    torch_run: Recording,
    exact_run: Recording,
    seed: int,
    focus: ModuleCall | None = None,
) -> Recording:
    """Run the model in float64 with arguments of operators that are rounded at random,
    as far as in torch.

    Args:
        model: in float64 already.
        torch_run, exact_run: with this call's answers and choices.
    """
    answers = exact_run.choices | torch_run.answers
    recorder = RoundedRecorder(model, answers, _dtypes_of(torch_run), seed, focus)
    return _run_on_host(model, arguments.widened(), recorder)


def _dtypes_of(run: Recording) -> dict[tuple[str, int, str], torch.dtype]:
    """The dtype of the first fractions that each line's calls give."""
    dtypes: dict[tuple[str, int, str], torch.dtype] = {}
    for event in run.events:
        if event.key is None:
            continue
        for note in event.outputs:
            if note.dtype.is_floating_point or note.dtype.is_complex:
                dtypes.setdefault(event.key[:3], note.dtype)
    return dtypes


@contextlib.contextmanager
def _as_on_device(model: torch.nn.Module) -> Iterator[None]:
    """Run a model in torch on the host with what it has on the device: no gradients, a
    GPU's autocast, and nothing that a function remembers of another run.
    """
    compat.environment()  # has the device's autocast
    with tensors_forgotten(model), autocast.host_takes_part(), torch.no_grad():
        yield


def _run_on_host(
    model: torch.nn.Module, inputs: Arguments, recorder: TorchRecorder | ExactRecorder
) -> Recording:
    with _as_on_device(model), recorder:
        model(*inputs.positional, **inputs.keywords)
    return recorder.recording


def run_device(
    model: torch.nn.Module,
    arguments: Arguments,
    answers: dict[CallKey, Answer],
    focus: ModuleCall | None = None,
) -> Recording:
    """Run the ported model compiled, with torch's answers where it cannot be traced;
    values are on the host.
    """
    [recording] = _run_recorded(
        model, arguments, lambda: DeviceRecorder(model, answers, focus), 1
    )
    return recording


def run_draws(
    model: torch.nn.Module,
    arguments: Arguments,
    answers: dict[CallKey, Answer],
    count: int,
) -> list[Recording]:
    """Call the ported model several times, compiled once; the recordings have the
    values of its random numbers.
    """
    return _run_recorded(model, arguments, lambda: DrawRecorder(model, answers), count)


@dataclasses.dataclass
class _RunInProgress:
    """The recorder of a compiled run, apart from the function that is compiled.

    A compiled function is compiled again if something that it reaches has changed,
    which a recording does.

    Attributes:
        recordings: of each trace: a function may be traced several
            times, and the last one's program runs.
    """

    make_recorder: Callable[[], Recorder]
    recordings: list[Recording] = dataclasses.field(default_factory=list)

    def start(self) -> Recorder:
        """Traced. The recorder of one more trace."""
        recorder = self.make_recorder()
        self.recordings.append(recorder.recording)
        return recorder


_run_in_progress: contextvars.ContextVar[_RunInProgress] = contextvars.ContextVar(
    "run in progress"
)


def _run_recorded(
    model: torch.nn.Module,
    arguments: Arguments,
    make_recorder: Callable[[], Recorder],
    count: int,
) -> list[Recording]:
    """Recordings of several calls of one program; if it fails, a single recording with
    the error.
    """
    compiled, recordings = _recorded_function(model, make_recorder)
    results: list[list[torch.Tensor]] = []
    try:
        for _ in range(count):
            inputs = arguments.copy()
            args, kwargs = prepare_arguments(model, inputs.positional, inputs.keywords)
            results.append(list(map(_on_host, compiled(*args, **kwargs))))
    except Exception as error:  # noqa: BLE001  whatever the model's code does when it is traced
        # Values of the trace have no numbers. Notes of dtypes remain.
        recording = max(recordings, key=_length, default=Recording())
        return [dataclasses.replace(recording, error=error, values=[])]
    return [dataclasses.replace(recordings[-1], values=values) for values in results]


def _on_host(value: Any) -> torch.Tensor:
    """A recorded value, which nobody writes to, on the host."""
    if isinstance(compat.as_jax(value), jax.Array):
        return compat.to_torch_unwritten(value)
    return value


def recorded_program(
    model: torch.nn.Module, arguments: Arguments, answers: dict[CallKey, Answer]
) -> tuple[CompiledFunction, Arguments, list[Recording]]:
    """What `run_device` compiles, the arguments of its call, and the recordings of its
    traces, of which there is none yet.
    """
    compiled, recordings = _recorded_function(
        model, lambda: DeviceRecorder(model, answers, None)
    )
    inputs = arguments.copy()
    prepared = prepare_arguments(model, inputs.positional, inputs.keywords)
    return compiled, Arguments(*prepared), recordings


def _recorded_function(
    model: torch.nn.Module, make_recorder: Callable[[], Recorder]
) -> tuple[CompiledFunction, list[Recording]]:
    """A compiled function that returns the values of a recording; and the recordings of
    its traces.
    """
    progress = _RunInProgress(make_recorder)
    # A context variable, and no closure: see _RunInProgress.
    _run_in_progress.set(progress)

    def run(*args: Any, **kwargs: Any) -> list[Any]:
        recorder = _run_in_progress.get().start()
        with recorder:
            model(*args, **kwargs)
        return recorder.recording.values

    name = f"check of {type(model).__name__}"
    return CompiledFunction(run, name, [model]), progress.recordings


def _length(recording: Recording) -> int:
    """How far a trace came. What tries whether known inputs would help may end at
    once.
    """
    return len(recording.events)


def widen_model(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of a model with parameters and buffers in float64."""
    # Module.to would leave complex buffers as they are.
    return copy_model(model)._apply(widen_tensor)


# Calls a model with arguments, which it may change, and returns what the model returns.
Caller = Callable[[Arguments], Any]


def torch_caller(model: torch.nn.Module) -> Caller:
    """Calls the model in torch."""

    def call(inputs: Arguments) -> Any:
        with _as_on_device(model):
            return model(*inputs.positional, **inputs.keywords)

    return call


def exact_caller(model: torch.nn.Module) -> Caller:
    """Calls a model that is in float64 and draws nothing, with arguments in float64."""

    def call(inputs: Arguments) -> Any:
        with _as_on_device(model), ExactRecorder(model, {}):
            return model(*inputs.positional, **inputs.keywords)

    return call


def compiled_caller(compiled: CompiledFunction) -> Caller:
    """Calls the compiled model."""
    return lambda inputs: compiled(*inputs.positional, **inputs.keywords)


def host_tensors(output: Any) -> list[torch.Tensor]:
    """The tensors of a result, on the host."""
    return [checkpoint.to_cpu(tensor) for _, tensor in named_tensors(output)]


def call_torch(model: torch.nn.Module, arguments: Arguments) -> list[torch.Tensor]:
    """The tensors of the result in torch."""
    return host_tensors(torch_caller(model)(arguments.copy()))


def call_exact(model: torch.nn.Module, arguments: Arguments) -> list[torch.Tensor]:
    """The tensors of the result in float64, of a model that draws nothing."""
    return host_tensors(exact_caller(model)(arguments.widened()))


def call_compiled(
    compiled: CompiledFunction, arguments: Arguments
) -> list[torch.Tensor]:
    """The tensors of the result of a compiled model, on the host."""
    return host_tensors(compiled_caller(compiled)(arguments.copy()))


def float32_products(
    compiled: CompiledFunction, arguments: Arguments
) -> tuple[Float32Product, ...]:
    """The products in float32 of a compiled model of 16 bits, by line."""
    inputs = arguments.copy()
    function, arrays = compiled.traced_parts(inputs.positional, inputs.keywords)
    # A call of the compiled function would take the lock itself; this only traces what
    # it would run.
    with trace_lock:
        return find_float32_products(
            without_dead_code(jax.make_jaxpr(function)(*arrays))
        )


def describe(tensor: torch.Tensor) -> str:
    """Dtype and shape: "float32[2,5]"."""
    sizes = ",".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')}[{sizes}]"
