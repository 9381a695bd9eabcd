"""Reports as tables for a terminal."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tpuport.topology.compile_messages import CompileResult
from tpuport.topology.mesh_splits import RANKED_BY, tried_splits, untried_reasons
from tpuport.topology.reports import profile_text, quantities
from tpuport.topology.reports.text_layout import (
    BAR_COLUMNS,
    MAX_ROWS,
    grid,
    indent,
    section,
    source_line,
    table,
)

_PART_COLOURS: Final = {
    "weights": "blue", "cache": "cyan", "arguments": "magenta", "outputs": "green", "temporaries": "yellow",
    "code": "white", "other": "red",
}  # fmt: skip
# Any other implementation is slower than tpuport's own kernel.
_KERNEL_STYLES: Final = {"flash": "green"}
# Parts smaller than half a permille get no bar at all.
_SMALLEST_BAR: Final = 0.0005
_MAX_KERNELS: Final = 4


def render_results(
    results: Sequence[CompileResult],
    splits: Sequence[dict[str, Any]] | None = None,
    runs: Sequence[dict[str, Any]] | None = None,
    *,
    profile: bool = False,
) -> RenderableType:
    """The ranking of splits, and all results, one below the other.

    Args:
        results: as `document` takes them; splits, runs: likewise.
        profile: whether each result ends with where its time goes, by module, line and
            instruction.
    """
    parts: list[RenderableType] = []
    # First, because it is what the user asked for; the results are of the best split.
    if splits is not None:
        parts += [*_suggestion(splits), Text("")]
    if runs is not None:
        parts += itertools.chain.from_iterable(map(_run, runs))
    for result in results:
        parts += _result(result, profile)
        if (
            profile
            and result.report is not None
            and result.report["profile"] is not None
        ):
            parts += profile_text.where_time_goes(
                result.target, result.topology, result.report
            )
            parts.append(Text(""))
    return Group(*parts)


def _headline(result: CompileResult) -> Text:
    """The verdict: whether it fits, and how much memory it takes."""
    report = result.report
    if report is None:
        assert result.failure is not None
        return Text.assemble(
            ("cannot be compiled: ", "bold red"), result.failure["message"]
        )
    figures = f"{quantities.used_memory(report['memory'])} a {quantities.memory_unit(report['generation'])}"
    if result.fits:
        return Text.assemble(("fits: ", "bold green"), figures)
    return Text.assemble(("does not fit: ", "bold red"), figures)


def _result(result: CompileResult, profile: bool) -> Iterator[RenderableType]:
    report = result.report
    title = quantities.title(result.target, result.topology, report)
    # Names of models and paths are `Text`, as rich would read brackets in a plain
    # string as markup.
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
        yield from _sections(report, profile)
    yield Text("")


def _program_line(report: dict[str, Any]) -> Text:
    # A table of 256 bytes does not characterize the weights.
    dtypes = [
        name
        for name, nbytes in report["dtypes"].items()
        if nbytes > report["weight_bytes"] / 1000
    ]
    return Text(
        f"{report['task']} of {report['model']}, {quantities.number_in_words(report['parameters'])} parameters in "
        f"{', '.join(dtypes) or 'no weights'}, {quantities.mesh_name(report['mesh'], report['devices'])}"
    )


def _compilation_line(result: CompileResult, report: dict[str, Any]) -> Text:
    """How long compiling took, and how the program was compiled."""
    times = ", ".join(
        f"{stage} {quantities.duration(seconds)}"
        for stage, seconds in result.seconds.items()
    )
    if result.cached:
        times += " (kept from an earlier run)"
    loops = ", ".join(
        f"{loop['name']} ({loop['count']} blocks in a loop)"
        for loop in report["scanned"]
    )
    effort = quantities.optional("effort {:g}".format, report["effort"])
    return Text("; ".join(filter(None, (times, loops, effort))), style="dim")


def _sections(report: dict[str, Any], profile: bool) -> Iterator[RenderableType]:
    yield from section("Memory", _memory(report["memory"]))
    if report["costs"] is not None:
        yield from section("Work a step", _costs(report["costs"]))
    if report["estimate"] is not None:
        yield from section(
            "Roofline, an estimate from public peak figures",
            _estimate(report["estimate"]),
        )
    # The profile begins with it.
    if report["profile"] is not None and not profile:
        yield from section("Estimated time", profile_text.time_of_step(report))
    has_program = quantities.has_program(report)
    if has_program:
        yield from section("Collectives a step", _collectives(report["collectives"]))
    if report["buffers"] and not report["failure"]:
        yield from section("Largest temporaries", _buffers(report["buffers"]))
    if report["attention"]:
        yield from section("Attention", _attention(report["attention"]))
    if has_program or report["advice"]:
        yield from section("Advice", _advice(report["advice"]))


def _memory(memory: dict[str, Any]) -> RenderableType:
    rows = grid(3)
    # Bars: one that wraps cannot be read.
    rows.add_column(no_wrap=True)
    capacity = memory["capacity"]
    for part, nbytes in quantities.memory_parts(memory).items():
        rows.add_row(part, *_memory_cells(nbytes, capacity, _PART_COLOURS[part]))
    if memory["used"] is None:
        return rows
    free = capacity - memory["used"]
    if free >= 0:
        rows.add_row("free", *_memory_cells(free, capacity, "dim", block="░"))
    else:
        rows.add_row("too much", *_memory_cells(-free, capacity, "red"))
    return rows


def _memory_cells(
    nbytes: int | None, capacity: int, colour: str, block: str = "█"
) -> tuple[RenderableType, ...]:
    """Size, share of the capacity, and a bar that is cut off at twice the capacity."""
    if nbytes is None:
        return Text("unknown", justify="right"), "", ""
    # A program that does not fit may need a hundred times the capacity.
    share = nbytes / capacity
    bar = block * min(2 * BAR_COLUMNS, round(share * BAR_COLUMNS))
    if not bar and share >= _SMALLEST_BAR:
        bar = "▏"
    return (
        Text(quantities.memory_size(nbytes), justify="right"),
        f"{share:.1%}",
        Text(bar, style=colour),
    )


def _costs(costs: dict[str, Any]) -> RenderableType:
    rows = grid(2)
    rows.add_row("operations", quantities.operations(costs, per=" a device"))
    if costs["model_flops"]:
        rows.add_row(
            "of the model", quantities.model_operations(costs, per=" a device")
        )
    rows.add_row("HBM traffic", f"{quantities.traffic(costs['hbm_bytes'])} a device")
    for kernel in costs["kernels"][:_MAX_KERNELS]:
        rows.add_row(f"kernel {kernel['name']}", quantities.kernel_work(kernel))
    return rows


def _estimate(estimate: dict[str, Any]) -> RenderableType:
    rows = grid(2)
    parts = {name: estimate[name] for name in ("compute", "memory", "interconnect")}
    # A program that does nothing takes no time.
    longest = max(parts.values()) or 1.0
    styles = dict.fromkeys(parts, "dim") | {estimate["binds"]: "yellow"}
    for name, seconds in parts.items():
        bar = "█" * round(seconds / longest * BAR_COLUMNS)
        rows.add_row(
            name,
            Text.assemble(f"{quantities.duration(seconds):>8} ", (bar, styles[name])),
        )
    rows.add_row(
        "a step",
        f"{quantities.duration(estimate['seconds'])}, bound by {estimate['binds']} "
        f"({quantities.duration(estimate['seconds_apart'])} without overlap)",
    )
    if estimate["units"]:
        rows.add_row(
            estimate["unit"],
            f"{quantities.plain_number(estimate['units_per_second'])} a second at most "
            f"({quantities.plain_number(estimate['units_per_second_apart'])})",
        )
    rows.add_row("MFU", f"{estimate['mfu']:.1%} at most ({estimate['mfu_apart']:.1%})")
    return rows


def _collectives(collectives: list[dict[str, Any]]) -> RenderableType:
    if not collectives:
        return Text("none")
    rows = table("kind", "axes", ">times", ">bytes", "from")
    for collective in collectives[:MAX_ROWS]:
        axes = "+".join(collective["axes"]) or f"groups of {collective['group']}"
        rows.add_row(
            collective["kind"],
            axes,
            *_totals([collective]),
            source_line(collective["source"]),
        )
    # In one row, so that the sum below adds up.
    if others := collectives[MAX_ROWS:]:
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
    for buffer in buffers[:MAX_ROWS]:
        rows.add_row(
            quantities.memory_size(buffer["nbytes"]),
            Text(f"{buffer['shape']} {buffer['operation']}"),
            f"{buffer['count']:,}",
            source_line(buffer["source"]),
        )
    return rows


def _attention(calls: list[dict[str, Any]]) -> RenderableType:
    rows: list[RenderableType] = []
    for call in calls[:MAX_ROWS]:
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
        rows.append(
            indent(
                Text(
                    quantities.attention_reasons(
                        call, "reason", "mask", "mesh", "padding"
                    )
                )
            )
        )
    if len(calls) > MAX_ROWS:
        rows.append(Text(f"{len(calls) - MAX_ROWS} more", style="dim"))
    return Group(*rows)


def _advice(findings: list[dict[str, Any]]) -> RenderableType:
    if not findings:
        return Text("none: no rule found anything")
    rows: list[RenderableType] = []
    for finding in findings:
        title = Text.assemble((finding["rule"], "bold yellow"), f" {finding['name']}")
        if finding["seconds"]:
            title.append(f"  {quantities.duration(finding['seconds'])} a step")
        if finding["source"]:
            title.append(f"  {quantities.short_source(finding['source'])}", style="dim")
        body = Table.grid(padding=(0, 1))
        body.add_row(Text("why"), Text(finding["message"]))
        body.add_row(Text("do"), Text(finding["remedy"]))
        rows += [title, indent(body, expand=True)]
    return Group(*rows)


def _failure(failure: dict[str, Any]) -> Iterator[RenderableType]:
    """Why there is no program that fits."""
    explanations = {
        "what": failure["message"],
        "where": quantities.optional(_source_and_code, failure["source"]),
        "rule": quantities.optional(
            "{0}: `tpuport lint --explain {0}` explains it".format, failure["rule"]
        ),
        "do": failure["remedy"],
    }
    body = grid(2)
    for name, text in explanations.items():
        if text:
            # `Text` and not markup: messages and code may contain brackets.
            body.add_row(name, Text(text))
    yield Text("")
    yield indent(body, expand=True)
    if failure["buffers"]:
        yield Text("What the compiler wanted to keep", style="bold")
        yield indent(_buffers(failure["buffers"]))
    if failure["traceback"]:
        yield Text(failure["traceback"].rstrip(), style="dim")


def _source_and_code(source: dict[str, Any]) -> str:
    return f"{source['file']}:{source['line']}, in {source['function']}\n{source['code']}".rstrip()


def _run(run: dict[str, Any]) -> Iterator[RenderableType]:
    """What a run comes to, and the calls that it consists of."""
    yield Text(quantities.run_headline(run), style="bold")
    rows = grid(4)
    for part in run["parts"]:
        rows.add_row(*quantities.run_part(part))
    yield indent(rows)
    yield Text("")


def _suggestion(splits: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    yield Rule(
        Text("Mesh splits, the best first", style="bold"), align="left", style="dim"
    )
    rows = table(
        "program",
        "split",
        "",
        ">GiB used",
        ">a step",
        ">at least",
        ">a second",
        "bound by",
    )
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
            quantities.optional(quantities.duration, split["roofline"]),
            quantities.units_per_second(split),
            split["binds"],
        )
    yield rows
    for program, reasons in untried_reasons(splits).items():
        yield Text(f"Left out for {program}: {reasons}", style="dim")
    yield Text(RANKED_BY, style="dim")
