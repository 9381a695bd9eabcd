"""Reports as one self-contained page: no script, nothing fetched, for a phone and for a
wide screen.
"""

from html import escape
from importlib import resources
from itertools import starmap
from typing import Any, Final

from tpuport.topology.mesh_splits import RANKED_BY, tried_splits, untried_reasons
from tpuport.topology.reports import quantities
from tpuport.topology.reports.html_markup import (
    card,
    cell,
    number_cell,
    prose,
    quiet,
    table,
    text_cell,
)
from tpuport.topology.reports.html_sections import buffers, sections

# Text from the user's code could not make the page fetch or run anything even if it
# were not escaped.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_UNITS: Final = (
    "GiB, MiB and KiB are powers of 1024 and say how much memory holds; GB, MB and kB are powers of 1000 and say how "
    "much is moved. Figures are of one device and one step unless something else is said."
)


def page(document: dict[str, Any]) -> str:
    """The page of a document, as `reports.document` makes it."""
    results = document["results"]
    # A target may occur with several topologies, and the other way round.
    title = escape(", ".join(dict.fromkeys(result["target"] for result in results)))
    topologies = escape(
        ", ".join(dict.fromkeys(result["topology"] for result in results))
    )
    style = (
        resources.files("tpuport.topology.reports")
        .joinpath("page.css")
        .read_text(encoding="utf-8")
    )
    # Numbered, so that the rows of the summary can link to them.
    body = "".join(starmap(_result, enumerate(results)))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title} on {topologies}</title>'
        f"<style>\n{style}</style></head>\n<body><header><h1>{title}</h1>"
        f'<p class="quiet">compiled for {topologies} by tpuport {escape(document["tpuport"])}, without a TPU</p>'
        f"{_runs(document['runs'])}{_summary(results)}{_suggestion(document['suggestion'])}</header>\n<main>{body}</main>\n"
        f"<footer><p>{_UNITS}</p></footer></body></html>\n"
    )


def _runs(runs: list[dict[str, Any]] | None) -> str:
    """A card for each run of all programs."""
    cards = []
    for run in runs or []:
        rows = [
            [text_cell(name, "wide"), *map(number_cell, figures)]
            for name, *figures in map(quantities.run_part, run["parts"])
        ]
        calls = table(("program", ">calls", ">each", ">all"), rows)
        cards.append(
            card(
                "A whole run",
                f"<p><strong>{escape(quantities.run_headline(run))}</strong></p>{calls}",
            )
        )
    return "".join(cards)


def _summary(results: list[dict[str, Any]]) -> str:
    """A row for each result if there are several."""
    if len(results) < 2:
        return ""
    rows = []
    for index, result in enumerate(results):
        # A model that cannot be traced has no report, and a program that does not fit
        # has no estimate.
        report = result["report"] or {}
        estimate = report.get("estimate") or {
            "seconds": None,
            "units_per_second": None,
            "binds": "",
        }
        rows.append(
            [
                cell(f'<a href="#result-{index}">{escape(_title(result))}</a>', "wide"),
                cell(_badge(result), "nowrap"),
                number_cell(
                    quantities.optional(quantities.used_memory, report.get("memory"))
                ),
                number_cell(
                    quantities.optional(quantities.duration, estimate["seconds"])
                ),
                number_cell(quantities.units_per_second(estimate)),
                text_cell(estimate["binds"]),
            ]
        )
    headings = (
        "program",
        "",
        ">memory",
        ">a step, estimated",
        ">a second, at most",
        "bound by",
    )
    return card("All programs", table(headings, rows))


def _result(index: int, result: dict[str, Any]) -> str:
    report = result["report"]
    failure = result["failure"]
    figures = body = ""
    if report is not None:
        # A program that does not fit has a report, and its failure is in there.
        failure = report["failure"]
        unit = quantities.memory_unit(report["generation"])
        figures = f"<span>{quantities.used_memory(report['memory'])} a {unit}</span>"
        body = sections(report, result["trace"])
    if failure is not None:
        body = _failure(failure) + body
    notes = "".join(f'<p class="quiet">{prose(note)}</p>' for note in result["notes"])
    return (
        f'<section class="result" id="result-{index}"><h2>{escape(_title(result))}</h2>'
        f'<p class="verdict">{_badge(result)}{figures}</p>{notes}{body}</section>'
    )


def _failure(failure: dict[str, Any]) -> str:
    parts = [
        f"<p>{prose(failure['message'])}</p>",
        quantities.optional(_failing_line, failure["source"]),
        quantities.optional(_lint_rule, failure["rule"]),
    ]
    if failure["remedy"]:
        parts.append(f"<p><strong>Do:</strong> {prose(failure['remedy'])}</p>")
    if failure["traceback"]:
        traceback = f"<pre>{escape(failure['traceback'])}</pre>"
        parts.append(
            f"<details><summary>All that was said</summary>{traceback}</details>"
        )
    arrays = card("What the compiler wanted to keep", buffers(failure["buffers"]))
    return card("Why", "".join(parts)) + arrays


def _failing_line(source: dict[str, Any]) -> str:
    location = quiet(f"{source['file']}:{source['line']}, in {source['function']}")
    # The file may be gone, or not be one.
    if not source["code"]:
        return location
    return f"{location}<pre><code>{escape(source['code'])}</code></pre>"


def _lint_rule(rule: str) -> str:
    return f"<p>Lint rule {escape(rule)}: <code>tpuport lint --explain {escape(rule)}</code></p>"


def _suggestion(splits: list[dict[str, Any]] | None) -> str:
    if splits is None:
        return ""
    rows = [
        [
            text_cell(f"{split['target']} on {split['topology']}", "wide"),
            text_cell(quantities.split_name(split), "nowrap"),
            cell(_split_badge(split), "nowrap"),
            number_cell(quantities.optional(quantities.memory_size, split["used"])),
            number_cell(quantities.optional(quantities.duration, split["seconds"])),
            number_cell(quantities.optional(quantities.duration, split["roofline"])),
            number_cell(quantities.units_per_second(split)),
            text_cell(split["binds"] or split["why"]),
        ]
        for split in tried_splits(splits)
    ]
    headings = (
        "program",
        "split",
        "",
        ">memory",
        ">a step, estimated",
        ">at least",
        ">a second",
        "bound by",
    )
    # Splits that were not tried have a sentence for each program in place of a row
    # each.
    notes = [
        f"Left out for {program}: {reasons}"
        for program, reasons in untried_reasons(splits).items()
    ]
    return card(
        "Mesh splits, the best first",
        table(headings, rows) + "".join(map(quiet, [*notes, RANKED_BY])),
    )


def _title(result: dict[str, Any]) -> str:
    return quantities.title(result["target"], result["topology"], result["report"])


def _badge(result: dict[str, Any]) -> str:
    if result["report"] is None:
        return _verdict("cannot be compiled")
    return _fit_badge(result["report"])


def _split_badge(split: dict[str, Any]) -> str:
    # Without a capacity nothing was compiled.
    if split["capacity"] is None:
        return _verdict("not possible")
    return _fit_badge(split)


def _fit_badge(program: dict[str, Any]) -> str:
    if program["fits"]:
        return _verdict("fits", "good")
    return _verdict("does not fit")


def _verdict(text: str, quality: str = "bad") -> str:
    return f'<span class="badge {quality}">{text}</span>'
