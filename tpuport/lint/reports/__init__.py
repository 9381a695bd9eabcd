"""A run's report as text: one format a file, each a function `render(report, options)`."""

import dataclasses
import importlib
from typing import Final

from tpuport.errors import PortError
from tpuport.lint.report import Report

FORMATS: Final = ("text", "concise", "json", "sarif", "github", "gitlab", "junit")


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How a report is to look; a format that has no use for one passes over it.

    Attributes:
        color: escape codes of a terminal.
        show_source: the line, with a caret below what is meant.
        statistics: how many findings each rule has, instead of the findings.
    """

    color: bool = False
    show_source: bool = True
    statistics: bool = False


def render(name: str, report: Report, options: Options | None = None) -> str:
    """A report in one of the `FORMATS`, ending with a line end.

    Raises:
        PortError: there is no such format.
    """
    if name not in FORMATS:
        raise PortError(
            f"there is no format {name!r}", where="--format", fix=f"take one of {', '.join(FORMATS)}"
        )
    module = importlib.import_module(f"tpuport.lint.reports.{name if name != 'json' else 'json_'}")
    return module.render(report, options or Options())
