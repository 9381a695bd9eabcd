"""Where the time of a step goes, for a terminal: by kind, module, line of code and
instruction.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from tpuport.topology.reports import estimated_time, quantities
from tpuport.topology.reports.text_layout import (
    BAR_COLUMNS,
    grid,
    section,
    source_line,
    table,
)

# More rows than of anything else, as who asks for the profile wants to see it; but none
# that rounds to nothing.
_MAX_ROWS: Final = 16
_SMALLEST_SHARE: Final = 0.0005


def time_of_step(report: dict[str, Any]) -> RenderableType:
    """A bar for each kind of work, and what a step comes to."""
    profile = report["profile"]
    rows = grid(2)
    kinds = estimated_time.kinds(profile)
    longest = max(kinds.values(), default=0.0) or 1.0
    for kind, seconds in kinds.items():
        bar = "█" * round(seconds / longest * BAR_COLUMNS)
        style = "yellow" if seconds == longest else "dim"
        rows.add_row(
            kind, Text.assemble(f"{quantities.duration(seconds):>8} ", (bar, style))
        )
    for name, text in estimated_time.facts(report).items():
        rows.add_row(name, text)
    return rows


def where_time_goes(
    target: str, topology: str, report: dict[str, Any]
) -> Iterator[RenderableType]:
    """The profile's tables under a line that says how fast the program is."""
    profile = report["profile"]
    title = f"{estimated_time.headline(target, topology, report)}: where the time goes"
    yield from section(title, time_of_step(report))
    yield from section(
        "Time by module", _times(profile, "module", profile["modules"], _module_name)
    )
    yield from section(
        "Time by line", _times(profile, "line", profile["lines"], _line_name)
    )
    yield from section("The instructions that take longest", _instructions(profile))


def _times(
    profile: dict[str, Any],
    heading: str,
    parts: Sequence[dict[str, Any]],
    name: Callable[[Any], RenderableType],
) -> RenderableType:
    """Modules or lines, with the kind of work that takes most of each."""
    rows = table(">a step", ">share", heading, "mostly")
    large = [
        part
        for part in parts[:_MAX_ROWS]
        if part["seconds"] >= _SMALLEST_SHARE * profile["seconds"]
    ]
    for part in large:
        rows.add_row(
            *_time_cells(part["seconds"], profile),
            name(part),
            estimated_time.main_kind(part),
        )
    others = parts[len(large) :]
    if not others:
        return rows
    rest = sum(part["seconds"] for part in others)
    rows.add_row(
        *_time_cells(rest, profile), Text(f"and {len(others)} more", style="dim"), ""
    )
    return rows


def _time_cells(seconds: float, profile: dict[str, Any]) -> tuple[str, str]:
    return quantities.duration(seconds), estimated_time.share(seconds, profile)


def _module_name(module: dict[str, Any]) -> Text:
    return Text(module["name"]) if module["name"] else Text("in no module", style="dim")


def _line_name(line: dict[str, Any]) -> RenderableType:
    source = line["source"]
    if source is None:
        return Text("the compiler names no line", style="dim")
    return Group(
        source_line(source), Text(source["code"], no_wrap=True, overflow="ellipsis")
    )


def _instructions(profile: dict[str, Any]) -> RenderableType:
    rows = table(
        ">a step", ">share", ">times", "bound by", ">MFU", ">HBM", "instruction"
    )
    for instruction in profile["instructions"]:
        rows.add_row(
            *_time_cells(instruction["seconds"], profile),
            f"{instruction['times']:,}",
            instruction["bound"],
            f"{instruction['mfu']:.0%}",
            f"{instruction['hbm']:.0%}",
            _instruction_name(instruction),
        )
    return rows


def _instruction_name(instruction: dict[str, Any]) -> RenderableType:
    """What it is, its shape and layout, and whose code it is."""
    lines: list[RenderableType] = [
        Text.assemble((instruction["name"], "bold"), f"  {instruction['kind']}"),
        Text(instruction["shape"], overflow="fold"),
    ]
    origin = Text("  ").join(
        filter(None, (Text(instruction["module"]), source_line(instruction["source"])))
    )
    if origin:
        lines.append(origin)
    return Group(*lines)
