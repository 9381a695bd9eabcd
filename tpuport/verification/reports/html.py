"""A check as one self-contained page, from the plain values of `CheckResult.to_dict`:
no script, nothing fetched.
"""

import json
from collections.abc import Iterator, Mapping
from html import escape
from importlib import resources
from itertools import starmap
from typing import Any, Final

from tpuport.topology.reports.html_markup import (
    card,
    cell,
    facts,
    number_cell,
    prose,
    quiet,
    table,
    text_cell,
)
from tpuport.verification.reports.text import STAGE_DESCRIPTIONS, STATUS_WORDS, verdict
from tpuport.version import __version__

# Text from the user's code could not make the page fetch or run anything even if it
# were not escaped.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(result: Mapping[str, Any]) -> str:
    """The page of a result: the verdict, the stages, and the findings in order."""
    # One style for all of tpuport's pages.
    style = (
        resources.files("tpuport.topology.reports")
        .joinpath("page.css")
        .read_text(encoding="utf-8")
    )
    title = escape(f"check of {result['model']}")
    kind, word = "bad", "findings"
    if result["ok"]:
        kind, word = "good", "ok"
    findings = "".join(starmap(_finding, enumerate(result["findings"], 1)))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
        f"<style>\n{style}</style></head>\n<body><header><h1>{title}</h1>"
        f'<p class="quiet">by tpuport {escape(__version__)}, on virtual devices</p>'
        f'<p class="verdict"><span class="badge {kind}">{word}</span>'
        f"<span>{escape(verdict(result))}</span></p></header>\n"
        f"<main>{card('Inputs', facts(_inputs(result)))}{card('Stages', _stages(result))}{findings}"
        f"{_rules(result)}</main>\n"
        "<footer><p>Effort is an estimate for somebody who knows the code.</p></footer></body></html>\n"
    )


def _rules(result: Mapping[str, Any]) -> str:
    if not result["rules"]:
        return ""
    return card(
        "Inferred sharding rules",
        f"<pre>{escape(json.dumps(result['rules'], indent=2))}</pre>",
    )


def _inputs(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    sizes = result["mesh"] or {}
    mesh = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
    return [*result["inputs"].items(), ("mesh", mesh)]


def _stages(result: Mapping[str, Any]) -> str:
    # The column of the status needs no heading.
    rows = [
        [
            text_cell(STAGE_DESCRIPTIONS[stage["name"]], "wide"),
            text_cell(STATUS_WORDS[stage["status"]], "nowrap"),
            number_cell(f"{stage['seconds']:.1f} s"),
            text_cell(stage["summary"]),
        ]
        for stage in result["stages"]
    ]
    return table(("stage", "", ">time", "what was done"), rows)


def _finding(number: int, finding: Mapping[str, Any]) -> str:
    label = " ".join(filter(None, (finding["severity"], finding["rule"])))
    parts = [f"<p>{prose(finding['message'])}</p>"]
    source = finding["source"]
    if source is not None:
        parts.append(
            quiet(f"{source['file']}:{source['line']}, in {source['function']}")
        )
        parts.append(f"<pre>{escape(source['code'])}</pre>")
    if finding["remedy"]:
        parts.append(f"<p><strong>Do:</strong> {prose(finding['remedy'])}</p>")
    if finding["effort"] != "none":
        parts.append(quiet(f"effort: {finding['effort']}"))
    # Values and tracebacks are for whoever works on the finding.
    if finding["details"]:
        rows = [
            [text_cell(name), cell(_detail(value))] for name, value in _details(finding)
        ]
        parts.append(
            f"<details><summary>Details</summary>{table(('', ''), rows)}</details>"
        )
    return card(f"{number}. {label}", "".join(parts))


def _details(finding: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return (
        (name, value)
        for name, value in finding["details"].items()
        if value not in (None, "")
    )


def _detail(value: Any) -> str:
    return f"<pre>{escape(str(value))}</pre>"
