"""The parts of a page that are about one report."""

from html import escape
from typing import Any, Final

from tpuport.topology.reports import quantities, roofline_plot
from tpuport.topology.reports.html_markup import card, cell, facts, number, prose, said, site, source, table
from tpuport.topology.reports.text import PARTS

_ROWS: Final = 40
_ESTIMATE: Final = "An estimate from public peak figures, which the hardware cannot beat: no prediction."


def sections(report: dict[str, Any]) -> str:
    """All cards of a report."""
    # Else there is no program to look into; one that no code can be made of may still have its collectives.
    whole = report["costs"] is not None or bool(report["collectives"])
    return "".join(
        (
            card("Memory of one device", memory(report)),
            _work(report),
            card("Advice", _advice(report["advice"])) if whole or report["advice"] else "",
            card("Collectives a step", _collectives(report["collectives"])) if whole else "",
            card("Largest temporaries", buffers(report["buffers"])) if not report["failure"] else "",
            card("Attention", _attention(report["attention"])),
            card("What was compiled", _compiled(report)),
        )
    )


def memory(report: dict[str, Any]) -> str:
    """A bar of the parts against the capacity, and their table. What is too much goes over the capacity's mark."""
    held = report["memory"]
    parts = [(name, held[name]) for name in PARTS]
    if rest := quantities.rest(held, PARTS):
        parts.append(("other", rest))
    whole = max(held["capacity"], sum(nbytes or 0 for _, nbytes in parts), held["used"] or 0)
    spans = "".join(
        f'<span class="{name}" data-bytes="{nbytes}" title="{name}: {quantities.room(nbytes)}" '
        f'style="width:{100 * nbytes / whole:.4f}%"></span>'
        for name, nbytes in parts
        if nbytes is not None
    )
    limit = held["capacity"] / whole
    mark = f'<i class="limit" style="left:calc({100 * limit:.4f}% - 5px)"></i>' if limit < 1 else ""
    free = held["capacity"] - held["used"] if held["used"] is not None else None
    rows = [
        [
            cell(f'<i class="swatch {name}"></i>{name}'),
            number(quantities.room(nbytes)),
            number("" if nbytes is None else f"{nbytes / held['capacity']:.1%}"),
        ]
        for name, nbytes in parts
    ]
    if free is not None:
        name = "free" if free >= 0 else "too much"
        rows.append(
            [
                cell(f'<i class="swatch free"></i>{name}'),
                number(quantities.room(abs(free))),
                number(f"{abs(free) / held['capacity']:.1%}"),
            ]
        )
    label = escape(f"{quantities.room(held['used'])} of {quantities.room(held['capacity'])}")
    end = f"{quantities.gib(whole)} GiB"
    end += (
        f"; the mark is at {quantities.gib(held['capacity'])} GiB"
        if limit < 1
        else ", what a program can have"
    )
    return (
        f'<div class="bar" role="img" aria-label="{label}" data-whole="{whole}">{spans}{mark}</div>'
        f'<div class="scale"><span>0</span><span>{end}</span></div>'
        f'<div class="narrow">{table(("", ">bytes", ">of what there is"), rows)}</div>'
    )


def buffers(found: list[dict[str, Any]]) -> str:
    """Arrays, the largest first; empty where there are none."""
    rows = [
        [
            number(quantities.room(one["nbytes"])),
            cell(f"<code>{escape(one['shape'])}</code> {escape(one['operation'])}", "nowrap"),
            number(f"{one['count']:,}"),
            source(one["source"]),
        ]
        for one in found[:_ROWS]
    ]
    return table((">size of one", "array", ">times", "from"), rows) if rows else ""


def _work(report: dict[str, Any]) -> str:
    costs, estimate = report["costs"], report["estimate"]
    if costs is None:
        return ""
    work = card("Work a step", _costs(costs))
    if estimate is None:
        return work
    plot = card("Roofline (estimate)", roofline_plot.roofline(costs, estimate))
    left = card("Time a step (estimate)", _time(estimate)) + work
    return f'<div class="pair"><div>{left}</div><div>{plot}</div></div>'


def _time(estimate: dict[str, Any]) -> str:
    longest = max(estimate[name] for name in ("compute", "memory", "interconnect")) or 1.0
    bars = "".join(
        f'<span>{name}</span><span class="track{" binds" if name == estimate["binds"] else ""}">'
        f'<span style="width:{100 * estimate[name] / longest:.4f}%" data-seconds="{estimate[name]:.6g}"></span></span>'
        f'<span class="n">{quantities.span(estimate[name])}</span>'
        for name in ("compute", "memory", "interconnect")
    )
    unit = estimate["unit"]
    pairs = [
        ("a step", f"{quantities.span(estimate['seconds'])} at least, bound by {estimate['binds']}"),
        ("one after another", f"{quantities.span(estimate['seconds_apart'])} with nothing at the same time"),
        (
            f"{unit} a second",
            f"{quantities.number(estimate['units_per_second'])} at most, "
            f"{quantities.number(estimate['units_per_second_apart'])} one after another"
            if estimate["units"]
            else "",
        ),
        ("MFU", f"{estimate['mfu']:.1%} at most, {estimate['mfu_apart']:.1%} one after another"),
    ]
    return f'<div class="time">{bars}</div>{facts(pairs)}<p class="quiet" style="margin:10px 0 0">{_ESTIMATE}</p>'


def _costs(costs: dict[str, Any]) -> str:
    model = costs["model_flops"]
    pairs = [
        (
            "operations",
            f"{quantities.flops(costs['flops'])}{quantities.elementwise(costs)}{quantities.rates(costs)}",
        ),
        ("of the model", f"{quantities.flops(model)}{quantities.done(costs)}" if model else ""),
        ("HBM traffic", quantities.moved(costs["hbm_bytes"])),
        *((f"kernel {kernel['name']}", quantities.kernel(kernel)) for kernel in costs["kernels"]),
    ]
    return facts(pairs)


def _collectives(found: list[dict[str, Any]]) -> str:
    if not found:
        return "<p>None: devices send each other nothing.</p>"
    rows = [
        [
            said(one["kind"], "nowrap"),
            said("+".join(one["axes"]) or "not whole axes", "nowrap"),
            number(one["group"]),
            number(f"{one['count']:,}"),
            number(quantities.moved(one["nbytes"])),
            number(f"{one['overlapped']:,}"),
            source(one["source"]),
        ]
        for one in found[:_ROWS]
    ]
    count, nbytes = (sum(one[key] for one in found) for key in ("count", "nbytes"))
    rows.append(
        [
            said(f"all {len(found)} lines", "all"),
            said(""),
            said(""),
            number(f"{count:,}"),
            number(quantities.moved(nbytes)),
            said(""),
            said(""),
        ]
    )
    headings = ("kind", "axes", ">devices", ">times", ">bytes a device", ">overlapped", "from")
    return table(headings, rows)


def _attention(calls: list[dict[str, Any]]) -> str:
    rows = [
        [
            said(call["implementation"], "nowrap"),
            number(f"{call['calls']:,}"),
            cell(
                f"<code>{escape(call['dtype'])}{_dims(call['query'])}</code><br>on <code>{_dims(call['key'])}</code>",
                "nowrap",
            ),
            said("; ".join(part for part in (call["reason"], call["mask"], call["padding"]) if part), "wide"),
            said(call["mesh"], "wide"),
            site(call["site"], call["module"]),
        ]
        for call in calls[:_ROWS]
    ]
    headings = ("kernel", ">calls", "query and keys", "because", "over devices", "from")
    return table(headings, rows) if rows else ""


def _advice(findings: list[dict[str, Any]]) -> str:
    if not findings:
        return "<p>None: no rule found anything.</p>"
    parts = []
    for finding in findings:
        where = finding["source"]
        place = (
            f'<p class="quiet">{escape(quantities.place(where))} {escape(where["function"])}</p>'
            if where
            else ""
        )
        parts.append(
            f'<article class="finding"><h4><span class="rule">{escape(finding["rule"])}</span>'
            f"{escape(finding['name'])}</h4><p>{prose(finding['message'])}</p>"
            f"<p><strong>Do:</strong> {prose(finding['remedy'])}</p>{place}</article>"
        )
    return "".join(parts)


def _compiled(report: dict[str, Any]) -> str:
    dtypes = ", ".join(f"{name} {quantities.room(nbytes)}" for name, nbytes in report["dtypes"].items())
    return facts(
        [
            ("model", f"{report['model']}, {report['task']}"),
            ("parameters", f"{report['parameters']:,}"),
            ("weights, all of them", f"{quantities.room(report['weight_bytes'])} ({dtypes})"),
            ("mesh", quantities.mesh(report["mesh"], report["devices"])),
            ("inputs", ", ".join(f"{name}: {shape}" for name, shape in quantities.inputs(report).items())),
            ("in loops", ", ".join(f"{one['name']} ({one['count']} blocks)" for one in report["scanned"])),
            ("effort", "" if report["effort"] is None else f"{report['effort']:g}"),
            ("versions", ", ".join(f"{name} {version}" for name, version in report["versions"].items())),
        ]
    )


def _dims(shape: list[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
