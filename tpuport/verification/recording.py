"""One run of a model, written down: what each module was given and returned, and each
operator with its line.

The same recorder runs in torch on the host and inside of a trace on the device, so that
two runs can be compared event by event. A run in torch also notes the results of calls
that read values, give shapes that depend on values, or draw random numbers; runs on the
device and in float64 take those results as answers, and so follow the same path.
"""

import dataclasses
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from tpuport.internals.torch_internals import without_torch_functions
from tpuport.trace_errors import Source
from tpuport.trace_errors.libraries import Owner, owner_of
from tpuport.verification import progress
from tpuport.verification.host_draws import SameHostDraws


class ModuleCall(NamedTuple):
    """A call of a module in a run: its name in the model ("" for the model itself), and
    which of its calls, from 0.
    """

    name: str
    number: int


class TensorNote(NamedTuple):
    """A tensor in a run.

    Attributes:
        path: where it is among the arguments or results, such as "0" or
            "hidden_states".
        value: its index in the values of the run; None if they were not kept.
    """

    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    value: int | None


class Event(NamedTuple):
    """A module is called ("enter"), returns ("exit"), or an operator ran in its own
    code ("op").

    Attributes:
        call: the call of the module.
        line: of the model's code; None if only a library's is on the way, and for
            modules.
        operator: its name; "" for modules.
        key: of the operator's call; None for modules.
        is_stable: whether it was asked for the order of equal values:
            `sort(stable=True)`.
        in_cpu_region: whether it ran under `torch.autocast("cpu")`.
    """

    kind: Literal["enter", "exit", "op"]
    call: ModuleCall
    operator: str
    line: Source | None
    inputs: tuple[TensorNote, ...]
    outputs: tuple[TensorNote, ...]
    key: "CallKey | None" = None
    is_stable: bool = False
    in_cpu_region: bool = False


class CallKey(NamedTuple):
    """A call of a function of torch: the line of the model, the name, and which of the
    calls there, from 0.
    """

    file: str
    line: int
    function: str
    number: int


class Answer(NamedTuple):
    """What a call returned in torch that a trace cannot know, must not draw again, or
    may choose otherwise.

    Attributes:
        result: all of it, if the call reads values or draws.
        is_draw: whether it draws random numbers.
        indices: of a call that chooses among equal values, for each tensor that it
            returns torch's indices, or None for a tensor of values; None for all other
            calls.
    """

    result: Any
    is_draw: bool
    indices: "tuple[torch.Tensor | None, ...] | None" = None


@dataclasses.dataclass
class Recording:
    """What happened in a run.

    Attributes:
        events: in order; the last is the exit of the model itself.
        values: those of the tensors that were kept.
        answers: in a run of torch, the results of calls that read values or drew random
            numbers.
        unanswerable: in a run on the device, the errors of calls that cannot be traced,
            and were answered instead.
        error: what ended the run before its time; events go up to there, and there are
            no values.
        host_draws: in a run of torch, the lines that draw numbers of Python or NumPy.
        choices: in a run in float64, the indices, masks and other whole numbers that
            calls gave, as an answer has them.
    """

    events: list[Event] = dataclasses.field(default_factory=list)
    values: list[Any] = dataclasses.field(default_factory=list)
    answers: dict[CallKey, Answer] = dataclasses.field(default_factory=dict)
    unanswerable: dict[CallKey, Exception] = dataclasses.field(default_factory=dict)
    error: Exception | None = None
    host_draws: list[Source] = dataclasses.field(default_factory=list)
    choices: dict[CallKey, Answer] = dataclasses.field(default_factory=dict)

    def keep_results(self) -> None:
        """Forget all values but those of the model's own result."""
        if not self.values or not self.events:
            return
        # The last event of a complete run is the exit of the model itself.
        kept = {note.value for note in self.events[-1].outputs}
        self.values = [
            value if index in kept else None for index, value in enumerate(self.values)
        ]


def named_tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in arguments or results with their paths; those inside of caches and
    other objects are left out.
    """
    match value:
        case torch.Tensor():
            yield path, value
        case Mapping():
            for key, item in value.items():
                yield from named_tensors(item, _join(path, str(key)))
        case list() | tuple():
            for index, item in enumerate(value):
                yield from named_tensors(item, _join(path, str(index)))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


class Recorder(TorchFunctionMode):
    """Records a run of a model: enter it around the call.

    Args:
        model: whose modules are watched.
        focus: keep the values of operators in this call alone; None keeps those of
            modules.
        keep: makes what is kept of a tensor, which may be written to afterwards; it
            returns None to keep nothing.
        is_kept: whether what was kept of a tensor before is still what it has. Most of
            what a module is given another one has returned, and is kept once.
    """

    # For a progress line.
    activity = "running"

    def __init__(
        self,
        model: torch.nn.Module,
        focus: ModuleCall | None,
        keep: Callable[[torch.Tensor], Any],
        is_kept: Callable[[Any, torch.Tensor], bool],
    ) -> None:
        super().__init__()
        self.recording = Recording()
        self._model = model
        self._focus = focus
        self._keep = keep
        self._is_kept = is_kept
        # By the id of a tensor: the tensor as long as it lives, and its index.
        self._indices: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._calls: list[ModuleCall] = []
        self._module_counts: Counter[str] = Counter()
        self._call_counts: Counter[tuple[str, int, str]] = Counter()
        self._hooks: list[Any] = []
        self._caller: FrameType | None = None
        self._same_host_draws = SameHostDraws()

    def __enter__(self) -> Any:
        self._same_host_draws.__enter__()
        # Lines of whoever calls the model are not the model's.
        self._caller = sys._getframe(1)
        for name, module in self._model.named_modules():
            # They run after the module's own hooks, whose changes are part of what it
            # is given and returns.
            self._hooks += [
                module.register_forward_pre_hook(
                    self._enter_hook(name), with_kwargs=True
                ),
                module.register_forward_hook(self._exit_hook()),
            ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._same_host_draws.__exit__(*error)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._caller = None

    def _enter_hook(self, name: str) -> Callable[..., None]:
        def note_call(
            module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]
        ) -> None:
            progress.tell(self.activity, name)
            call = ModuleCall(name, self._module_counts[name])
            self._module_counts[name] += 1
            self._calls.append(call)
            positional = {str(index): argument for index, argument in enumerate(args)}
            notes = self._notes(positional | kwargs, keeps_values=self._focus is None)
            self.recording.events.append(Event("enter", call, "", None, notes, ()))

        return note_call

    def _exit_hook(self) -> Callable[..., None]:
        def note_result(module: torch.nn.Module, args: tuple, output: Any) -> None:
            call = self._calls.pop()
            notes = self._notes(output, keeps_values=self._focus is None)
            self.recording.events.append(Event("exit", call, "", None, (), notes))

        return note_result

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        # The shape of a tensor, its dtype and other properties are not operators.
        if name in ("__get__", "__set__"):
            return func(*args, **kwargs)
        frame = self._model_frame()
        key = self._key_of(frame, name)
        # Hooks of the model itself run before its first event.
        call = self._calls[-1] if self._calls else ModuleCall("", 0)
        keeps_values = self.keeps_operator(call, key)
        # Before the call, which may write to its arguments.
        inputs = self._notes((args, kwargs), keeps_values=keeps_values)
        result = self.call(func, args, kwargs, key)
        outputs = self._notes(result, keeps_values=keeps_values)
        if outputs:
            event = Event("op", call, name, _source(frame), inputs, outputs, key)
            self.recording.events.append(
                event._replace(
                    is_stable=bool(kwargs.get("stable")),
                    in_cpu_region=torch.is_autocast_enabled("cpu"),
                )
            )
        return result

    def keeps_operator(self, call: ModuleCall, key: CallKey) -> bool:
        """Whether to keep the values of an operator in this call of a module."""
        return call == self._focus

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any], key: CallKey) -> Any:
        """Call a function of torch that the model asks for."""
        return func(*args, **kwargs)

    def _model_frame(self) -> FrameType | None:
        """The innermost call of the model's code that is under way; a library's of
        models if there is none.
        """
        fallback = None
        # torch tells a mode which function is called, but not from where.
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self._caller:
            owner = owner_of(
                frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
            )
            if owner == Owner.MODEL:
                return frame
            if owner == Owner.MODEL_LIBRARY:
                fallback = fallback or frame
            frame = frame.f_back
        return fallback

    def _key_of(self, frame: FrameType | None, name: str) -> CallKey:
        line_and_name = ("", 0, name)
        if frame is not None:
            line_and_name = (frame.f_code.co_filename, frame.f_lineno, name)
        # The same line runs again in a loop, and in another block.
        number = self._call_counts[line_and_name]
        self._call_counts[line_and_name] += 1
        return CallKey(*line_and_name, number)

    def _notes(self, value: Any, *, keeps_values: bool) -> tuple[TensorNote, ...]:
        # Asking a tensor for its shape, or copying it, would call this mode again.
        with without_torch_functions():
            return tuple(
                self._note(path, tensor, keeps_values)
                for path, tensor in named_tensors(value)
            )

    def _note(self, path: str, tensor: torch.Tensor, keeps_value: bool) -> TensorNote:
        index = None
        if keeps_value:
            index = self._store(tensor)
        return TensorNote(path, tensor.dtype, tuple(tensor.shape), index)

    def _store(self, tensor: torch.Tensor) -> int | None:
        """The index of a tensor's value among those of the run; None if there is
        nothing to keep.
        """
        values = self.recording.values
        if id(tensor) in self._indices:
            known, index = self._indices[id(tensor)]
            if known() is tensor and self._is_kept(values[index], tensor):
                return index
        value = self._keep(tensor)
        if value is None:
            return None
        values.append(value)
        self._indices[id(tensor)] = (weakref.ref(tensor), len(values) - 1)
        return len(values) - 1


def _source(frame: FrameType | None) -> Source | None:
    if frame is None:
        return None
    return Source.read(
        frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname
    )
