"""Reports as tables for a terminal."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tpuport.topology.compile_messages import CompileResult
from tpuport.topology.mesh_splits import RANKED_BY, tried_splits, untried_reasons
from tpuport.topology.reports import quantities

_PART_COLOURS: Final = {
    "weights": "blue", "cache": "cyan", "arguments": "magenta", "outputs": "green", "temporaries": "yellow",
    "code": "white", "other": "red",
}  # fmt: skip
# Any other implementation is slower than tpuport's own kernel.
_KERNEL_STYLES: Final = {"flash": "green"}
_BAR_COLUMNS: Final = 24
# Parts smaller than half a permille get no bar at all.
_SMALLEST_BAR: Final = 0.0005
# A terminal shows the most important rows; the page has more, and JSON has all.
_MAX_ROWS: Final = 8
_MAX_KERNELS: Final = 4


def render_results(
    results: Sequence[CompileResult], splits: Sequence[dict[str, Any]] | None = None
) -> RenderableType:
    """The ranking of splits, and all results, one below the other.

    Args:
        results: as `document` takes them; splits: likewise.
    """
    parts: list[RenderableType] = []
    # First, because it is what the user asked for; the results are of the best split.
    if splits is not None:
        parts += [*_suggestion(splits), Text("")]
    parts += itertools.chain.from_iterable(map(_result, results))
    return Group(*parts)


def _headline(result: CompileResult) -> Text:
    """The verdict: whether it fits, and how much memory it takes."""
    report = result.report
    if report is None:
        assert result.failure is not None
        return Text.assemble(("cannot be compiled: ", "bold red"), result.failure["message"])
    figures = f"{quantities.used_memory(report['memory'])} a {quantities.memory_unit(report['generation'])}"
    if result.fits:
        return Text.assemble(("fits: ", "bold green"), figures)
    return Text.assemble(("does not fit: ", "bold red"), figures)


def _result(result: CompileResult) -> Iterator[RenderableType]:
    report = result.report
    title = quantities.title(result.target, result.topology, report)
    # Names of models and paths are `Text`, as rich would read brackets in a plain string as markup.
    yield Rule(Text(title, style="bold"), align="left", style="dim")
    yield _headline(result)
    notes = [Text(f"note: {note}", style="dim") for note in result.notes]
    if report is None:
        assert result.failure is not None
        yield from notes
        # The headline has the message already.
        yield from _failure({**result.failure, "message": ""})
    else:
        yield _program_line(report)
        yield _compilation_line(result, report)
        yield from notes
        if report["failure"] is not None:
            yield from _failure(report["failure"])
        yield from _sections(report)
    yield Text("")


def _program_line(report: dict[str, Any]) -> Text:
    # A table of 256 bytes does not characterize the weights.
    dtypes = [name for name, nbytes in report["dtypes"].items() if nbytes > report["weight_bytes"] / 1000]
    return Text(
        f"{report['task']} of {report['model']}, {quantities.number_in_words(report['parameters'])} parameters in "
        f"{', '.join(dtypes) or 'no weights'}, {quantities.mesh_name(report['mesh'], report['devices'])}"
    )


def _compilation_line(result: CompileResult, report: dict[str, Any]) -> Text:
    """How long compiling took, and how the program was compiled."""
    times = ", ".join(f"{stage} {quantities.duration(seconds)}" for stage, seconds in result.seconds.items())
    if result.cached:
        times += " (kept from an earlier run)"
    loops = ", ".join(f"{loop['name']} ({loop['count']} blocks in a loop)" for loop in report["scanned"])
    effort = quantities.optional("effort {:g}".format, report["effort"])
    return Text("; ".join(filter(None, (times, loops, effort))), style="dim")


def _sections(report: dict[str, Any]) -> Iterator[RenderableType]:
    yield from _section("Memory", _memory(report["memory"]))
    if report["costs"] is not None:
        yield from _section("Work a step", _costs(report["costs"]))
    if report["estimate"] is not None:
        yield from _section("Roofline, an estimate from public peak figures", _estimate(report["estimate"]))
    has_program = quantities.has_program(report)
    if has_program:
        yield from _section("Collectives a step", _collectives(report["collectives"]))
    if report["buffers"] and not report["failure"]:
        yield from _section("Largest temporaries", _buffers(report["buffers"]))
    if report["attention"]:
        yield from _section("Attention", _attention(report["attention"]))
    if has_program or report["advice"]:
        yield from _section("Advice", _advice(report["advice"]))


def _section(title: str, body: RenderableType) -> Iterator[RenderableType]:
    yield Text("")
    yield Text(title, style="bold")
    yield _indent(body)


def _memory(memory: dict[str, Any]) -> RenderableType:
    grid = _grid(3)
    # Bars: one that wraps cannot be read.
    grid.add_column(no_wrap=True)
    capacity = memory["capacity"]
    for part, nbytes in quantities.memory_parts(memory).items():
        grid.add_row(part, *_memory_cells(nbytes, capacity, _PART_COLOURS[part]))
    if memory["used"] is None:
        return grid
    free = capacity - memory["used"]
    if free >= 0:
        grid.add_row("free", *_memory_cells(free, capacity, "dim", block="░"))
    else:
        grid.add_row("too much", *_memory_cells(-free, capacity, "red"))
    return grid


def _memory_cells(
    nbytes: int | None, capacity: int, colour: str, block: str = "█"
) -> tuple[RenderableType, ...]:
    """Size, share of the capacity, and a bar that is cut off at twice the capacity."""
    if nbytes is None:
        return Text("unknown", justify="right"), "", ""
    # A program that does not fit may need a hundred times the capacity.
    share = nbytes / capacity
    bar = block * min(2 * _BAR_COLUMNS, round(share * _BAR_COLUMNS))
    if not bar and share >= _SMALLEST_BAR:
        bar = "▏"
    return Text(quantities.memory_size(nbytes), justify="right"), f"{share:.1%}", Text(bar, style=colour)


def _costs(costs: dict[str, Any]) -> RenderableType:
    grid = _grid(2)
    grid.add_row("operations", quantities.operations(costs, per=" a device"))
    if costs["model_flops"]:
        grid.add_row("of the model", quantities.model_operations(costs, per=" a device"))
    grid.add_row("HBM traffic", f"{quantities.traffic(costs['hbm_bytes'])} a device")
    for kernel in costs["kernels"][:_MAX_KERNELS]:
        grid.add_row(f"kernel {kernel['name']}", quantities.kernel_work(kernel))
    return grid


def _estimate(estimate: dict[str, Any]) -> RenderableType:
    grid = _grid(2)
    parts = {name: estimate[name] for name in ("compute", "memory", "interconnect")}
    # A program that does nothing takes no time.
    longest = max(parts.values()) or 1.0
    styles = dict.fromkeys(parts, "dim") | {estimate["binds"]: "yellow"}
    for name, seconds in parts.items():
        bar = "█" * round(seconds / longest * _BAR_COLUMNS)
        grid.add_row(name, Text.assemble(f"{quantities.duration(seconds):>8} ", (bar, styles[name])))
    grid.add_row(
        "a step",
        f"{quantities.duration(estimate['seconds'])}, bound by {estimate['binds']} "
        f"({quantities.duration(estimate['seconds_apart'])} without overlap)",
    )
    if estimate["units"]:
        grid.add_row(
            estimate["unit"],
            f"{quantities.plain_number(estimate['units_per_second'])} a second at most "
            f"({quantities.plain_number(estimate['units_per_second_apart'])})",
        )
    grid.add_row("MFU", f"{estimate['mfu']:.1%} at most ({estimate['mfu_apart']:.1%})")
    return grid


def _collectives(collectives: list[dict[str, Any]]) -> RenderableType:
    if not collectives:
        return Text("none")
    rows = table("kind", "axes", ">times", ">bytes", "from")
    for collective in collectives[:_MAX_ROWS]:
        axes = "+".join(collective["axes"]) or f"groups of {collective['group']}"
        rows.add_row(collective["kind"], axes, *_totals([collective]), _source_line(collective["source"]))
    # In one row, so that the sum below adds up.
    if others := collectives[_MAX_ROWS:]:
        rows.add_row(f"{len(others)} more", "", *_totals(others), "")
    if len(collectives) > 1:
        rows.add_row("all", "", *_totals(collectives), "", style="bold")
    return rows


def _totals(collectives: list[dict[str, Any]]) -> tuple[str, str]:
    """How many, and how many bytes."""
    count = sum(collective["count"] for collective in collectives)
    nbytes = sum(collective["nbytes"] for collective in collectives)
    return f"{count:,}", quantities.traffic(nbytes)


def _buffers(buffers: list[dict[str, Any]]) -> RenderableType:
    rows = table(">size", "array", ">times", "from")
    for buffer in buffers[:_MAX_ROWS]:
        rows.add_row(
            quantities.memory_size(buffer["nbytes"]),
            Text(f"{buffer['shape']} {buffer['operation']}"),
            f"{buffer['count']:,}",
            _source_line(buffer["source"]),
        )
    return rows


def _attention(calls: list[dict[str, Any]]) -> RenderableType:
    rows: list[RenderableType] = []
    for call in calls[:_MAX_ROWS]:
        implementation = call["implementation"]
        style = _KERNEL_STYLES.get(implementation, "yellow")
        site = "/".join(PurePath(call["site"]).parts[-2:])
        rows.append(
            Text.assemble(
                (f"{implementation} x{call['calls']:,}", style),
                f"  {call['dtype']} {quantities.dimensions(call['query'])} on {quantities.dimensions(call['key'])}",
                (f"  {call['module']} {site}", "dim"),
            )
        )
        rows.append(_indent(Text(quantities.attention_reasons(call, "reason", "mask", "mesh", "padding"))))
    if len(calls) > _MAX_ROWS:
        rows.append(Text(f"{len(calls) - _MAX_ROWS} more", style="dim"))
    return Group(*rows)


def _advice(findings: list[dict[str, Any]]) -> RenderableType:
    if not findings:
        return Text("none: no rule found anything")
    rows: list[RenderableType] = []
    for finding in findings:
        title = Text.assemble((finding["rule"], "bold yellow"), f" {finding['name']}")
        if finding["source"]:
            title.append(f"  {quantities.short_source(finding['source'])}", style="dim")
        body = Table.grid(padding=(0, 1))
        body.add_row(Text("why"), Text(finding["message"]))
        body.add_row(Text("do"), Text(finding["remedy"]))
        rows += [title, _indent(body, expand=True)]
    return Group(*rows)


def _failure(failure: dict[str, Any]) -> Iterator[RenderableType]:
    """Why there is no program that fits."""
    explanations = {
        "what": failure["message"],
        "where": quantities.optional(_source_and_code, failure["source"]),
        "rule": quantities.optional("{0}: `tpuport lint --explain {0}` explains it".format, failure["rule"]),
        "do": failure["remedy"],
    }
    body = _grid(2)
    for name, text in explanations.items():
        if text:
            # `Text` and not markup: messages and code may contain brackets.
            body.add_row(name, Text(text))
    yield Text("")
    yield _indent(body, expand=True)
    if failure["buffers"]:
        yield Text("What the compiler wanted to keep", style="bold")
        yield _indent(_buffers(failure["buffers"]))
    if failure["traceback"]:
        yield Text(failure["traceback"].rstrip(), style="dim")


def _source_and_code(source: dict[str, Any]) -> str:
    return f"{source['file']}:{source['line']}, in {source['function']}\n{source['code']}".rstrip()


def _suggestion(splits: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    yield Rule(Text("Mesh splits, the best first", style="bold"), align="left", style="dim")
    rows = table("program", "split", "", ">GiB used", ">a step", ">a second", "bound by")
    for split in tried_splits(splits):
        verdict = Text("fits", style="green")
        if not split["fits"]:
            verdict = Text(split["why"], style="red")
        rows.add_row(
            Text(f"{split['target']} on {split['topology']}"),
            Text(quantities.split_name(split)),
            verdict,
            quantities.optional(quantities.gib, split["used"], missing="?"),
            quantities.optional(quantities.duration, split["seconds"]),
            quantities.units_per_second(split),
            split["binds"],
        )
    yield rows
    for program, reasons in untried_reasons(splits).items():
        yield Text(f"Left out for {program}: {reasons}", style="dim")
    yield Text(RANKED_BY, style="dim")


def table(*headings: str) -> Table:
    """A table without a frame; a heading that starts with ">" is of numbers."""
    rows = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for heading in headings:
        if heading.startswith(">"):
            rows.add_column(heading[1:], justify="right", overflow="fold", no_wrap=True)
        else:
            # Folded, because a name that is cut off cannot be searched for.
            rows.add_column(heading, overflow="fold")
    return rows


def _grid(columns: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    for _ in range(columns):
        grid.add_column(overflow="fold")
    return grid


def _indent(body: RenderableType, *, expand: bool = False) -> Padding:
    return Padding(body, (0, 0, 0, 2), expand=expand)


def _source_line(source: dict[str, Any] | None) -> Text:
    if source is None:
        return Text("")
    return Text(f"{quantities.short_source(source)} {source['function']}", style="dim")
