"""What a second call of a compiled model must do: make no new program, draw other numbers, and keep nothing."""

import collections
import gc
from collections.abc import Iterator, Sequence

import jax
import torch

from tpuport.compilation import CompiledFunction
from tpuport.trace_errors import Source
from tpuport.verification import model_runs
from tpuport.verification.bounds import deviation
from tpuport.verification.check_result import CheckFinding
from tpuport.verification.model_runs import Arguments
from tpuport.verification.recording import CallKey, Recording

# Numbers that are equal in this many calls are not so by chance, except where there is only one to draw.
_CALLS = 6
_TELLING = 16  # whole numbers that are equal by chance in less than one of 60,000 draws
_SHAPES_SHOWN = 4


def recompilation_findings(compiled: CompiledFunction, arguments: Arguments) -> list[CheckFinding]:
    """Call a compiled model that was called before twice more, with the same inputs."""
    programs = compiled.program.compilations
    model_runs.call_compiled(compiled, arguments)
    findings = []
    if compiled.program.compilations > programs:
        findings.append(
            CheckFinding(
                "recompilation", "repeat", "error",
                "a second call with inputs of the same shapes compiled a new program",
                "look for what changes from call to call: a Python number or a string in the model or its arguments "
                "that should be a tensor; the log of the logger 'tpuport' names arguments",
            )
        )  # fmt: skip
    before = _live_arrays()
    model_runs.call_compiled(compiled, arguments)
    # Arrays of equal shapes and dtypes cannot be told apart, but counted.
    new = _live_arrays() - before
    if new:
        shown = ", ".join(f"{count} of {shape}" for shape, count in new.most_common(_SHAPES_SHOWN))
        findings.append(
            CheckFinding(
                "growth", "repeat", "error",
                f"each call leaves arrays on the device that nothing frees: {shown}",
                "look for a list or cache that the model appends to in each call",
            )
        )  # fmt: skip
    return findings


def _live_arrays() -> collections.Counter[str]:
    gc.collect()
    return collections.Counter(f"{array.dtype}{list(array.shape)}" for array in jax.live_arrays())


def state_findings(
    compiled: CompiledFunction,
    model: torch.nn.Module,
    exact_model: torch.nn.Module | None,
    arguments: Arguments,
) -> list[CheckFinding]:
    """Whether a second call gives what torch gives in its second call, after what the first has written.

    Args:
        compiled: called once; model and exact_model: copies that were called once, of which none draws.
    """
    ours = model_runs.call_compiled(compiled, arguments)
    theirs = model_runs.call_torch(model, arguments)
    exact: Sequence[torch.Tensor | None] = [None] * len(theirs)
    if exact_model is not None:
        exact = model_runs.call_exact(exact_model, arguments)
    for our_value, value, exact_value in zip(ours, theirs, exact, strict=False):
        found = deviation(our_value, value, exact_value)
        if found is not None and not found.is_rounding:
            return [
                CheckFinding(
                    "stale", "repeat", "error",
                    f"the result of a second call differs from that of torch's second call: {found.describe()}",
                    "keep what lasts from call to call in registered buffers, or pass it in and return it",
                )
            ]  # fmt: skip
    return []


def draw_findings(runs: list[Recording], torch_runs: list[Recording]) -> list[CheckFinding]:
    """Random numbers that repeat: from call to call, from row to row, or from one draw of a call to another.

    Args:
        runs: of several calls on the device, with the values of what was drawn.
        torch_runs: of as many calls in torch: what repeats there too has no choice.
    """
    ours, theirs = _draws(runs), _torch_draws(torch_runs)
    findings = []
    for key, (line, drawn) in ours.items():
        expected = theirs.get(key, [])
        for what, repeats in (("in each call", _same_in_calls), ("in each row", _same_in_rows)):
            if repeats(drawn) and expected and not repeats(expected):
                findings.append(_draw_finding(key, line, what))
    keys = list(ours)
    for index, key in enumerate(keys):
        for earlier in keys[:index]:
            line, drawn = ours[key]
            if _same_draws(drawn, ours[earlier][1]) and not _same_draws(theirs[key], theirs[earlier]):
                findings.append(_draw_finding(key, line, f"as `{earlier.function}` in line {earlier.line}"))
    return findings


def _draws(runs: list[Recording]) -> dict[CallKey, tuple[Source | None, list[torch.Tensor]]]:
    """By call the line, and what was drawn in each of the runs."""
    draws: dict[CallKey, tuple[Source | None, list[torch.Tensor]]] = {}
    for run in runs:
        for event in run.events:
            kept = [note.value for note in event.outputs if note.value is not None]
            if event.key is not None and kept:
                draws.setdefault(event.key, (event.line, []))[1].append(run.values[kept[0]])
    return draws


def _torch_draws(runs: list[Recording]) -> dict[CallKey, list[torch.Tensor]]:
    draws: dict[CallKey, list[torch.Tensor]] = {}
    for run in runs:
        for key, answer in run.answers.items():
            if answer.is_draw and isinstance(answer.result, torch.Tensor):
                draws.setdefault(key, []).append(answer.result)
    return draws


def _is_telling(values: torch.Tensor) -> bool:
    """Whether equal numbers are no chance: a few whole numbers, such as one of two, often are."""
    return values.is_floating_point() or values.numel() >= _TELLING


def _same_in_calls(drawn: Sequence[torch.Tensor]) -> bool:
    return (
        len(drawn) > 1
        and all(map(_is_telling, drawn))
        and all(torch.equal(values, drawn[0]) for values in drawn)
    )


def _same_in_rows(drawn: Sequence[torch.Tensor]) -> bool:
    return all(values.ndim > 1 and len(values) > 1 and bool((values == values[:1]).all()) for values in drawn)


def _same_draws(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    # Of other dtypes or shapes, they were not drawn alike.
    if len(first) == 0 or len(first) != len(second) or first[0].dtype != second[0].dtype:
        return False
    return all(map(_is_telling, first)) and all(map(torch.equal, first, second))


def _draw_finding(key: CallKey, line: Source | None, what: str) -> CheckFinding:
    return CheckFinding(
        "draw", "repeat", "error", f"`{key.function}` draws the same numbers {what}, and torch does not",
        "report it to tpuport with this page; until then, draw outside of the model and pass the numbers in", line,
        details={"operator": key.function},
    )  # fmt: skip


def count_calls(torch_run: Recording) -> Iterator[int]:
    """The numbers of the calls that show whether draws repeat; none if the model draws nothing."""
    if any(answer.is_draw for answer in torch_run.answers.values()):
        yield from range(_CALLS)
