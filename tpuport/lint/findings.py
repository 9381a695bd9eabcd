"""A finding of the linter: its position, its severity, and whether it can be fixed."""

import dataclasses
import enum
from typing import Final


class Severity(enum.StrEnum):
    """How severe a finding is. Only errors stop a trace and make the exit code 1."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return _RANKS[self]


_RANKS = dict(zip(Severity, range(len(Severity)), strict=True))


class Applicability(enum.StrEnum):
    """What `--fix` may do: `SAFE` keeps every result, `UNSAFE` needs a look at the
    result (`--unsafe-fixes`).
    """

    SAFE = "safe"
    UNSAFE = "unsafe"
    NONE = "none"

    def is_within(self, limit: "Applicability") -> bool:
        """Whether a run that applies fixes up to a limit (NONE: no fixes) applies this
        one.
        """
        # NONE is below every limit, and yet there is nothing to apply.
        if self is Applicability.NONE:
            return False
        return limit in (self, Applicability.UNSAFE)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A range of text in a file that stops the port, or harms it.

    Attributes:
        path: the file, as the user named it or below the directory they named.
        line, column: its start, both from 1; columns count characters.
        end_line, end_column: its end; the end column is one past the last character.
        rule: the rule's id, such as `TPU101`.
        severity: the rule's, or that of the settings.
        reason: one sentence: why this stops the port, or harms it.
        remedy: one sentence: what to write instead.
        function: qualified name of the enclosing function or class; "" at module level.
        route: how tracing gets to this line, from an entry point inwards:
            `("Model.forward", "pad_tokens")`.
        fix: whether a mechanical rewrite exists. A rule says what it can do at best; a
            report says what can be done with the code at this position.
        stops: at error level, whether tracing ends with an error here; text built from
            a tracer, for instance, is wrong but does not end the trace.
        scenario: the calls of an entry point that have it,
            `Model.forward without `mask``; "" for all calls.
        cell: in a notebook, the number of the cell that the lines are counted in, from
            1; 0 in other files, and until the finding is shown: before that a
            notebook's cells count as one module.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    rule: str
    severity: Severity
    reason: str
    remedy: str
    function: str = ""
    route: tuple[str, ...] = ()
    fix: Applicability = Applicability.NONE
    stops: bool = True
    scenario: str = ""
    cell: int = 0

    @property
    def place(self) -> str:
        """`model.py:12`, or `model.ipynb:cell 3:12`."""
        return (
            f"{self.path}:cell {self.cell}:{self.line}"
            if self.cell
            else f"{self.path}:{self.line}"
        )

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What tells it from other findings: its rule, and where it starts."""
        return self.rule, self.path, self.line, self.column

    @property
    def message(self) -> str:
        """The reason, and the calls that have the finding if not all do."""
        return f"{self.reason} (in {self.scenario})" if self.scenario else self.reason

    @property
    def stops_trace(self) -> bool:
        """Whether this is an error at which tracing ends."""
        return self.severity == Severity.ERROR and self.stops


FIELD_NAMES: Final = tuple(field.name for field in dataclasses.fields(Finding))
