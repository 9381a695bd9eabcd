"""Reports as tables for a terminal."""

from collections.abc import Iterator
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tpuport.topology.mesh_splits import RANKED_BY, left_out
from tpuport.topology.reports import Result, quantities

PARTS: Final = ("weights", "cache", "arguments", "outputs", "temporaries", "code")
COLOURS: Final = ("blue", "cyan", "magenta", "green", "yellow", "white")
_BAR: Final = 24
_ROWS: Final = 8
_KERNELS: Final = 4


def rendered(results: list[Result], suggestion: list[dict[str, Any]] | None = None) -> RenderableType:
    """The ranking of splits, and all results, one below the other.

    Args:
        results: as `document` takes them.
        suggestion: plain values, the best first; None where none were asked for.
    """
    parts: list[RenderableType] = []
    if suggestion is not None:
        parts += [*_suggestion(suggestion), Text("")]
    for result in results:
        parts += _result(result)
    return Group(*parts)


def headline(result: Result) -> Text:
    """The verdict: whether it fits, and by how much."""
    report = result.report
    if report is None:
        return Text.assemble(("cannot be compiled: ", "bold red"), (result.reason or {}).get("message", ""))
    memory, device = report["memory"], quantities.device(report["generation"])
    figures = f"{quantities.used(memory)} a {device}"
    if result.fits:
        return Text.assemble(("fits: ", "bold green"), figures)
    return Text.assemble(("does not fit: ", "bold red"), figures)


def _result(result: Result) -> Iterator[RenderableType]:
    title = quantities.title(result.target, result.topology, result.report)
    yield Rule(Text(title, style="bold"), align="left", style="dim")
    yield headline(result)
    if result.report is not None:
        yield from _facts(result)
    for note in result.notes:
        yield Text(f"note: {note}", style="dim")
    if result.reason is not None:
        yield from _failure(result.reason, result.report is None)
    if result.report is not None:
        yield from _sections(result.report)
    yield Text("")


def _facts(result: Result) -> Iterator[RenderableType]:
    report = result.report or {}
    # A table of 256 bytes says nothing of what the weights are.
    told = [name for name, held in report["dtypes"].items() if held > report["weight_bytes"] / 1000]
    dtypes = ", ".join(told) or "no weights"
    yield Text(
        f"{report['task']} of {report['model']}, {quantities.counted(report['parameters'])} parameters in {dtypes}, "
        f"{quantities.mesh(report['mesh'], report['devices'])}"
    )
    took = ", ".join(f"{name} {quantities.span(spent)}" for name, spent in result.seconds.items())
    scanned = ", ".join(f"{one['name']} ({one['count']} blocks in a loop)" for one in report["scanned"])
    effort = "" if report["effort"] is None else f"effort {report['effort']:g}"
    took = f"{took} (kept from an earlier run)" if result.cached and took else took
    yield Text("; ".join(part for part in (took, scanned, effort) if part), style="dim")


def _sections(report: dict[str, Any]) -> Iterator[RenderableType]:
    # Else there is no program to look into; one that no code can be made of may still have its collectives.
    whole = report["costs"] is not None or bool(report["collectives"])
    for title, body in (
        ("Memory", _memory(report)),
        ("Work a step", _costs(report)),
        ("Roofline, an estimate from public peak figures", _estimate(report["estimate"])),
        ("Collectives a step", _collectives(report["collectives"]) if whole else None),
        ("Largest temporaries", None if report["failure"] else _buffers(report["buffers"])),
        ("Attention", _attention(report["attention"])),
        ("Advice", _advice(report["advice"]) if whole or report["advice"] else None),
    ):
        if body is not None:
            yield Text("")
            yield Text(title, style="bold")
            yield Padding(body, (0, 0, 0, 2), expand=False)


def _memory(report: dict[str, Any]) -> RenderableType:
    memory, shown = report["memory"], _grid(3)
    shown.add_column(no_wrap=True)
    rows = [(name, memory[name], colour) for name, colour in zip(PARTS, COLOURS, strict=True)]
    if rest := quantities.rest(memory, PARTS):
        rows.append(("other", rest, "red"))
    if memory["used"] is not None:
        free = memory["capacity"] - memory["used"]
        rows.append(("free", free, "dim") if free >= 0 else ("too much", -free, "red"))
    for name, nbytes, colour in rows:
        if nbytes is None:
            shown.add_row(name, Text("unknown", justify="right"), "", "")
            continue
        portion = nbytes / memory["capacity"]
        bar = ("░" if name == "free" else "█") * min(2 * _BAR, round(portion * _BAR))
        size = Text(quantities.room(nbytes), justify="right")
        shown.add_row(
            name, size, f"{portion:.1%}", Text(bar or ("▏" if portion >= 0.0005 else ""), style=colour)
        )
    return shown


def _costs(report: dict[str, Any]) -> RenderableType | None:
    costs = report["costs"]
    if costs is None:
        return None
    shown = _grid(2)
    shown.add_row(
        "operations",
        f"{quantities.flops(costs['flops'])} a device{quantities.elementwise(costs)}{quantities.rates(costs)}",
    )
    if costs["model_flops"]:
        shown.add_row(
            "of the model",
            f"{quantities.flops(costs['model_flops'])} a device{quantities.done(costs)}",
        )
    shown.add_row("HBM traffic", f"{quantities.moved(costs['hbm_bytes'])} a device")
    for kernel in costs["kernels"][:_KERNELS]:
        shown.add_row(f"kernel {kernel['name']}", quantities.kernel(kernel))
    return shown


def _estimate(estimate: dict[str, Any] | None) -> RenderableType | None:
    if estimate is None:
        return None
    shown = _grid(2)
    longest = max(estimate["compute"], estimate["memory"], estimate["interconnect"])
    for name in ("compute", "memory", "interconnect"):
        bar = "█" * round(quantities.share(estimate[name], longest) * _BAR)
        shown.add_row(
            name,
            Text.assemble(
                f"{quantities.span(estimate[name]):>8} ",
                (bar, "yellow" if name == estimate["binds"] else "dim"),
            ),
        )
    unit = estimate["unit"]
    shown.add_row(
        "a step",
        f"{quantities.span(estimate['seconds'])}, bound by {estimate['binds']} "
        f"({quantities.span(estimate['seconds_apart'])} with nothing at the same time)",
    )
    if estimate["units"]:
        shown.add_row(
            unit,
            f"{quantities.number(estimate['units_per_second'])} a second at most "
            f"({quantities.number(estimate['units_per_second_apart'])})",
        )
    shown.add_row("MFU", f"{estimate['mfu']:.1%} at most ({estimate['mfu_apart']:.1%})")
    return shown


def _collectives(collectives: list[dict[str, Any]]) -> RenderableType:
    if not collectives:
        return Text("none")
    shown = table("kind", "axes", ">times", ">bytes", "from")
    for one in collectives[:_ROWS]:
        axes = "+".join(one["axes"]) or f"groups of {one['group']}"
        shown.add_row(
            one["kind"], axes, f"{one['count']:,}", quantities.moved(one["nbytes"]), _line(one["source"])
        )
    rest = collectives[_ROWS:]
    if rest:
        count, nbytes = sum(one["count"] for one in rest), sum(one["nbytes"] for one in rest)
        shown.add_row(f"{len(rest)} more", "", f"{count:,}", quantities.moved(nbytes), "")
    if len(collectives) > 1:
        count, nbytes = (sum(one[key] for one in collectives) for key in ("count", "nbytes"))
        shown.add_row("all", "", f"{count:,}", quantities.moved(nbytes), "", style="bold")
    return shown


def _buffers(buffers: list[dict[str, Any]]) -> RenderableType | None:
    if not buffers:
        return None
    shown = table(">size", "array", ">times", "from")
    for one in buffers[:_ROWS]:
        shown.add_row(
            quantities.room(one["nbytes"]),
            Text(f"{one['shape']} {one['operation']}"),
            f"{one['count']:,}",
            _line(one["source"]),
        )
    return shown


def _attention(calls: list[dict[str, Any]]) -> RenderableType | None:
    if not calls:
        return None
    rows: list[RenderableType] = []
    for call in calls[:_ROWS]:
        name = call["implementation"]
        shapes = f"{call['dtype']} {_dims(call['query'])} on {_dims(call['key'])}"
        rows.append(
            Text.assemble(
                (f"{name} x{call['calls']:,}", "green" if name == "flash" else "yellow"), f"  {shapes}",
                (f"  {call['module']} {_short(call['site'])}", "dim"),
            )
        )  # fmt: skip
        reasons = "; ".join(
            part for part in (call["reason"], call["mask"], call["mesh"], call["padding"]) if part
        )
        rows.append(Padding(Text(reasons), (0, 0, 0, 2)))
    if len(calls) > _ROWS:
        rows.append(Text(f"{len(calls) - _ROWS} more", style="dim"))
    return Group(*rows)


def _advice(findings: list[dict[str, Any]]) -> RenderableType:
    if not findings:
        return Text("none: no rule found anything")
    rows: list[RenderableType] = []
    for finding in findings:
        where = quantities.place(finding["source"])
        title = Text.assemble(
            (finding["rule"], "bold yellow"), f" {finding['name']}", (f"  {where}" if where else "", "dim")
        )
        body = Table.grid(padding=(0, 1))
        body.add_row(Text("why"), Text(finding["message"]))
        body.add_row(Text("do"), Text(finding["remedy"]))
        rows += [title, Padding(body, (0, 0, 0, 2))]
    return Group(*rows)


def _failure(failure: dict[str, Any], told: bool) -> Iterator[RenderableType]:
    """Why there is no program that fits; `told` where the headline has said what happened."""
    body = _grid(2)
    source = failure["source"]
    if not told:
        body.add_row("what", Text(failure["message"]))
    if source:
        code = f"\n{source['code']}" if source["code"] else ""
        body.add_row("where", Text(f"{source['file']}:{source['line']}, in {source['function']}{code}"))
    if failure["rule"]:
        body.add_row("rule", Text(f"{failure['rule']}: `tpuport lint --explain {failure['rule']}` says all"))
    if failure["remedy"]:
        body.add_row("do", Text(failure["remedy"]))
    yield Text("")
    yield Padding(body, (0, 0, 0, 2))
    if failure["buffers"]:
        yield Text("What the compiler wanted to keep", style="bold")
        yield Padding(_buffers(failure["buffers"]) or "", (0, 0, 0, 2), expand=False)
    if failure["traceback"]:
        yield Text(failure["traceback"].rstrip(), style="dim")


def _suggestion(suggestion: list[dict[str, Any]]) -> Iterator[RenderableType]:
    yield Rule(Text("Mesh splits, the best first", style="bold"), align="left", style="dim")
    shown = table("program", "split", "", ">GiB used", ">a step", ">a second", "bound by")
    for one in (split for split in suggestion if split["tried"]):
        used = "?" if one["used"] is None else quantities.gib(one["used"])
        unit = (
            f"{quantities.number(one['units_per_second'])} {one['unit']}" if one["units_per_second"] else ""
        )
        shown.add_row(
            Text(f"{one['target']} on {one['topology']}"),
            Text(quantities.mesh(one["mesh"])),
            Text("fits" if one["fits"] else one["why"], style="green" if one["fits"] else "red"),
            used,
            quantities.span(one["seconds"]) if one["seconds"] is not None else "",
            unit,
            one["binds"] or "",
        )
    yield shown
    for program, why in left_out(suggestion).items():
        yield Text(f"Left out for {program}: {why}", style="dim")
    yield Text(RANKED_BY, style="dim")


def _grid(columns: int) -> Table:
    made = Table.grid(padding=(0, 2))
    for _ in range(columns):
        made.add_column(overflow="fold")
    return made


def table(*headings: str) -> Table:
    """A table without a frame; a heading that starts with ">" is of numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for heading in headings:
        right = heading.startswith(">")
        made.add_column(
            heading.removeprefix(">"), justify="right" if right else "left", overflow="fold", no_wrap=right
        )
    return made


def _line(source: dict[str, Any] | None) -> Text:
    return Text(f"{quantities.place(source)} {source['function']}" if source else "", style="dim")


def _dims(shape: list[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _short(site: str) -> str:
    return "/".join(site.split("/")[-2:])
