"""What a second call of a compiled model must do: make no new program, draw other
numbers, and keep nothing.
"""

import collections
import gc
from collections.abc import Sequence
from typing import Final, NamedTuple

import jax
import torch

from tpuport.base.temporary import garbage_collection_off
from tpuport.compilation import CompiledFunction
from tpuport.trace_errors import Source
from tpuport.verification import differences, further_calls, model_runs
from tpuport.verification.check_result import CheckFinding
from tpuport.verification.executed_lines import ExecutedLines
from tpuport.verification.model_runs import Arguments
from tpuport.verification.recording import CallKey, Recording, named_tensors
from tpuport.verification.reference_runs import ReferenceRuns

# Numbers that are equal in this many calls are not so by chance, except where there is
# only one to draw.
CALLS: Final = 6
# Whole numbers in a draw: 16 bits are equal by chance in less than one of 60,000 draws.
_TELLING: Final = 16
_SHAPES_SHOWN: Final = 4


def call_again(
    compiled: CompiledFunction,
    arguments: Arguments,
    programs: int,
    executed: ExecutedLines,
) -> tuple[list[torch.Tensor], list[CheckFinding]]:
    """Call a compiled model again with the same inputs, and report new programs and
    arrays that stay; the tensors of the second call's result, and findings.

    Args:
        programs: how many programs there were after the first call.
        executed: the lines that ran in torch.
    """
    outputs, new = _call_and_count(compiled, arguments)
    second, changes = compiled.program.compilations, compiled.program.latest_changes()
    # What the first calls keep for good, such as constants of the program, does not
    # grow, and a third call tells; what grows, the second leaves too.
    if new:
        new = _new_arrays(compiled, arguments)
    findings = []
    if second > programs:
        is_again = compiled.program.compilations > second
        findings.append(
            further_calls.recompilation_finding(changes, executed, is_again=is_again)
        )
    if new:
        shown = ", ".join(
            f"{count} of {shape}" for shape, count in new.most_common(_SHAPES_SHOWN)
        )
        findings.append(
            CheckFinding(
                "growth", "repeat", "error",
                f"each call leaves arrays on the device that nothing frees: {shown}",
                "look for a list or cache that the model appends to in each call",
            )
        )  # fmt: skip
    return outputs, findings


def _new_arrays(
    compiled: CompiledFunction, arguments: Arguments
) -> collections.Counter[str]:
    """The arrays that a call leaves on the device, counted by dtype and shape: equal
    ones cannot be told apart.
    """
    _, new = _call_and_count(compiled, arguments)
    if not new:
        return new
    # Arrays in reference cycles are not growth. Collecting takes seconds where there
    # are millions of objects.
    gc.collect()
    before = _live_arrays()
    model_runs.call_compiled(compiled, arguments)
    gc.collect()
    return _live_arrays() - before


def _call_and_count(
    compiled: CompiledFunction, arguments: Arguments
) -> tuple[list[torch.Tensor], collections.Counter[str]]:
    """The result of a call, and the arrays that it leaves, garbage among them."""
    # While nothing is collected, garbage from before the call counts both times.
    with garbage_collection_off():
        before = _live_arrays()
        outputs = model_runs.call_compiled(compiled, arguments)
        return outputs, _live_arrays() - before


def _live_arrays() -> collections.Counter[str]:
    return collections.Counter(
        f"{array.dtype}{list(array.shape)}" for array in jax.live_arrays()
    )


def state_findings(
    outputs: list[torch.Tensor],
    model: torch.nn.Module,
    arguments: Arguments,
    references: ReferenceRuns,
) -> list[CheckFinding]:
    """Whether a second call gives what torch gives in its second call, after what the
    first has written.

    Args:
        outputs: of the second call of the compiled model.
        model: a copy on the host that was called once, and draws no random numbers.
        references: the first call.
    """
    expected = model_runs.call_torch(model, arguments)
    first = differences.results(references.torch)
    exact: list[torch.Tensor] = []
    if _are_equal(expected, first):
        # Nothing has changed, in float64 neither.
        message = differences.describe_output(outputs, references)
    else:
        exact_model = references.fresh_exact_model()
        if exact_model is not None:
            model_runs.call_exact(exact_model, arguments)
            exact = model_runs.call_exact(exact_model, arguments)
        message = differences.describe_difference(outputs, expected, exact)
    if not message:
        return []
    return [
        CheckFinding(
            "stale", "repeat", "error",
            f"the result of a second call differs from that of torch's second call: {message}",
            "keep what lasts from call to call in registered buffers, or pass it in and return it",
        )
    ]  # fmt: skip


def _are_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    """NaN is not equal to itself, which costs two runs in float64."""
    return len(first) == len(second) and all(map(torch.equal, first, second))


def draw_findings(
    runs: list[Recording], torch_runs: list[Recording]
) -> list[CheckFinding]:
    """Random numbers that repeat: from call to call, from row to row, or from one draw
    of a call to another; and draws of another shape than in torch.

    Args:
        runs: of several calls on the device, with the values of what was drawn.
        torch_runs: of as many calls in torch: what repeats there too has no choice.
    """
    drawn_in_torch = _torch_draws(torch_runs)
    draws = [draw for draw in _draws(runs) if draw.key in drawn_in_torch]
    findings = []
    for index, draw in enumerate(draws):
        expected = drawn_in_torch[draw.key]
        if draw.numbers[0].shape != expected[0].shape:
            findings.append(_shape_finding(draw, expected[0]))
        if _same_in_calls(draw.numbers) and not _same_in_calls(expected):
            findings.append(_draw_finding(draw, "in each call"))
        if _same_in_rows(draw.numbers) and not _same_in_rows(expected):
            findings.append(_draw_finding(draw, "in each row"))
        for earlier in draws[:index]:
            shares_numbers = _same_draws(draw.numbers, earlier.numbers)
            if shares_numbers and not _same_draws(
                expected, drawn_in_torch[earlier.key]
            ):
                what = f"as `{earlier.key.function}` in line {earlier.key.line}"
                findings.append(_draw_finding(draw, what))
    return findings


class _Draw(NamedTuple):
    """A call that draws: the line that makes it, and the numbers of each run."""

    key: CallKey
    line: Source | None
    numbers: list[torch.Tensor]


def _draws(runs: list[Recording]) -> list[_Draw]:
    draws: dict[CallKey, _Draw] = {}
    for run in runs:
        for event in run.events:
            values = [note.value for note in event.outputs if note.value is not None]
            if event.key is not None and values:
                draw = draws.setdefault(event.key, _Draw(event.key, event.line, []))
                # Some samplers return more than the numbers, such as the mask of a
                # dropout.
                draw.numbers.append(run.values[values[0]])
    return list(draws.values())


def _torch_draws(runs: list[Recording]) -> dict[CallKey, list[torch.Tensor]]:
    draws: dict[CallKey, list[torch.Tensor]] = collections.defaultdict(list)
    for run in runs:
        for key, answer in run.answers.items():
            numbers = next((tensor for _, tensor in named_tensors(answer.result)), None)
            if answer.is_draw and numbers is not None:
                draws[key].append(numbers)
    return draws


def _is_telling(values: torch.Tensor) -> bool:
    """Whether equal numbers cannot be chance, as a few whole numbers often are: two
    coins show the same side.
    """
    return values.is_floating_point() or values.numel() >= _TELLING


def _same_in_calls(drawn: Sequence[torch.Tensor]) -> bool:
    if len(drawn) < 2 or not all(map(_is_telling, drawn)):
        return False
    return all(torch.equal(values, drawn[0]) for values in drawn)


def _same_in_rows(drawn: Sequence[torch.Tensor]) -> bool:
    return all(map(_has_equal_rows, drawn))


def _has_equal_rows(values: torch.Tensor) -> bool:
    # Numbers in a vector are not rows, and one row alone equals no other.
    if values.ndim < 2 or len(values) < 2:
        return False
    return bool((values == values[:1]).all())


def _same_draws(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    # Of other dtypes or shapes, they were not drawn alike.
    if (
        len(first) == 0
        or len(first) != len(second)
        or first[0].dtype != second[0].dtype
    ):
        return False
    return all(map(_is_telling, first)) and all(map(torch.equal, first, second))


def _draw_finding(draw: _Draw, what: str) -> CheckFinding:
    function = draw.key.function
    return CheckFinding(
        "draw", "repeat", "error", f"`{function}` draws the same numbers {what}, and torch does not",
        "report it to tpuport with this page; until then, draw outside of the model and pass the numbers in",
        draw.line, details={"operator": function},
    )  # fmt: skip


def _shape_finding(draw: _Draw, expected: torch.Tensor) -> CheckFinding:
    ours, theirs = list(draw.numbers[0].shape), list(expected.shape)
    return CheckFinding(
        "draw", "repeat", "error",
        f"`{draw.key.function}` draws {ours} numbers on the device, and {theirs} in torch",
        "let both draw as many: look for a branch on the device's type",
        draw.line, details={"operator": draw.key.function},
    )  # fmt: skip


def draws_numbers(torch_run: Recording) -> bool:
    """Whether the model draws random numbers, of torch, Python or NumPy."""
    draws = (answer.is_draw for answer in torch_run.answers.values())
    return bool(torch_run.host_draws) or any(draws)
