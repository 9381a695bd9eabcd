"""What a check found: findings in the order in which to work on them, and the
verdict.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

from tpuport.trace_errors import Source
from tpuport.verification.reports import html, text
from tpuport.version import __version__

Severity = Literal["error", "warning", "note"]
_SEVERITIES: Final = get_args(Severity)
# Hours that one change takes someone who knows the code. These are our guesses, not
# measurements.
_EFFORTS: Final = {
    "minutes": 0.25,
    "an hour": 1.0,
    "half a day": 4.0,
    "a day": 8.0,
    "none": 0.0,
}
# The verdict on a model by the kinds of its errors. The worst comes first: a model that
# cannot be compiled has no results to speak of.
_OUTCOMES: Final = {
    **dict.fromkeys(("value", "trace"), "cannot be compiled as it is"),
    **dict.fromkeys(
        ("result", "stale", "draw"), "compiles, and computes something else than torch"
    ),
    "compiler": "compiles, and a fault of the compiler changes what it computes",
    "failure": "could not be checked to the end",
    "recompilation": "computes what torch does, and is compiled again from call to call",
}
# What the verdict on a model without errors adds.
_RESERVATIONS: Final = {
    "cuda": ", with tpuport.gpu_shim",
    "tie": ", but for choices among equal values",
}
# Kinds of findings in the order in which to work on them: what hides or causes others
# comes first.
_ORDER: Final = (
    "cuda", "failure", "value", "trace", "dtype", "result", "compiler", "stale", "draw", "recompilation", "growth",
    "topology", "lint", "tie", "rounding", "skipped",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class CheckFinding:
    """Something to do, or to know.

    Attributes:
        kind: "failure" (a stage could not be carried out), "cuda" (a line ran with the
            GPU shim), "value" (a line needs a value, or gives a shape that depends on
            one), "trace" (code that cannot be traced for another reason), "result" (a
            result differs from torch's), "compiler" (the same, by a fault of the
            compiler), "stale" (a compiled call does not see a change), "draw" (random
            numbers repeat), "dtype", "recompilation", "growth",
            "topology", "lint", "tie" (others of equal values are chosen), "rounding" or
            "skipped".
        stage: the stage that found it.
        severity: an "error" makes the check fail.
        message: what happened, in a sentence.
        remedy: what to do; "" if there is nothing to do.
        source: the line of the user's or the model's code.
        rule: the id of the lint rule about it.
        module: the name of the module in the model, if one is to blame.
        details: plain values about it, such as those of a result here and in torch.
    """

    kind: str
    stage: str
    severity: Severity
    message: str
    remedy: str = ""
    source: Source | None = None
    rule: str | None = None
    module: str | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def effort(self) -> str:
        """An estimate of what the remedy takes: "minutes", "an hour", "half a day", "a
        day" or "none".
        """
        rule = self.rule or ""
        match self.kind:
            case "tie" | "rounding" | "skipped":
                return "none"
            case "value" | "trace" if rule.startswith("TPU1"):
                # A shape that depends on values needs another algorithm, such as
                # padding and a mask.
                return "half a day"
            case "cuda":
                return "minutes"
            case "failure" | "value" | "trace" | "dtype" | "result" | "lint" if rule:
                # The page of a lint rule has the rewrite.
                return "minutes"
            case "failure" if self.stage == "torch":
                # Wrong inputs most often.
                return "minutes"
            case "recompilation" if "option" in self.details:
                return "minutes"
            case "result":
                return "a day"
            case "topology":
                return "half a day"
        return "an hour"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**dataclasses.asdict(self), "effort": self.effort}


@dataclasses.dataclass(frozen=True)
class Stage:
    """One part of a check.

    Attributes:
        name: "lint", "torch", "values", "compile", "compare", "mesh", "repeat" or
            "topology".
        status: "passed", "findings", "failed" (it could not be carried out) or
            "skipped".
        summary: what was done, in a few words.
        seconds: how long it took.
    """

    name: str
    status: Literal["passed", "findings", "failed", "skipped"]
    summary: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """The result of `tpuport.check`.

    Attributes:
        model: the name of its class.
        inputs: their dtypes and shapes by name.
        stages: in the order in which they ran.
        findings: in the order in which to work on them.
        mesh: the sizes of the axes of the mesh that was requested, or None.
        rules: of the sharding rules that were inferred those that divide weights on the
            mesh, in the form of a file for `--rules`; None if the user gave rules, the
            model has a plan, or there is no mesh that needs rules.
    """

    model: str
    inputs: dict[str, str]
    stages: tuple[Stage, ...]
    findings: tuple[CheckFinding, ...]
    mesh: dict[str, int] | None = None
    rules: dict[str, list[Any]] | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing was found that has to be changed."""
        return not self.errors

    @property
    def errors(self) -> tuple[CheckFinding, ...]:
        """The findings that make the check fail."""
        return tuple(
            finding for finding in self.findings if finding.severity == "error"
        )

    @property
    def verdict(self) -> str:
        """The outcome in a sentence."""
        kinds = {finding.kind for finding in self.errors}
        if kinds:
            outcomes = (outcome for kind, outcome in _OUTCOMES.items() if kind in kinds)
            return f"{self.model} {next(outcomes, 'computes what torch does, with findings')}"
        # What is not an error.
        others = {finding.kind for finding in self.findings}
        reservations = (
            reservation for kind, reservation in _RESERVATIONS.items() if kind in others
        )
        return f"{self.model} runs on the device as in torch{next(reservations, '')}"

    @property
    def hours(self) -> float:
        """An estimate of what all remedies together take somebody who knows the
        code.
        """
        return float(sum(_EFFORTS[finding.effort] for finding in self.errors))

    def extended(self, stage: Stage, findings: Sequence[CheckFinding]) -> "CheckResult":
        """The result with one more stage and what it found."""
        return dataclasses.replace(
            self,
            stages=(*self.stages, stage),
            findings=order_findings((*self.findings, *findings)),
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain values; `docs/check.md` describes the fields."""
        return {
            "tpuport": __version__,
            "model": self.model,
            "inputs": self.inputs,
            "mesh": self.mesh,
            "rules": self.rules,
            "ok": self.ok,
            "verdict": self.verdict,
            "hours": self.hours,
            "stages": list(map(dataclasses.asdict, self.stages)),
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def to_json(self) -> str:
        """The fields of `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_text(self) -> str:
        """The report for a terminal."""
        return text.render(self.to_dict())

    def to_html(self) -> str:
        """The report as one page that needs no other file."""
        return html.page(self.to_dict())

    def __str__(self) -> str:
        return self.to_text()


def order_findings(findings: Sequence[CheckFinding]) -> tuple[CheckFinding, ...]:
    """Findings in the order in which to work on them; only the first of those about one
    line, of one kind and rule, and not where a trace ends at a line that is known to
    need a value.
    """
    unique: dict[Any, CheckFinding] = {}
    need_values = {
        (finding.source.file, finding.source.line)
        for finding in findings
        if finding.kind == "value" and finding.source is not None
    }
    for finding in findings:
        # Without a line only the message tells two findings apart.
        subject: Any = finding.message
        if finding.source is not None:
            subject = (finding.source.file, finding.source.line)
        if finding.kind == "trace" and subject in need_values:
            continue
        unique.setdefault((finding.kind, finding.rule, subject), finding)
    return tuple(sorted(unique.values(), key=_position))


def _position(finding: CheckFinding) -> tuple[int, int]:
    # A line that ran otherwise with the GPU shim is a warning, and may be why others
    # are errors.
    severity = "error" if finding.kind == "cuda" else finding.severity
    return _SEVERITIES.index(severity), _ORDER.index(finding.kind)
