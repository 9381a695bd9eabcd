"""Where a run on the device leaves torch's: the first module, then the first operator
in it.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from typing import Final

import torch

from tpuport.trace_errors import Source
from tpuport.verification import progress
from tpuport.verification.bounds import Deviation, deviation, same_dtype
from tpuport.verification.recording import Event, ModuleCall, Recording, TensorNote
from tpuport.verification.ties import Choice, Tie, find_tie

# Stands in a mismatch that is about a dtype alone, and not about values.
_NO_DEVIATION: Final = Deviation(False, (), "", "", "", 0.0, 0.0)
# Stands for an event of torch's that another run does not have.
_NO_EVENT: Final = Event("op", ModuleCall("", 0), "", None, (), ())
# Dtypes on the device and in torch, of code that asks for 64 bits a number, which a TPU
# does not have.
FLOAT64_LOST: Final = {
    (torch.float32, torch.float64),
    (torch.complex64, torch.complex128),
}


@dataclasses.dataclass(frozen=True)
class Runs:
    """The recordings of one call, with the same answers and the same random numbers.

    Attributes:
        device: compiled on the device.
        torch: in torch on the host.
        exact: in float64; None if the model does not run in float64.
        rounded: in float64 with arguments that are rounded at random; none as long as
            nothing differs.
    """

    device: Recording
    torch: Recording
    exact: Recording | None
    rounded: tuple[Recording, ...] = ()


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """A result that differs from torch's, and where.

    Attributes:
        call: the call of the module whose own code computes the result.
        operator: its name, or "" if only the module is known.
        line: of the model's code; None if it is not known.
        path: where the tensor is among the results.
        dtypes: on the device and in torch.
        is_replaced: whether tpuport runs other code there than torch.
        is_added: whether only the device runs this operator.
        in_cpu_region: whether `torch.autocast("cpu")` surrounds the line, which leaves
            the device alone.
        tie: if the operator has only chosen others of equal values than torch.
    """

    call: ModuleCall
    operator: str
    line: Source | None
    path: str
    dtypes: tuple[torch.dtype, torch.dtype]
    deviation: Deviation
    is_replaced: bool = False
    is_added: bool = False
    in_cpu_region: bool = False
    tie: Tie | None = None


@dataclasses.dataclass(frozen=True)
class _Match:
    """The same event in the three runs; `_NO_EVENT` where a run does not have it."""

    torch: Event
    device: Event
    exact: Event
    rounded: tuple[Event, ...] = ()

    def inputs(self) -> "_MatchedNotes":
        """The tensors that the module or operator was given."""
        return _MatchedNotes(
            self.torch.inputs,
            _by_path(self.device.inputs),
            _by_path(self.exact.inputs),
            [_by_path(event.inputs) for event in self.rounded],
        )

    def outputs(self) -> "_MatchedNotes":
        """The tensors that it returned."""
        return _MatchedNotes(
            self.torch.outputs,
            _by_path(self.device.outputs),
            _by_path(self.exact.outputs),
            [_by_path(event.outputs) for event in self.rounded],
        )


@dataclasses.dataclass(frozen=True)
class _MatchedNotes:
    """The tensors on one side of an event: torch's in order, and the others by path."""

    torch: Sequence[TensorNote]
    device: dict[str, TensorNote]
    exact: dict[str, TensorNote]
    rounded: Sequence[dict[str, TensorNote]]

    def pairs(self) -> Iterator[tuple[TensorNote, TensorNote]]:
        """The tensors that both the device and torch have, the device's first."""
        return (
            (self.device[note.path], note)
            for note in self.torch
            if note.path in self.device
        )


def _by_path(notes: Sequence[TensorNote]) -> dict[str, TensorNote]:
    return {note.path: note for note in notes}


def first_module(runs: Runs) -> Mismatch | None:
    """The first call of a module whose own code gives a result outside of the bound.

    In the order of time: a module that is called with a wrong argument is not to blame,
    but the one that calls it is.
    """
    device_events = _module_events(runs.device)
    exact_events = _module_events(runs.exact or Recording())
    rounded_events = list(map(_module_events, runs.rounded))
    # Calls that are under way, the innermost last.
    callers: list[ModuleCall] = []
    for step, event in _module_events(runs.torch).items():
        match = _Match(
            event,
            device_events.get(step, _NO_EVENT),
            exact_events.get(step, _NO_EVENT),
            tuple(events.get(step, _NO_EVENT) for events in rounded_events),
        )
        if event.kind == "enter":
            # Whoever calls a module has computed its arguments; the model itself has no
            # caller.
            blamed = callers[-1] if callers else event.call
            callers.append(event.call)
            progress.tell("comparing", event.call.name)
            mismatch = _first_difference(runs, match.inputs(), event, blamed)
        else:
            mismatch = _first_difference(runs, match.outputs(), event, callers.pop())
        if mismatch is not None:
            return mismatch
    return None


def _module_events(recording: Recording) -> dict[tuple[str, ModuleCall], Event]:
    """Entries into modules and exits from them, in order."""
    return {
        (event.kind, event.call): event
        for event in recording.events
        if event.kind != "op"
    }


def _differs(difference: Deviation, dtypes: tuple[torch.dtype, torch.dtype]) -> bool:
    return not difference.is_rounding


def _is_narrowed(
    difference: Deviation, dtypes: tuple[torch.dtype, torch.dtype]
) -> bool:
    return dtypes in FLOAT64_LOST


def _first_difference(
    runs: Runs,
    notes: _MatchedNotes,
    event: Event,
    blamed: ModuleCall,
    is_sought: Callable[[Deviation, tuple[torch.dtype, torch.dtype]], bool] = _differs,
) -> Mismatch | None:
    """The first tensor of an event that is outside of the bound."""
    for device_note, note in notes.pairs():
        # The value of a tensor inside of a loop never leaves the loop.
        if device_note.value is None:
            continue
        # tpuport gives some masks another form. What is computed with them is compared.
        if event.kind == "enter" and _form(device_note) != _form(note):
            continue
        rounded = [
            _exact_value(run, found.get(note.path))
            for run, found in zip(runs.rounded, notes.rounded, strict=True)
        ]
        difference = deviation(
            _value(runs.device, device_note),
            _value(runs.torch, note),
            _exact_value(runs.exact, notes.exact.get(note.path)),
            [value for value in rounded if value is not None],
        )
        dtypes = device_note.dtype, note.dtype
        if difference is not None and is_sought(difference, dtypes):
            return Mismatch(
                blamed, event.operator, event.line, note.path, dtypes, difference
            )
    return None


def _form(note: TensorNote) -> tuple[tuple[int, ...], bool]:
    """What tells the form of a mask: its shape, and whether it is boolean or added to
    scores.
    """
    return note.shape, note.dtype == torch.bool


def _value(recording: Recording, note: TensorNote) -> torch.Tensor:
    assert note.value is not None
    return recording.values[note.value]


def _exact_value(
    recording: Recording | None, note: TensorNote | None
) -> torch.Tensor | None:
    if recording is None or note is None:
        return None
    return _value(recording, note)


def first_operator(runs: Runs, call: ModuleCall) -> Mismatch | None:
    """The first operator of a module's own code that gives a result outside of the
    bound, from runs that kept those.

    If its arguments are outside already, they come from code that only torch runs:
    tpuport has replaced it, and the last line of it is to blame. Or from code that only
    the device runs, such as a branch on the device's type: the first line of it is. If
    torch computes it in float64, the first line that rounds to float32 is to blame, by
    however little.
    """
    replaced: Event | None = None
    narrowed: Mismatch | None = None
    matches = _operator_matches(runs, call)
    added = _added_operators(runs.device, call, matches)
    for match in matches:
        event = match.torch
        if match.device is _NO_EVENT:
            replaced = event
            continue
        mismatch = _first_difference(runs, match.inputs(), event, call)
        if mismatch is not None and replaced is not None:
            return dataclasses.replace(
                mismatch,
                operator=replaced.operator,
                line=replaced.line,
                is_replaced=True,
            )
        if mismatch is not None and id(match.device) in added:
            event = added[id(match.device)]
            return dataclasses.replace(
                mismatch, operator=event.operator, line=event.line, is_added=True
            )
        if mismatch is not None:
            return mismatch
        outputs = match.outputs()
        narrowed = narrowed or _first_difference(
            runs, outputs, event, call, _is_narrowed
        )
        mismatch = _first_difference(runs, outputs, event, call)
        if mismatch is not None and mismatch.dtypes in FLOAT64_LOST:
            return narrowed
        if mismatch is not None:
            return dataclasses.replace(mismatch, tie=_find_tie(runs, match))
    return None


def _added_operators(
    device: Recording, call: ModuleCall, matches: Sequence[_Match]
) -> dict[int, Event]:
    """By the id of an operator that torch runs too, the first one in front of it that
    only the device runs.
    """
    matched = {id(match.device) for match in matches}
    added: dict[int, Event] = {}
    first: Event | None = None
    for event in _operators(device, call):
        if id(event) not in matched:
            first = first or event
            continue
        if first is not None:
            added[id(event)] = first
        first = None
    return added


def _find_tie(runs: Runs, match: _Match) -> Tie | None:
    """Whether both runs have chosen equal values; None if they have not."""
    event = match.torch
    if event.is_stable or not event.inputs or event.key is None:
        return None
    inputs, outputs = match.inputs(), match.outputs()
    # What is chosen from is the first argument.
    source = inputs.torch[0]
    notes = [source, *outputs.torch]
    device_notes = [
        inputs.device.get(source.path),
        *(outputs.device.get(note.path) for note in outputs.torch),
    ]
    theirs = Choice.of([_value(runs.torch, note) for note in notes])
    ours = Choice.of(
        [_value(runs.device, note) for note in device_notes if note is not None]
    )
    exact = _exact_value(runs.exact, inputs.exact.get(source.path))
    return find_tie(event.operator, event.key, theirs, ours, exact)


def _operator_matches(runs: Runs, call: ModuleCall) -> list[_Match]:
    """torch's operators in a module's own code, each with those of the other runs."""
    events = _operators(runs.torch, call)
    device = _align(events, _operators(runs.device, call))
    exact = _align(events, _operators(runs.exact or Recording(), call))
    rounded = [_align(events, _operators(run, call)) for run in runs.rounded]
    of_each = list(zip(*rounded, strict=True)) or [()] * len(events)
    return list(map(_Match, events, device, exact, of_each))


def _operators(recording: Recording, call: ModuleCall) -> list[Event]:
    return [
        event for event in recording.events if event.kind == "op" and event.call == call
    ]


def _align(torch_events: Sequence[Event], others: Sequence[Event]) -> list[Event]:
    """For each of torch's operators the one of another run at the same line and of the
    same name, in order.
    """
    # autojunk would ignore the operators that occur most often.
    matcher = difflib.SequenceMatcher(
        None,
        list(map(_line_and_operator, torch_events)),
        list(map(_line_and_operator, others)),
        autojunk=False,
    )
    aligned = [_NO_EVENT] * len(torch_events)
    # In order, so that the second call on a line is never taken for the first.
    for start, other_start, length in matcher.get_matching_blocks():
        aligned[start : start + length] = others[other_start : other_start + length]
    return aligned


def _line_and_operator(event: Event) -> tuple[str, int, str]:
    line = event.line or Source("", 0, "")
    return line.file, line.line, event.operator


def dtype_differences(runs: Runs) -> list[Mismatch]:
    """Operators that give another dtype than in torch for arguments of the same dtypes,
    one for each line.
    """
    mismatches: dict[tuple[str, int, str], Mismatch] = {}
    for call in dict.fromkeys(
        event.call for event in runs.torch.events if event.kind == "op"
    ):
        for match in _operator_matches(runs, call):
            # An operator that was given another dtype is not to blame; the one that
            # gave it is.
            if not all(starmap(same_dtype, _dtypes(match.inputs()))):
                continue
            event = match.torch
            for device_note, note in match.outputs().pairs():
                if not same_dtype(device_note.dtype, note.dtype):
                    dtypes = device_note.dtype, note.dtype
                    mismatch = Mismatch(
                        call,
                        event.operator,
                        event.line,
                        note.path,
                        dtypes,
                        _NO_DEVIATION,
                        in_cpu_region=match.device.in_cpu_region,
                    )
                    mismatches.setdefault(_line_and_operator(event), mismatch)
    return list(mismatches.values())


def _dtypes(notes: _MatchedNotes) -> Iterator[tuple[torch.dtype, torch.dtype]]:
    return ((device_note.dtype, note.dtype) for device_note, note in notes.pairs())


def forward_line(model: torch.nn.Module, call: ModuleCall) -> Source | None:
    """Where the forward of a called module begins."""
    function = inspect.unwrap(type(model.get_submodule(call.name)).forward)
    code = getattr(function, "__code__", None)
    return None if code is None else Source.start_of(code)
