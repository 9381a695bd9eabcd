"""How reports are laid out in a terminal: sections, tables and grids, and lines of
code.
"""

from collections.abc import Iterator
from typing import Any, Final

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tpuport.topology.reports import quantities

BAR_COLUMNS: Final = 24
# A terminal shows the most important rows; the page has more, and JSON has all.
MAX_ROWS: Final = 8


def section(title: str, body: RenderableType) -> Iterator[RenderableType]:
    """A body under a heading."""
    yield Text("")
    yield Text(title, style="bold")
    yield indent(body)


def table(*headings: str) -> Table:
    """A table without a frame; a heading that starts with ">" is of numbers."""
    rows = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim"
    )
    for heading in headings:
        if heading.startswith(">"):
            rows.add_column(heading[1:], justify="right", overflow="fold", no_wrap=True)
        else:
            # Folded, because a name that is cut off cannot be searched for.
            rows.add_column(heading, overflow="fold")
    return rows


def grid(columns: int) -> Table:
    """Columns without headings."""
    rows = Table.grid(padding=(0, 2))
    for _ in range(columns):
        rows.add_column(overflow="fold")
    return rows


def indent(body: RenderableType, *, expand: bool = False) -> Padding:
    """A body that is set in."""
    return Padding(body, (0, 0, 0, 2), expand=expand)


def source_line(source: dict[str, Any] | None) -> Text:
    """A line of code and its function; nothing if it is not known."""
    if source is None:
        return Text("")
    return Text(f"{quantities.short_source(source)} {source['function']}", style="dim")
