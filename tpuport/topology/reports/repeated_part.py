"""The part of a step that is repeated: a round of the loop that takes most of it, or
one of the model's blocks.
"""

import collections
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

# "model.layers.7" of "model.layers.7.mlp.down_proj": the first list of blocks, and the
# number.
_BLOCK: Final = re.compile(r"(?P<blocks>.*?)\.(?P<number>\d+)(?=\.|$)")
# Of fewer blocks, the first and the last are most.
_FEWEST_BLOCKS: Final = 3


class TimedSpan(NamedTuple):
    """Something that takes time: seconds since the part began, and the index of an
    instruction of the trace.
    """

    start: float
    seconds: float
    instruction: int
    waiting: bool = False


class RepeatedPart(NamedTuple):
    """A part of a step.

    Attributes:
        title: what it is; seconds: that it takes.
        core: instructions, and waiting for what they need.
        copies: beside the core; collectives: by the axes that they go along.
    """

    title: str
    seconds: float
    core: list[TimedSpan]
    copies: list[TimedSpan]
    collectives: dict[tuple[str, ...], list[TimedSpan]]


def find_part(trace: dict[str, Any]) -> RepeatedPart:
    """A round of the innermost loop that takes half of the step, a block in the middle,
    or else the whole step.
    """
    title, computation = "The whole step", trace["computations"][trace["entry"]]
    start, end = 0.0, float(computation["seconds"])
    loop = _main_loop(trace)
    if loop is not None:
        body = max(
            loop["calls"], key=lambda name: trace["computations"][name]["seconds"]
        )
        computation = trace["computations"][body]
        title, end = (
            f"One round of a loop of {loop['rounds']:,}",
            computation["seconds"],
        )
    elif block := _middle_block(trace, computation):
        title, start, end = block
    return RepeatedPart(
        title,
        end - start,
        _cut(_core_spans(computation), start, end),
        _cut(map(_transfer_span, computation["copies"]), start, end),
        {
            axes: _cut(map(_transfer_span, transfers), start, end)
            for axes, transfers in _by_axes(computation["collectives"])
        },
    )


def _main_loop(trace: dict[str, Any]) -> dict[str, Any] | None:
    """The innermost loop that takes half of the step; None if there is none."""
    longest = None
    name: str | None = trace["entry"]
    times = 1
    while name is not None:
        spans = trace["computations"][name]["core"]
        name = None
        for span in spans:
            if span["calls"] and times * span["seconds"] >= trace["seconds"] / 2:
                times *= span["rounds"]
                name = max(
                    span["calls"],
                    key=lambda callee: trace["computations"][callee]["seconds"],
                )
                if span["rounds"] > 1:
                    longest = span
                break
    return longest


def _middle_block(
    trace: dict[str, Any], computation: dict[str, Any]
) -> tuple[str, float, float] | None:
    """Name, start and end of a block in the middle of those that take most time; None
    if there are none.
    """
    blocks: dict[str, dict[str, list[TimedSpan]]] = {}
    for span in _core_spans(computation):
        match = _BLOCK.match(trace["instructions"][span.instruction]["module"])
        if match is not None:
            numbers = blocks.setdefault(match["blocks"], collections.defaultdict(list))
            numbers[match["number"]].append(span)
    blocks = {
        name: numbers
        for name, numbers in blocks.items()
        if len(numbers) >= _FEWEST_BLOCKS
    }
    if not blocks:
        return None
    name = max(blocks, key=lambda name: sum(map(_total, blocks[name].values())))
    # A block's own arrays may be made long before it, so that where most of its time is
    # counts.
    centers = sorted((_center(spans), number) for number, spans in blocks[name].items())
    middle = len(centers) // 2
    (before, _), (center, number), (after, _) = centers[middle - 1 : middle + 2]
    return f"One block, {name}.{number}", (before + center) / 2, (center + after) / 2


def _total(spans: list[TimedSpan]) -> float:
    return sum(span.seconds for span in spans)


def _center(spans: list[TimedSpan]) -> float:
    """When half of the time of some instructions is over."""
    half = _total(spans) / 2
    for span, passed in zip(
        spans, itertools.accumulate(span.seconds for span in spans), strict=True
    ):
        if passed >= half:
            return span.start + span.seconds / 2
    return spans[-1].start


def _core_spans(computation: dict[str, Any]) -> Iterator[TimedSpan]:
    for span in computation["core"]:
        if span["waiting"]:
            yield TimedSpan(
                span["start"] - span["waiting"],
                span["waiting"],
                span["instruction"],
                waiting=True,
            )
        if span["seconds"]:
            yield TimedSpan(span["start"], span["seconds"], span["instruction"])


def _transfer_span(transfer: dict[str, Any]) -> TimedSpan:
    return TimedSpan(transfer["start"], transfer["seconds"], transfer["instruction"])


def _by_axes(
    transfers: list[dict[str, Any]],
) -> Iterator[tuple[tuple[str, ...], list[dict[str, Any]]]]:
    for axes in sorted({tuple(transfer["axes"]) for transfer in transfers}):
        yield (
            axes,
            [transfer for transfer in transfers if tuple(transfer["axes"]) == axes],
        )


def _cut(spans: Iterable[TimedSpan], start: float, end: float) -> list[TimedSpan]:
    """What of some spans is between two moments, counted from the first."""
    cut = []
    for span in spans:
        first, last = max(span.start, start), min(span.start + span.seconds, end)
        if last > first:
            cut.append(span._replace(start=first - start, seconds=last - first))
    return cut
