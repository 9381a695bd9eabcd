"""A run's report as text: one format per module, each with a function
`render(report, options)`.
"""

import dataclasses
import importlib
from typing import Final

from tpuport.errors import PortError
from tpuport.lint.findings import Finding
from tpuport.lint.run_report import Report
from tpuport.lint.source import Span

FORMATS: Final = ("text", "concise", "json", "sarif", "github", "gitlab", "junit")

# A module named `json` would hide the standard library's in its own folder's imports.
_MODULE_BY_FORMAT: Final = {name: name for name in FORMATS} | {"json": "json_"}


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How a report looks; formats ignore the options that they have no use for.

    Attributes:
        color: use a terminal's escape codes.
        show_source: show each finding's line, with a caret below.
        statistics: show the number of findings by rule instead of the findings.
        quiet: leave out the summary.
    """

    color: bool = False
    show_source: bool = True
    statistics: bool = False
    quiet: bool = False


def region_in_file(finding: Finding) -> Span:
    """Where a finding is for a format that knows lines of files: at the start of a
    notebook.
    """
    if finding.cell:
        return Span(1, 1, 1, 1)
    return Span(finding.line, finding.column, finding.end_line, finding.end_column)


def cell_prefix(finding: Finding) -> str:
    """Where a finding is in its notebook, for the messages of formats that only know
    lines of files.
    """
    return (
        f"cell {finding.cell}:{finding.line}:{finding.column}: " if finding.cell else ""
    )


def render(name: str, report: Report, options: Options | None = None) -> str:
    """A report in one of the `FORMATS`, ending with a line end.

    Raises:
        PortError: there is no such format.
    """
    if name not in FORMATS:
        known_names = ", ".join(FORMATS)
        raise PortError(
            f"there is no format {name!r}",
            where="--format",
            fix=f"use one of {known_names}",
        )
    # Each format is imported when it is needed: XML, for instance, would slow down
    # every start.
    module = importlib.import_module(f"tpuport.lint.reports.{_MODULE_BY_FORMAT[name]}")
    return module.render(report, options or Options())
