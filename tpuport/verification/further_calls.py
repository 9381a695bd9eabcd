"""Further calls with the caches and other objects that a call has changed, as a loop
over tokens makes them.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch

from tpuport import checkpoint, porting, trace_errors
from tpuport.compilation import CompiledFunction
from tpuport.compilation.programs.compilation_count import (
    ChangedArgument,
    is_number_text,
)
from tpuport.errors import PortError
from tpuport.internals.torch_internals import version_of
from tpuport.libraries.library_classes import cache_of_output, is_transformers_cache
from tpuport.objects.object_graph import Flattener, Structure
from tpuport.objects.state.state_places import is_same
from tpuport.trace_errors import Source
from tpuport.verification import differences, model_runs
from tpuport.verification.check_result import CheckFinding
from tpuport.verification.executed_lines import ExecutedLines
from tpuport.verification.model_runs import Arguments, Caller

# A prompt and two tokens: what the second token compiles, each further one compiles
# too.
_CALLS: Final = 3
_CHANGES_SHOWN: Final = 3
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_POSITION: Final = (
    "keep {} as a tensor (`torch.zeros((), dtype=torch.int32)`), write to columns with `k.index_copy_(2, position + "
    "torch.arange(n), new)` instead of a slice, and mask those that have not been written; "
    "docs/compiled-functions.md, 'Your own objects', shows a cache"
)
_GROWING: Final = (
    "allocate it in its final length, write with `index_copy_` at a position that is a tensor, and mask the rest; "
    "docs/compiled-functions.md, 'Your own objects', shows a cache"
)
_STATE: Final = "let it be a tensor on the device, such as a registered buffer: that is an argument of the program"
_UNKNOWN: Final = (
    "look for what changes from call to call: a Python number or a string in the model or its arguments that should be "
    "a tensor; the log of the logger 'tpuport' names arguments"
)


class Outcome(NamedTuple):
    """What calls that follow each other give.

    Attributes:
        outputs: the tensors of each call's result.
        state: tensors and plain values in the changed arguments after the last call, by
            name.
    """

    outputs: list[list[torch.Tensor]]
    state: dict[str, Any]


class Reference(NamedTuple):
    """What the calls give in torch, and in float64; None if the model does not run
    so.
    """

    expected: Outcome
    exact: Outcome | None


@dataclasses.dataclass(frozen=True)
class CallLoop:
    """Calls that follow each other: each gets the arguments of the first, except what
    that one has changed.

    Attributes:
        arguments: of the first call.
        changed: names of the arguments that a call changes, which all calls share.
        shorten_tokens: whether later calls get the last column alone of each matrix of
            integers, as a decode step does.
    """

    arguments: Arguments
    changed: frozenset[str]
    shorten_tokens: bool

    def run(
        self, call: Caller, *, widen: bool = False
    ) -> Iterator[tuple[list[torch.Tensor], Arguments]]:
        """The tensors of the result of each call, and the arguments as it left them."""
        inputs = self._copy_arguments(widen)
        for _ in range(_CALLS):
            output = call(inputs)
            tensors = model_runs.host_tensors(output)
            yield tensors, inputs
            inputs = self._next_arguments(inputs, output, widen)

    def outcome(self, call: Caller, *, widen: bool = False) -> Outcome:
        """What all calls give."""
        outputs, inputs = zip(*self.run(call, widen=widen), strict=True)
        named = inputs[-1].named()
        return Outcome(
            list(outputs),
            _read_leaves({name: named[name] for name in sorted(self.changed)}),
        )

    def _copy_arguments(self, widen: bool) -> Arguments:
        return self.arguments.widened() if widen else self.arguments.copy()

    def _next_arguments(self, inputs: Arguments, output: Any, widen: bool) -> Arguments:
        fresh = self._copy_arguments(widen)
        shared = {
            name: _cache_after(inputs.named()[name], output) for name in self.changed
        }

        def choose(name: str, value: Any) -> Any:
            if name in shared:
                return shared[name]
            return (
                value[:, -1:]
                if self.shorten_tokens and _is_token_matrix(value)
                else value
            )

        return Arguments(
            tuple(
                choose(str(index), value)
                for index, value in enumerate(fresh.positional)
            ),
            {name: choose(name, value) for name, value in fresh.keywords.items()},
        )


def _is_token_matrix(value: Any) -> bool:
    is_matrix = isinstance(value, torch.Tensor) and value.ndim == 2
    return (
        is_matrix and value.dtype in (torch.int64, torch.int32) and value.shape[1] > 1
    )


def _cache_after(value: Any, output: Any) -> Any:
    """The object to go on with: a cache of transformers is donated, and the one in the
    result takes its part.
    """
    if not is_transformers_cache(value):
        return value
    return cache_of_output(output, default=value)


def findings(
    model: torch.nn.Module,
    exact_model: torch.nn.Module | None,
    arguments: Arguments,
    executed: ExecutedLines,
    *,
    compare: bool,
    changed: frozenset[str] | None = None,
) -> list[CheckFinding]:
    """Call a model again with what it has changed, in torch and compiled; nothing if it
    changes no argument.

    Args:
        model, exact_model: on the host, and in float64, or None if it does not run so;
            copies of them are called.
        changed: names of the arguments that a call changes; None if that is not known.
        executed: notes the lines of the calls.
        compare: whether results are to be torch's; a model that draws random numbers
            gives others.
    """
    if changed is None:
        inputs = arguments.copy()
        changes = ArgumentChanges(inputs)
        model_runs.torch_caller(model_runs.copy_model(model))(inputs)
        changed = changes.names()
    if not changed:
        return []
    try:
        loop = _find_loop(model, arguments, changed, executed)
    except PortError as error:
        return [CheckFinding("skipped", "repeat", "note", error.what, error.fix or "")]
    expected = loop.outcome(model_runs.torch_caller(model_runs.copy_model(model)))
    exact = None
    if exact_model is not None and compare:
        exact = loop.outcome(
            model_runs.exact_caller(model_runs.copy_model(exact_model)), widen=True
        )
    reference = Reference(expected, exact) if compare else None
    calls = _call_device(
        CompiledFunction(porting.port(model_runs.copy_model(model))), loop
    )
    result = _difference_findings(calls.outcome, reference)
    if not calls.recompiles:
        return result
    trial = None
    names = _traceable_names(calls.changes)
    if names:
        trial = _try_traced(model, names, loop, reference)
    return [*result, recompilation_finding(calls.changes, executed, trial)]


def _find_loop(
    model: torch.nn.Module,
    arguments: Arguments,
    changed: frozenset[str],
    executed: ExecutedLines,
) -> CallLoop:
    """How to call a model again with what it has changed, so that torch takes it.

    Raises:
        PortError: torch does not take further calls.
    """
    named = arguments.named()
    has_tokens = any(
        _is_token_matrix(value) for name, value in named.items() if name not in changed
    )
    error: Exception | None = None
    for shorten_tokens in (True, False) if has_tokens else (False,):
        loop = CallLoop(arguments, changed, shorten_tokens)
        try:
            with executed:
                loop.outcome(model_runs.torch_caller(model_runs.copy_model(model)))
        except Exception as failure:  # noqa: BLE001  the model may want other arguments for its next token
            error = failure
        else:
            return loop
    assert error is not None
    names = ", ".join(sorted(changed))
    raise PortError(
        f"no further call with the {names} of the first was made, because torch itself refuses it: "
        f"{type(error).__name__}: {trace_errors.first_line(error)}",
        where=names,
        fix="leave room in it for two more tokens, or let target() return the inputs of a decode step",
    )


class ArgumentChanges:
    """Which arguments a call changes that gets these very inputs."""

    def __init__(self, inputs: Arguments) -> None:
        self._named = inputs.named()
        self._before = {name: _Snapshot(value) for name, value in self._named.items()}

    def names(self) -> frozenset[str]:
        """Of the arguments that have changed since."""
        return frozenset(
            name
            for name, value in self._named.items()
            if self._before[name].differs(_Snapshot(value))
        )


class _Snapshot:
    """What an argument consists of, with its tensors by identity and version."""

    def __init__(self, value: Any) -> None:
        flattener = Flattener(caches_are_leaves=False)
        self.structure: Structure | None = None
        self.leaves: list[Any] = []
        self.versions: list[int | None] = []
        try:
            flattener.add_root("", value)
        except PortError:
            # A compiled call refuses it as well, with this error.
            return
        graph = flattener.graph()
        self.structure, self.leaves = graph.structure, list(graph.leaves)
        self.versions = [
            version_of(leaf) if isinstance(leaf, torch.Tensor) else None
            for leaf in self.leaves
        ]

    def differs(self, other: "_Snapshot") -> bool:
        return (
            self.structure != other.structure
            or self.versions != other.versions
            or not all(map(is_same, self.leaves, other.leaves))
        )


def _read_leaves(named: dict[str, Any]) -> dict[str, Any]:
    """The tensors, on the host, and the plain values in arguments, by name."""
    flattener = Flattener(caches_are_leaves=False)
    for name, value in named.items():
        flattener.add_root(name, value)
    graph = flattener.graph()
    leaves = {}
    for name, leaf in zip(graph.names, graph.leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            leaves[name] = checkpoint.to_cpu(leaf)
        elif isinstance(leaf, bool | int | float | str):
            leaves[name] = leaf
    return leaves


class DeviceCalls(NamedTuple):
    """Further calls of a compiled model.

    Attributes:
        outcome: as in torch.
        recompiles: whether the last call, which differs from the one before it in
            values alone, made a new program.
        changes: what that program has other than the one before it.
    """

    outcome: Outcome
    recompiles: bool
    changes: list[ChangedArgument]


def _call_device(compiled: CompiledFunction, loop: CallLoop) -> DeviceCalls:
    """Make the calls with a compiled model."""
    programs: list[int] = []

    def call(inputs: Arguments) -> Any:
        output = model_runs.compiled_caller(compiled)(inputs)
        programs.append(compiled.program.compilations)
        return output

    outcome = loop.outcome(call)
    recompiles = programs[-1] > programs[-2]
    changes = compiled.program.latest_changes() if recompiles else []
    return DeviceCalls(outcome, recompiles, changes)


def _difference_findings(
    ours: Outcome, reference: Reference | None
) -> list[CheckFinding]:
    """The first call whose result is not torch's; if there is none, what the calls have
    left in the arguments.
    """
    if reference is None:
        return []
    expected, exact = reference
    for number, (tensors, theirs) in enumerate(
        zip(ours.outputs, expected.outputs, strict=True)
    ):
        referee = exact.outputs[number] if exact is not None else []
        message = differences.describe_difference(tensors, theirs, referee)
        if message:
            subject = f"the result of call {number + 1}, which goes on with what earlier calls have left,"
            return [_result_finding(subject, message)]
    for name in ours.state.keys() | expected.state.keys():
        message = _state_difference(name, ours, expected, exact)
        if message:
            return [_result_finding(f"{name} after {_CALLS} calls", message)]
    return []


def _result_finding(subject: str, message: str) -> CheckFinding:
    return CheckFinding(
        "result",
        "repeat",
        "error",
        f"{subject} differs from torch's: {message}",
        "report it to tpuport with this page",
    )


def _state_difference(
    name: str, ours: Outcome, expected: Outcome, exact: Outcome | None
) -> str:
    value, theirs = ours.state.get(name), expected.state.get(name)
    if isinstance(value, torch.Tensor) and isinstance(theirs, torch.Tensor):
        referee = [] if exact is None else [exact.state[name]]
        return differences.describe_difference([value], [theirs], referee)
    # A traced number is a tensor afterwards.
    if isinstance(value, torch.Tensor) and value.ndim == 0:
        value = value.item()
    return "" if value == theirs else f"{value} here, and {theirs} in torch"


def recompilation_finding(
    changes: list[ChangedArgument],
    executed: ExecutedLines,
    trial: "Trial | None" = None,
    *,
    is_again: bool = True,
) -> CheckFinding:
    """About a program that a further call compiles.

    Args:
        changes: what it has other than the one before it.
        trial: of the option that makes numbers tensors; None if it does not apply.
        is_again: whether each further call does, and not the second alone.
    """
    message = "the second call with inputs of the same shapes compiles another program, and later ones do not"
    if is_again:
        message = (
            "each further call with inputs of the same shapes compiles a new program"
        )
    if not changes:
        return CheckFinding("recompilation", "repeat", "error", message, _UNKNOWN)
    texts = [
        f"{change.name} changes from {change.before} to {change.after}"
        for change in changes
    ]
    shown = texts[:_CHANGES_SHOWN]
    if len(texts) > len(shown):
        shown.append(f"and {len(texts) - len(shown)} more")
    first = changes[0]
    details: dict[str, Any] = {"changes": [change._asdict() for change in changes]}
    remedies = {
        "tensor": _GROWING,
        "state": _STATE,
        "value": _POSITION.format(first.name),
    }
    remedy = remedies[first.kind]
    if trial is not None and trial.succeeded:
        remedy = f"{trial.option} makes it a tensor: tried here, with torch's results and no further program"
        details["option"] = trial.option
    elif trial is not None and trial.line is not None:
        line = trial.line
        remedy = f"{remedy}. The first line that needs it is {line.file}:{line.line}: `{line.code}`"
    names = _NAME.findall(first.name)
    source = executed.changing_line(names[-1]) if names else None
    return CheckFinding(
        "recompilation",
        "repeat",
        "error",
        f"{message}: {', '.join(shown)}",
        remedy,
        source,
        details=details,
    )


def _traceable_names(changes: list[ChangedArgument]) -> list[str]:
    """The changed numbers among the arguments, which may become tensors; [] if anything
    else has changed too.
    """
    if any(
        change.kind != "value" or not is_number_text(change.after) for change in changes
    ):
        return []
    return [change.name for change in changes]


class Trial(NamedTuple):
    """A run with numbers as tensors.

    Attributes:
        option: how a user writes it.
        succeeded: whether it gave torch's results without further programs.
        line: that needs a value of the number.
    """

    option: str
    succeeded: bool
    line: Source | None = None


def _try_traced(
    model: torch.nn.Module,
    names: list[str],
    loop: CallLoop,
    reference: Reference | None,
) -> Trial:
    """Make the calls with numbers as tensors."""
    option = f"tpuport.compile(model, traced={names!r})"
    compiled = CompiledFunction(
        porting.port(model_runs.copy_model(model)), traced=names
    )
    try:
        calls = _call_device(compiled, loop)
    except Exception as error:  # noqa: BLE001  whatever the model's code does with a tensor for a number
        return Trial(
            option, succeeded=False, line=trace_errors.explain(error, model).source
        )
    is_different = bool(_difference_findings(calls.outcome, reference))
    return Trial(option, succeeded=not calls.recompiles and not is_different)
