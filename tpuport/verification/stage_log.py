"""The stages of a check as they are carried out: how long each takes, how it ends, and
its findings.
"""

import contextlib
import time
import traceback
from collections.abc import Iterator
from typing import Any

from tpuport import trace_errors
from tpuport.errors import PortError
from tpuport.verification import progress
from tpuport.verification.check_result import CheckFinding, Severity, Stage
from tpuport.verification.reports.text import STAGE_DESCRIPTIONS


class StageFailed(Exception):
    """A stage cannot go on, and there is a finding that says why."""


class StageSkipped(Exception):
    """A stage needs what an earlier one makes, and that has failed."""


class StageLog:
    """Stages and findings so far.

    Attributes:
        stages: those that have ended, in order.
        findings: of all stages.
        summary: of the stage that is carried out, which it sets itself.
    """

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.findings: list[CheckFinding] = []
        self.summary = ""

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage, and turn what it cannot do into a finding: later stages may
        still say something.
        """
        progress.enter_stage(STAGE_DESCRIPTIONS[name])
        started, known = time.monotonic(), list(self.findings)
        self.summary = ""
        status: Any = "passed"
        try:
            yield
        except StageFailed:
            status = "failed"
        except StageSkipped:
            status = "skipped"
        except PortError as error:
            status = "failed"
            self.add(
                "failure",
                name,
                error.what,
                error.fix or "",
                details={"where": error.where},
            )
        except Exception as error:  # noqa: BLE001  a defect in one stage must not hide what the others say
            status = "failed"
            message = f"this stage ended with {type(error).__name__}: {trace_errors.first_line(error)}"
            details = {"traceback": traceback.format_exc()}
            self.add(
                "failure",
                name,
                message,
                "report it to tpuport with this page",
                details=details,
            )
        # A stage may also withdraw earlier findings, so that counting them does not
        # tell which are new.
        new = [finding for finding in self.findings if finding not in known]
        if status == "passed" and any(finding.severity != "note" for finding in new):
            status = "findings"
        self.stages.append(
            Stage(name, status, self.summary, time.monotonic() - started)
        )

    def add(
        self,
        kind: str,
        stage: str,
        message: str,
        remedy: str = "",
        severity: Severity = "error",
        **more: Any,
    ) -> None:
        """Note one more finding."""
        self.findings.append(
            CheckFinding(kind, stage, severity, message, remedy, **more)
        )

    def skip(self, stage: str, message: str, remedy: str = "") -> None:
        """Note what a stage leaves out, and why."""
        self.add("skipped", stage, message, remedy, severity="note")

    def withdraw(self, kind: str, stage: str) -> None:
        """Take back the findings of a kind that a stage has made."""
        self.findings = [
            finding
            for finding in self.findings
            if (finding.kind, finding.stage) != (kind, stage)
        ]

    def has(self, *kinds: str) -> bool:
        """Whether there is a finding of one of these kinds."""
        return any(finding.kind in kinds for finding in self.findings)
