"""A check as text for a terminal, from the plain values of `CheckResult.to_dict`."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tpuport.base.plurals import count_noun

_COLUMNS: Final = 110
STATUS_WORDS: Final = {
    "passed": "ok",
    "findings": "findings",
    "failed": "failed",
    "skipped": "skipped",
}
STAGE_DESCRIPTIONS: Final = {
    "lint": "lint of the code that ran",
    "torch": "runs in torch, and in float64",
    "values": "lines that need values",
    "compile": "traced and compiled",
    "compare": "compared with torch",
    "mesh": "compared on the mesh",
    "repeat": "called again",
    "topology": "the TPU's compiler",
}
_INDENT: Final = "     "


def render(result: Mapping[str, Any]) -> str:
    """The report: the stages, what to do in order, the inferred rules and the
    verdict.
    """
    inputs = ", ".join(f"{name} {shape}" for name, shape in result["inputs"].items())
    lines = [f"check of {result['model']}: {inputs}", ""]
    lines += map(_stage, result["stages"])
    if result["findings"]:
        lines += ["", "What to do, in this order"]
    for number, finding in enumerate(result["findings"], 1):
        lines += _finding(number, finding)
    if result["rules"]:
        lines += [
            "",
            "Sharding rules that were inferred, as a file for --rules",
            *_rules(result["rules"]),
        ]
    # Last, where a terminal shows it.
    lines += ["", f"verdict: {verdict(result)}"]
    return "\n".join(lines) + "\n"


def _rules(rules: dict[str, list[Any]]) -> list[str]:
    lines = [
        f"  {json.dumps(pattern)}: {json.dumps(entries)},"
        for pattern, entries in rules.items()
    ]
    # JSON has no comma after the last one.
    return ["{", *lines[:-1], lines[-1].removesuffix(","), "}"]


def verdict(result: Mapping[str, Any]) -> str:
    """The verdict with the number of errors and the effort."""
    if result["ok"]:
        return result["verdict"]
    errors = [
        finding for finding in result["findings"] if finding["severity"] == "error"
    ]
    things = count_noun(len(errors), "thing")
    return f"{result['verdict']}: {things} to change, {hours(result['hours'])} of work by our estimate"


def hours(number: float) -> str:
    """A number of hours in words, no more precise than the estimate is."""
    # A day of work has eight hours.
    if number < 1:
        return "less than an hour"
    if number < 1.5:
        return "about an hour"
    if number < 8:
        return f"about {number:.0f} hours"
    if number < 12:
        return "about a day"
    return f"about {number / 8:.0f} days"


def _stage(stage: Mapping[str, Any]) -> str:
    description = STAGE_DESCRIPTIONS[stage["name"]]
    status = STATUS_WORDS[stage["status"]]
    return f"  {description:<30} {status:<9} {stage['seconds']:5.1f} s  {stage['summary']}".rstrip()


def _finding(number: int, finding: Mapping[str, Any]) -> Iterator[str]:
    label = " ".join(filter(None, (finding["severity"], finding["rule"])))
    yield from _wrapped(f"{number:3}. {label}: {finding['message']}")
    # Lines of code are not wrapped: a terminal links "file:line".
    source = finding["source"]
    if source is not None:
        yield f"{_INDENT}{source['file']}:{source['line']}, in {source['function']}"
        if source["code"]:
            yield f"{_INDENT}    {source['code']}"
    if finding["remedy"]:
        yield from _wrapped(f"{_INDENT}do: {finding['remedy']}")
    if finding["effort"] != "none":
        yield f"{_INDENT}effort: {finding['effort']}"


def _wrapped(text: str) -> list[str]:
    # Words stay whole: paths and options are copied from here.
    return textwrap.wrap(
        text,
        _COLUMNS,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
