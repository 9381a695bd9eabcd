"""The parts of a page that describe one report."""

import json
from html import escape
from typing import Any, Final

from tpuport.base.mappings import without_nones
from tpuport.topology.reports import quantities, roofline_plot
from tpuport.topology.reports.html_markup import (
    card,
    cell,
    facts,
    number_cell,
    prose,
    quiet,
    site_cell,
    source_cell,
    table,
    text_cell,
)
from tpuport.topology.reports.html_profile import profile_cards, time_card

# More rows would make the page slow to read and slow to show.
_MAX_ROWS: Final = 40
_ESTIMATE: Final = "An estimate from public peak figures, which the hardware cannot beat: not a prediction."


def sections(report: dict[str, Any], trace: dict[str, Any] | None = None) -> str:
    """All cards of a report, with a timeline if there is a trace."""
    cards = [card("Memory of one device", _memory(report["memory"])), _work(report)]
    if report["profile"] is not None:
        cards.append(profile_cards(report, trace))
    has_program = quantities.has_program(report)
    if has_program or report["advice"]:
        cards.append(card("Advice", _advice(report["advice"])))
    if has_program:
        cards.append(card("Collectives a step", _collectives(report["collectives"])))
    # The arrays of a program that does not fit are shown with the failure.
    if not report["failure"]:
        cards.append(card("Largest temporaries", buffers(report["buffers"])))
    cards.append(card("Attention", _attention(report["attention"])))
    cards.append(card("What was compiled", _program(report)))
    return "".join(cards)


def _memory(memory: dict[str, Any]) -> str:
    """A bar of the parts against the capacity, and their table. What is too much
    extends beyond the capacity's mark.
    """
    parts = quantities.memory_parts(memory)
    capacity = memory["capacity"]
    sizes = without_nones(parts)
    # The bar is as long as what is larger: the capacity, or what is used.
    whole = max(capacity, sum(sizes.values()), memory["used"] or 0)
    bar = "".join(_bar_part(part, nbytes, whole) for part, nbytes in sizes.items())
    end = f"{quantities.gib(whole)} GiB"
    if whole > capacity:
        bar += f'<i class="limit" style="left:calc({100 * capacity / whole:.4f}% - 5px)"></i>'
        end += f"; the mark is at {quantities.gib(capacity)} GiB"
    else:
        end += ", what a program can have"
    rows = [_memory_row(part, part, nbytes, capacity) for part, nbytes in parts.items()]
    # The compiler does not always say by how much a program is too large.
    if memory["used"] is not None:
        free = capacity - memory["used"]
        name = "free"
        if free < 0:
            name = "too much"
        rows.append(_memory_row("free", name, abs(free), capacity))
    used = quantities.optional(
        quantities.memory_size, memory["used"], missing="unknown"
    )
    label = escape(f"{used} of {quantities.memory_size(capacity)}")
    return (
        f'<div class="bar" role="img" aria-label="{label}" data-whole="{whole}">{bar}</div>'
        f'<div class="scale"><span>0</span><span>{end}</span></div>'
        f'<div class="narrow">{table(("", ">bytes", ">of what there is"), rows)}</div>'
    )


def _bar_part(part: str, nbytes: int, whole: int) -> str:
    return (
        f'<span class="{part}" data-bytes="{nbytes}" title="{part}: {quantities.memory_size(nbytes)}" '
        f'style="width:{100 * nbytes / whole:.4f}%"></span>'
    )


def _memory_row(swatch: str, name: str, nbytes: int | None, capacity: int) -> list[str]:
    return [
        cell(f'<i class="swatch {swatch}"></i>{name}'),
        number_cell(
            quantities.optional(quantities.memory_size, nbytes, missing="unknown")
        ),
        number_cell(
            quantities.optional(lambda nbytes: f"{nbytes / capacity:.1%}", nbytes)
        ),
    ]


def buffers(buffers: list[dict[str, Any]]) -> str:
    """Arrays, the largest first; "" if there are none."""
    if not buffers:
        return ""
    rows = [
        [
            number_cell(quantities.memory_size(buffer["nbytes"])),
            cell(
                f"<code>{escape(buffer['shape'])}</code> {escape(buffer['operation'])}",
                "nowrap",
            ),
            number_cell(f"{buffer['count']:,}"),
            source_cell(buffer["source"]),
        ]
        for buffer in buffers[:_MAX_ROWS]
    ]
    return table((">size of one", "array", ">times", "from"), rows)


def _work(report: dict[str, Any]) -> str:
    costs, estimate = report["costs"], report["estimate"]
    if costs is None:
        return ""
    work = card("Work a step", _costs(costs))
    if estimate is None:
        return work
    bounds = card("The least a step can take", _time(estimate))
    plot = card("Roofline (estimate)", roofline_plot.roofline(costs, estimate))
    time = ""
    if report["profile"] is not None:
        time = time_card(report)
    return f'<div class="pair"><div>{time}{work}</div><div>{bounds}{plot}</div></div>'


def _time(estimate: dict[str, Any]) -> str:
    parts = {name: estimate[name] for name in ("compute", "memory", "interconnect")}
    # A program that does nothing takes no time.
    longest = max(parts.values()) or 1.0
    bars = ""
    for name, seconds in parts.items():
        track = {estimate["binds"]: "track binds"}.get(name, "track")
        bars += (
            f'<span>{name}</span><span class="{track}">'
            f'<span style="width:{100 * seconds / longest:.4f}%" data-seconds="{seconds:.6g}"></span></span>'
            f'<span class="n">{quantities.duration(seconds)}</span>'
        )
    rate = ""
    if estimate["units"]:
        rate = (
            f"{quantities.plain_number(estimate['units_per_second'])} at most, "
            f"{quantities.plain_number(estimate['units_per_second_apart'])} one after another"
        )
    pairs = [
        (
            "a step",
            f"{quantities.duration(estimate['seconds'])} at least, bound by {estimate['binds']}",
        ),
        (
            "one after another",
            f"{quantities.duration(estimate['seconds_apart'])} without overlap",
        ),
        (f"{estimate['unit']} a second", rate),
        (
            "MFU",
            f"{estimate['mfu']:.1%} at most, {estimate['mfu_apart']:.1%} one after another",
        ),
    ]
    return f'<div class="time">{bars}</div>{facts(pairs)}<p class="quiet" style="margin:10px 0 0">{_ESTIMATE}</p>'


def _costs(costs: dict[str, Any]) -> str:
    kernels = [
        (f"kernel {kernel['name']}", quantities.kernel_work(kernel))
        for kernel in costs["kernels"]
    ]
    return facts(
        [
            ("operations", quantities.operations(costs)),
            ("of the model", quantities.model_operations(costs)),
            ("HBM traffic", quantities.traffic(costs["hbm_bytes"])),
            *kernels,
        ]
    )


def _collectives(collectives: list[dict[str, Any]]) -> str:
    if not collectives:
        return "<p>None: devices send each other nothing.</p>"
    rows = [
        [
            text_cell(collective["kind"], "nowrap"),
            text_cell("+".join(collective["axes"]) or "not whole axes", "nowrap"),
            number_cell(collective["group"]),
            number_cell(f"{collective['count']:,}"),
            number_cell(quantities.traffic(collective["nbytes"])),
            number_cell(f"{collective['overlapped']:,}"),
            source_cell(collective["source"]),
        ]
        for collective in collectives[:_MAX_ROWS]
    ]
    # The sums are of all rows, also of those that are not shown.
    count = sum(collective["count"] for collective in collectives)
    nbytes = sum(collective["nbytes"] for collective in collectives)
    empty = text_cell("")
    rows.append(
        [
            text_cell(f"all {len(collectives)} lines", "all"), empty, empty,
            number_cell(f"{count:,}"), number_cell(quantities.traffic(nbytes)), empty, empty,
        ]
    )  # fmt: skip
    headings = (
        "kind",
        "axes",
        ">devices",
        ">times",
        ">bytes a device",
        ">overlapped",
        "from",
    )
    return table(headings, rows)


def _attention(calls: list[dict[str, Any]]) -> str:
    if not calls:
        return ""
    rows = [
        [
            text_cell(call["implementation"], "nowrap"),
            number_cell(f"{call['calls']:,}"),
            cell(
                f"<code>{escape(call['dtype'])}{quantities.dimensions(call['query'])}</code><br>"
                f"on <code>{quantities.dimensions(call['key'])}</code>",
                "nowrap",
            ),
            text_cell(
                quantities.attention_reasons(call, "reason", "mask", "padding"), "wide"
            ),
            text_cell(call["mesh"], "wide"),
            site_cell(call["site"], call["module"]),
        ]
        for call in calls[:_MAX_ROWS]
    ]
    return table(
        ("kernel", ">calls", "query and keys", "because", "over devices", "from"), rows
    )


def _advice(findings: list[dict[str, Any]]) -> str:
    if not findings:
        return "<p>None: no rule found anything.</p>"
    return "".join(map(_finding, findings))


def _finding(finding: dict[str, Any]) -> str:
    price = ""
    if finding["seconds"]:
        price = f" <small>{quantities.duration(finding['seconds'])} a step</small>"
    line = quantities.optional(_source_line, finding["source"])
    return (
        f'<article class="finding"><h4><span class="rule">{escape(finding["rule"])}</span>'
        f"{escape(finding['name'])}{price}</h4><p>{prose(finding['message'])}</p>"
        f"<p><strong>Do:</strong> {prose(finding['remedy'])}</p>{_rules(finding['rules'])}{line}</article>"
    )


def _rules(rules: dict[str, list[Any]]) -> str:
    """All the rules of a remedy, whose text has the largest of them."""
    if not rules:
        return ""
    lines = [
        f"  {json.dumps(regex)}: {json.dumps(spec)}" for regex, spec in rules.items()
    ]
    file = escape("\n".join(("{", ",\n".join(lines), "}")))
    return f"<details><summary>A file for --rules</summary><pre>{file}</pre></details>"


def _source_line(source: dict[str, Any]) -> str:
    return quiet(f"{quantities.short_source(source)} {source['function']}")


def _program(report: dict[str, Any]) -> str:
    dtypes = ", ".join(
        f"{name} {quantities.memory_size(nbytes)}"
        for name, nbytes in report["dtypes"].items()
    )
    # Facts without a text are left out: a program without loops, the default effort.
    inputs = quantities.compiled_inputs(report).items()
    return facts(
        [
            ("model", f"{report['model']}, {report['task']}"),
            ("parameters", f"{report['parameters']:,}"),
            (
                "weights, all of them",
                f"{quantities.memory_size(report['weight_bytes'])} ({dtypes})",
            ),
            ("mesh", quantities.mesh_name(report["mesh"], report["devices"])),
            ("inputs", ", ".join(f"{name}: {shape}" for name, shape in inputs)),
            (
                "in loops",
                ", ".join(
                    f"{loop['name']} ({loop['count']} blocks)"
                    for loop in report["scanned"]
                ),
            ),
            ("effort", quantities.optional("{:g}".format, report["effort"])),
            (
                "versions",
                ", ".join(
                    f"{name} {version}" for name, version in report["versions"].items()
                ),
            ),
        ]
    )
