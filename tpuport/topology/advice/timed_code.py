"""The time that lines of code take in the compiled program, for advice about some of
their instructions.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.compile_report import Source
from tpuport.topology.hlo import Array
from tpuport.topology.timing import Span, code_origins, span_seconds

# Of a step, and in seconds: what takes less is not worth a change.
_SHARE: Final = 0.02
_LEAST_SECONDS: Final = 1e-5
# Into which that may be divided.
_LINES: Final = 2
# Of the core's cycles, that are from schedules.
_SCHEDULED: Final = 0.9


class TimedCode(NamedTuple):
    """Instructions that one line of code compiles to.

    Attributes:
        source: None if the compiler does not name the line.
        seconds: of a step.
        largest: the array that is computed by what takes longest.
    """

    source: Source | None
    seconds: float
    largest: Array


def timed_lines(
    evidence: Evidence, select: Callable[[Span], Array | None]
) -> Iterator[TimedCode]:
    """The lines whose selected instructions take at least 1% of a step, what takes
    longest first, if all take 2%.

    Args:
        evidence: of a program that fits; of any other there is no time.
        select: the array for which an instruction counts, or None for one that does
            not.
    """
    timeline = evidence.report.timeline
    if timeline is None:
        return
    selected: dict[Source | None, list[tuple[float, Array]]] = {}
    for span in timeline.leaves:
        array = select(span)
        if array is not None:
            # As the profile has it: copies that the compiler makes have no line of
            # their own.
            source = code_origins.source(evidence.compiled, span.instruction)
            selected.setdefault(source, []).append((span_seconds(span), array))
    lines = [
        TimedCode(
            source,
            sum(seconds for seconds, _ in parts),
            max(parts, key=lambda part: part[0])[1],
        )
        for source, parts in selected.items()
    ]
    # The same cause often is in several lines, such as those of a query and of a key.
    if not is_worth_changing(evidence, sum(line.seconds for line in lines)):
        return
    for line in sorted(lines, key=lambda line: -line.seconds):
        if is_worth_changing(evidence, _LINES * line.seconds):
            yield line


def is_worth_changing(evidence: Evidence, seconds: float) -> bool:
    """Whether instructions of a program that fits take enough of a step, by
    schedules.
    """
    profile = evidence.report.profile
    # By the compiler's own estimates, elementwise work takes several times too long.
    if profile is None or profile.schedule_share < _SCHEDULED:
        return False
    return seconds >= max(_LEAST_SECONDS, _SHARE * profile.seconds)


def format_seconds(evidence: Evidence, seconds: float) -> str:
    """As in "1.2 ms a step, 4% of it"."""
    assert evidence.report.profile is not None
    share = seconds / evidence.report.profile.seconds
    milliseconds = seconds * 1e3
    if milliseconds >= 0.1:
        return f"{milliseconds:.3g} ms a step, {share:.0%} of it"
    return f"{seconds * 1e6:.3g} us a step, {share:.0%} of it"
