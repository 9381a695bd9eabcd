"""Where a run on the device leaves torch's: the first module, then the first operator in it."""

import dataclasses
import difflib
import inspect
import linecache
from collections.abc import Iterator, Sequence

import torch

from tpuport.trace_errors import Source
from tpuport.verification.bounds import Deviation, deviation, same_dtype
from tpuport.verification.recording import Event, ModuleCall, Recording, TensorNote


@dataclasses.dataclass(frozen=True)
class Runs:
    """The recordings of one call: on the device, in torch, and in float64, which may have failed."""

    device: Recording
    torch: Recording
    exact: Recording | None


@dataclasses.dataclass(frozen=True)
class Place:
    """Where results differ.

    Attributes:
        call: of the module whose own code computes the result.
        operator: its name, or "" if only the module is known.
        line: of the model's code; None if it is not known.
        path: of the tensor among the results.
        dtypes: on the device and in torch.
        is_replaced: whether tpuport runs other code there than torch.
    """

    call: ModuleCall
    operator: str
    line: Source | None
    path: str
    dtypes: tuple[torch.dtype, torch.dtype]
    deviation: Deviation
    is_replaced: bool = False


def first_module(runs: Runs) -> Place | None:
    """The first call of a module whose own code gives a result outside of the bound.

    In the order of time: a module that is called with a wrong argument is not to blame, but the one that calls it is.
    """
    device, exact = _by_call(runs.device), _by_call(runs.exact)
    callers: list[ModuleCall] = []
    for event in _module_events(runs.torch):
        if event.kind == "enter":
            blamed = callers[-1] if callers else event.call
            callers.append(event.call)
        else:
            blamed = callers.pop()
        ours = device.get((event.kind, event.call))
        if ours is None:
            continue
        place = _compare_event(runs, ours, event, exact.get((event.kind, event.call)), blamed)
        if place is not None:
            return place
    return None


def _module_events(recording: Recording) -> Iterator[Event]:
    return (event for event in recording.events if event.kind != "op")


def _by_call(recording: Recording | None) -> dict[tuple[str, ModuleCall], Event]:
    if recording is None:
        return {}
    return {(event.kind, event.call): event for event in _module_events(recording)}


def _compare_event(
    runs: Runs, ours: Event, theirs: Event, exact: Event | None, blamed: ModuleCall
) -> Place | None:
    """The first tensor of an event that is outside of the bound."""
    attribute = "inputs" if theirs.kind == "enter" else "outputs"
    return _compare_notes(
        runs,
        getattr(ours, attribute),
        getattr(theirs, attribute),
        getattr(exact, attribute, ()),
        theirs,
        blamed,
    )


def _compare_notes(
    runs: Runs,
    ours: Sequence[TensorNote],
    theirs: Sequence[TensorNote],
    exact: Sequence[TensorNote],
    event: Event,
    blamed: ModuleCall,
) -> Place | None:
    ours_by_path = {note.path: note for note in ours}
    exact_by_path = {note.path: note for note in exact}
    for note in theirs:
        our_note, exact_note = ours_by_path.get(note.path), exact_by_path.get(note.path)
        # tpuport gives some masks another form: what is computed with them is compared.
        if (
            our_note is None
            or our_note.value is None
            or (event.kind == "enter" and our_note.shape != note.shape)
        ):
            continue
        found = deviation(
            _value(runs.device, our_note), _value(runs.torch, note), _optional_value(runs.exact, exact_note)
        )
        if found is not None and not found.is_rounding:
            dtypes = our_note.dtype, note.dtype
            return Place(blamed, event.operator, event.line, note.path, dtypes, found)
    return None


def _value(recording: Recording, note: TensorNote) -> torch.Tensor:
    assert note.value is not None
    return recording.values[note.value]


def _optional_value(recording: Recording | None, note: TensorNote | None) -> torch.Tensor | None:
    if recording is None or note is None:
        return None
    return _value(recording, note)


def first_operator(runs: Runs, call: ModuleCall) -> Place | None:
    """The first operator of a module's own code that gives a result outside of the bound, from runs that kept those.

    If its arguments are outside already, they come from code that only torch runs: tpuport has replaced it, and the
    last line of it is to blame.
    """
    theirs = _operators(runs.torch, call)
    ours = _align(theirs, _operators(runs.device, call))
    exact = _align(theirs, _operators(runs.exact, call))
    replaced: Event | None = None
    for event, our_event, exact_event in zip(theirs, ours, exact, strict=True):
        if our_event is None:
            replaced = event
            continue
        inputs = _compare_notes(
            runs, our_event.inputs, event.inputs, exact_event.inputs if exact_event else (), event, call
        )
        if inputs is not None and replaced is not None:
            return dataclasses.replace(
                inputs, operator=replaced.operator, line=replaced.line, is_replaced=True
            )
        place = inputs or _compare_notes(
            runs, our_event.outputs, event.outputs, exact_event.outputs if exact_event else (), event, call
        )
        if place is not None:
            return place
    return None


def _operators(recording: Recording | None, call: ModuleCall) -> list[Event]:
    if recording is None:
        return []
    return [event for event in recording.events if event.kind == "op" and event.call == call]


def _align(theirs: Sequence[Event], others: Sequence[Event]) -> list[Event | None]:
    """For each of torch's operators the one of another run at the same line and of the same name, in order."""
    matcher = difflib.SequenceMatcher(None, list(map(_key, theirs)), list(map(_key, others)), autojunk=False)
    aligned: list[Event | None] = [None] * len(theirs)
    for start, other_start, length in matcher.get_matching_blocks():
        aligned[start : start + length] = others[other_start : other_start + length]
    return aligned


def _key(event: Event) -> tuple[str, int, str]:
    line = event.line or Source("", 0, "")
    return line.file, line.line, event.operator


def dtype_differences(runs: Runs) -> list[Place]:
    """Operators that give another dtype than in torch for arguments of the same dtypes, one for each line."""
    calls = dict.fromkeys(event.call for event in runs.torch.events if event.kind == "op")
    places: dict[tuple[str, int, str], Place] = {}
    for call in calls:
        theirs = _operators(runs.torch, call)
        for event, ours in zip(theirs, _align(theirs, _operators(runs.device, call)), strict=True):
            if ours is None or not _agree(ours.inputs, event.inputs):
                continue
            for our_note, note in _pairs(ours.outputs, event.outputs):
                if not same_dtype(our_note.dtype, note.dtype):
                    dtypes = our_note.dtype, note.dtype
                    nothing = Deviation(False, (), "", "", "", 0.0, 0.0)
                    place = Place(call, event.operator, event.line, note.path, dtypes, nothing)
                    places.setdefault(_key(event), place)
    return list(places.values())


def _agree(ours: Sequence[TensorNote], theirs: Sequence[TensorNote]) -> bool:
    return all(same_dtype(our_note.dtype, note.dtype) for our_note, note in _pairs(ours, theirs))


def _pairs(
    ours: Sequence[TensorNote], theirs: Sequence[TensorNote]
) -> Iterator[tuple[TensorNote, TensorNote]]:
    by_path = {note.path: note for note in ours}
    return ((by_path[note.path], note) for note in theirs if note.path in by_path)


def forward_line(model: torch.nn.Module, call: ModuleCall) -> Source | None:
    """Where the forward of a called module begins."""
    function = inspect.unwrap(type(model.get_submodule(call.name)).forward)
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    text = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return Source(code.co_filename, code.co_firstlineno, code.co_qualname, text)
