"""What the linter says: findings, where they are, and how bad."""

import dataclasses
import enum


class Severity(enum.StrEnum):
    """How bad a finding is. Only errors stop a trace and make the exit code 1."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Applicability(enum.StrEnum):
    """What `--fix` may do: `SAFE` keeps every result, `UNSAFE` wants a look (`--unsafe-fixes`)."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    NONE = "none"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One place in one file.

    Attributes:
        path: the file, as the user named it or below the directory they named.
        line, column: where it starts, both from 1; columns count characters.
        end_line, end_column: where it ends; the end column is one past the last character.
        rule: the rule's id, such as `TPU101`.
        severity: after the settings had their say.
        reason: one sentence: why this stops the port, or harms it.
        remedy: one sentence: what to write instead.
        function: qualified name of the enclosing function or class; "" at module level.
        route: how tracing gets here, from an entry point inwards: `("Model.forward", "pad_tokens")`.
        fix: whether the rule can rewrite this place.
        stops: at error level, whether tracing ends here; text made of a tracer is wrong, and goes on.
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
