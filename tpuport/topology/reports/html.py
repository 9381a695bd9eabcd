"""Reports as one self-contained page: no script, nothing fetched, for a phone and for a wide screen."""

from html import escape
from importlib import resources
from typing import Any, Final

from tpuport.topology.mesh_splits import RANKED_BY, left_out
from tpuport.topology.reports import quantities
from tpuport.topology.reports.html_markup import card, cell, number, prose, said, table
from tpuport.topology.reports.html_sections import buffers, sections

# What came from the user's code cannot make the page fetch or run anything, even if it were not escaped.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_UNITS: Final = (
    "GiB, MiB and KiB are powers of 1024 and say how much memory holds; GB, MB and kB are powers of 1000 and say how "
    "much is moved. Figures are of one device and one step, where nothing else is said."
)


def page(document: dict[str, Any]) -> str:
    """The page of a document, as `reports.document` makes it."""
    results = document["results"]
    title = escape(", ".join(dict.fromkeys(one["target"] for one in results)))
    places = escape(", ".join(dict.fromkeys(one["topology"] for one in results)))
    style = resources.files("tpuport.topology.reports").joinpath("page.css").read_text(encoding="utf-8")
    body = "".join(_result(place, one) for place, one in enumerate(results))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title} on {places}</title>'
        f"<style>\n{style}</style></head>\n<body><header><h1>{title}</h1>"
        f'<p class="quiet">compiled for {places} by tpuport {escape(document["tpuport"])}, without a TPU</p>'
        f"{_summary(results)}{_suggestion(document['suggestion'])}</header>\n<main>{body}</main>\n"
        f"<footer><p>{_UNITS}</p></footer></body></html>\n"
    )


def _summary(results: list[dict[str, Any]]) -> str:
    """A row for each result, where there are several."""
    if len(results) < 2:
        return ""
    rows = []
    for place, one in enumerate(results):
        report = one["report"]
        estimate = report["estimate"] if report else None
        rows.append(
            [
                cell(
                    f'<a href="#result-{place}">{escape(_title(one))}</a>',
                    "wide",
                ),
                cell(_badge(one), "nowrap"),
                number(quantities.used(report["memory"]) if report else ""),
                number(quantities.span(estimate["seconds"]) if estimate else ""),
                number(_rate(estimate) if estimate else ""),
                said(estimate["binds"] if estimate else ""),
            ]
        )
    headings = ("program", "", ">memory", ">a step, estimated", ">a second, at most", "bound by")
    return card("All programs", table(headings, rows))


def _result(place: int, result: dict[str, Any]) -> str:
    report = result["report"]
    failure = result["failure"] or (report["failure"] if report else None)
    figure = (
        f"<span>{quantities.used(report['memory'])} a {quantities.device(report['generation'])}</span>"
        if report
        else ""
    )
    notes = "".join(f'<p class="quiet">{prose(note)}</p>' for note in result["notes"])
    return (
        f'<section class="result" id="result-{place}"><h2>{escape(_title(result))}</h2>'
        f'<p class="verdict">{_badge(result)}{figure}</p>{notes}'
        f"{_failure(failure) if failure else ''}{sections(report) if report else ''}</section>"
    )


def _failure(failure: dict[str, Any]) -> str:
    source, rule = failure["source"], failure["rule"]
    where = ""
    if source:
        code = f"<pre><code>{escape(source['code'])}</code></pre>" if source["code"] else ""
        place = f"{source['file']}:{source['line']}, in {source['function']}"
        where = f'<p class="quiet">{escape(place)}</p>{code}'
    lint = (
        f"<p>Lint rule {escape(rule)}: <code>tpuport lint --explain {escape(rule)}</code></p>" if rule else ""
    )
    remedy = f"<p><strong>Do:</strong> {prose(failure['remedy'])}</p>" if failure["remedy"] else ""
    said_whole = failure["traceback"]
    whole = (
        f"<details><summary>All that was said</summary><pre>{escape(said_whole)}</pre></details>"
        if said_whole
        else ""
    )
    wanted = card("What the compiler wanted to keep", buffers(failure["buffers"]))
    message = f"<p>{prose(failure['message'])}</p>"
    return card("Why", f"{message}{where}{lint}{remedy}{whole}") + wanted


def _suggestion(splits: list[dict[str, Any]] | None) -> str:
    if splits is None:
        return ""
    rows = [
        [
            said(f"{one['target']} on {one['topology']}", "wide"),
            said(quantities.mesh(one["mesh"]), "nowrap"),
            cell(_verdict(one["fits"], _fits(one)), "nowrap"),
            number("" if one["used"] is None else quantities.room(one["used"])),
            number("" if one["seconds"] is None else quantities.span(one["seconds"])),
            number(
                ""
                if not one["units_per_second"]
                else f"{quantities.number(one['units_per_second'])} {one['unit']}"
            ),
            said(one["binds"] or one["why"]),
        ]
        for one in splits
        if one["tried"]
    ]
    headings = ("program", "split", "", ">memory", ">a step, estimated", ">a second, at most", "bound by")
    notes = [*(f"Left out for {program}: {why}" for program, why in left_out(splits).items()), RANKED_BY]
    note = "".join(f'<p class="quiet">{escape(text)}</p>' for text in notes)
    return card("Mesh splits, the best first", table(headings, rows) + note)


def _fits(split: dict[str, Any]) -> str:
    if split["fits"]:
        return "fits"
    return "not possible" if split["capacity"] is None else "does not fit"


def _title(result: dict[str, Any]) -> str:
    return quantities.title(result["target"], result["topology"], result["report"])


def _badge(result: dict[str, Any]) -> str:
    if result["report"] is None:
        return _verdict(False, "cannot be compiled")
    return _verdict(result["report"]["fits"], "fits" if result["report"]["fits"] else "does not fit")


def _verdict(good: bool, text: str) -> str:
    return f'<span class="badge {"good" if good else "bad"}">{text}</span>'


def _rate(estimate: dict[str, Any]) -> str:
    return (
        f"{quantities.number(estimate['units_per_second'])} {estimate['unit']}" if estimate["units"] else ""
    )
