"""Reports as a person or a program reads them: `text`, `html`, and the JSON that `schema` describes.

They take the plain values of `Report.to_dict`, so that showing a report needs neither torch nor jax.
"""

import copy
import dataclasses
import json
from typing import Any, Final

import tpuport

# Of the whole document; `Report.to_dict` has its own.
SCHEMA: Final = 1


@dataclasses.dataclass(frozen=True)
class Result:
    """What compiling one program for one topology gave.

    Attributes:
        target: the name of what was compiled; topology: its full name.
        report: of `Report.to_dict`; None where the model could not be traced.
        failure: of `report.Failure`, where there is no report; else None. A program that does not fit has a report.
        notes: what was assumed, a sentence each.
        seconds: that the stages took, when they last ran; not in the document.
        cached: whether the report came from the store; not in the document.
    """

    target: str
    topology: str
    report: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    cached: bool = False

    @property
    def fits(self) -> bool:
        """Whether there is a program, and it fits."""
        return self.report is not None and bool(self.report["fits"])

    @property
    def reason(self) -> dict[str, Any] | None:
        """Why there is no program that fits: a `report.Failure` as plain values."""
        return self.failure if self.report is None else self.report.get("failure")


def document(
    results: list[Result], suggestion: list[dict[str, Any]] | None = None, *, traceback: bool = False
) -> dict[str, Any]:
    """What `tpuport compile --format json` prints: the same values for every run.

    Args:
        results: in the order in which they were asked for.
        suggestion: ranked splits, the best first; None where none were asked for.
        traceback: whether failures keep what Python or the compiler said.
    """
    return {
        "schema": SCHEMA,
        "tpuport": tpuport.__version__,
        "results": [_plain(result, traceback=traceback) for result in results],
        "suggestion": suggestion,
    }


def as_json(found: dict[str, Any]) -> str:
    """The document as text; no value in it is infinite or not a number."""
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(result: Result, *, traceback: bool) -> dict[str, Any]:
    plain = copy.deepcopy(
        {
            "target": result.target,
            "topology": result.topology,
            "notes": list(result.notes),
            "report": result.report,
            "failure": result.failure,
        }
    )
    for failure in (plain["failure"], (plain["report"] or {}).get("failure")):
        if failure is not None and not traceback:
            failure["traceback"] = ""
    return plain
