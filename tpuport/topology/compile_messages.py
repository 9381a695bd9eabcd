"""What `tpuport compile` and the process that compiles for it send to each other.
Nothing here needs torch or jax.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from tpuport.base.mappings import without
from tpuport.base.temporary import temporary_attributes


@dataclasses.dataclass(frozen=True)
class CompileRequest:
    """The programs to compile for one topology.

    Attributes:
        target: what to compile; options: further arguments of `targets.resolve`.
        topology: its full name; mesh: the size of each axis.
        rules: sharding rules, a regex to axis names; None for those that suit the
            model.
        rules_source: the option that gave the rules, for errors.
        allow: names of weights and patterns whose sharding errors are accepted.
        quantize, attention, scan_layers, effort: as in `compile_for`.
        fixed_axes: to suggest a split, the sizes of axes that every split must have;
            None suggests nothing.
        save_hlo: the directory to write programs to, or None.
        use_cache: whether reports are read from the cache and written to it.
        notes: what was assumed about the mesh, a sentence each.
        wants_rules: whether the sharding rules of the program are requested, even if
            they are the model's own.
        wants_trace: whether results have traces.
        is_denoised: whether the programs are to be added up to steps of denoising.
    """

    target: str
    options: dict[str, Any]
    topology: str
    mesh: dict[str, int]
    rules: dict[str, list[Any]] | None = None
    rules_source: str | None = None
    allow: list[str] = dataclasses.field(default_factory=list)
    quantize: str | None = None
    attention: str | None = None
    scan_layers: bool | None = None
    effort: float | None = None
    fixed_axes: dict[str, int] | None = None
    save_hlo: str | None = None
    use_cache: bool = True
    notes: list[str] = dataclasses.field(default_factory=list)
    wants_rules: bool = False
    wants_trace: bool = False
    is_denoised: bool = False


@dataclasses.dataclass(frozen=True)
class Progress:
    """A stage of the work begins: "starting", "building", "tracing" or "compiling"."""

    stage: str
    target: str = ""
    mesh: dict[str, int] | None = None


@dataclasses.dataclass(frozen=True)
class LogMessage:
    """A warning or an error that tpuport logged; the level is in lower case."""

    level: str
    text: str


@dataclasses.dataclass(frozen=True)
class SplitRanking:
    """The mesh splits of one target as `SplitOutcome.to_dict` gives them, the best
    first.
    """

    splits: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class RulesInForce:
    """The sharding rules of a program that the user gave none for.

    Attributes:
        target: the name of what was compiled.
        rules: a regex to the axis of each dimension, or None, as they fit the mesh.
        reasons: of rules that were inferred from the code; empty if they are the
            model's own.
    """

    target: str
    rules: dict[str, list[Any]]
    reasons: dict[str, str]


@dataclasses.dataclass(frozen=True)
class CompileResult:
    """The outcome of compiling one program for one topology.

    Attributes:
        target: the name of what was compiled; topology: its full name.
        report: `Report.to_dict()`; None if the model could not be traced.
        failure: a `compile_report.Failure` as a dict if there is no report. A program
            that does not fit has a report.
        notes: what was assumed, a sentence each.
        seconds: of each stage, from the run that compiled the program.
        cached: whether the report came from the cache.
        trace: a `step_trace.StepTrace` as a dict, if it was requested and the program
            fits.
        kind, product, rows, is_distilled: as in `targets.Target`.
    """

    target: str
    topology: str
    report: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    notes: list[str] = dataclasses.field(default_factory=list)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    cached: bool = False
    trace: dict[str, Any] | None = None
    kind: str = "code"
    product: str = ""
    rows: int = 1
    is_distilled: bool = False

    @property
    def fits(self) -> bool:
        """Whether there is a program, and it fits."""
        return self.report is not None and self.report["fits"]

    @property
    def reason(self) -> dict[str, Any] | None:
        """The `compile_report.Failure` that explains why no program fits."""
        if self.report is None:
            return self.failure
        return self.report["failure"]

    def without_traceback(self) -> "CompileResult":
        """The same, with an empty traceback in its failure."""
        if self.reason is None:
            return self
        failure = {**self.reason, "traceback": ""}
        if self.report is None:
            return dataclasses.replace(self, failure=failure)
        return dataclasses.replace(self, report={**self.report, "failure": failure})


@dataclasses.dataclass(frozen=True)
class Problem:
    """A PortError, which ends the work."""

    what: str
    where: str | None = None
    fix: str | None = None


@dataclasses.dataclass(frozen=True)
class Crash:
    """Any other exception, which ends the work."""

    traceback: str


@dataclasses.dataclass(frozen=True)
class Done:
    """The last message."""


Event: TypeAlias = (
    Progress
    | LogMessage
    | SplitRanking
    | RulesInForce
    | CompileResult
    | Problem
    | Crash
    | Done
)
_EVENTS: Final = {
    event.__name__: event
    for event in (
        Progress,
        LogMessage,
        SplitRanking,
        RulesInForce,
        CompileResult,
        Problem,
        Crash,
        Done,
    )
}


def encode_event(event: Event) -> dict[str, Any]:
    """The event as plain values."""
    # Shallow, unlike `dataclasses.asdict`: fields hold plain values already, and
    # reports are large.
    return {"event": type(event).__name__, **vars(event)}


def decode_event(message: dict[str, Any]) -> Event:
    """The event that `encode_event` made this message of."""
    fields = without(message, {"event"})
    return _EVENTS[message["event"]](**fields)


class WarningEvents(logging.Handler):
    """Emits tpuport's log messages from the level of warnings on as events."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        super().__init__(logging.WARNING)  # progress has events of its own
        self._emit = emit

    def emit(self, record: logging.LogRecord) -> None:
        """Called by `logging`."""
        self._emit(
            LogMessage(record.levelname.lower(), unescape_patterns(record.getMessage()))
        )

    @contextlib.contextmanager
    def collect(self) -> Iterator[list[Event]]:
        """Collect the events inside instead of emitting them."""
        events: list[Event] = []
        with temporary_attributes(self, _emit=events.append):
            yield events


def unescape_patterns(text: str) -> str:
    """Regexes as the user wrote them: a repr doubles each backslash."""
    return text.replace("\\\\", "\\")
