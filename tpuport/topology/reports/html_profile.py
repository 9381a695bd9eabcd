"""The parts of a page that say where the time of a step goes."""

import itertools
import re
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any, Final

from tpuport.topology.reports import estimated_time, quantities
from tpuport.topology.reports.flame_chart import flame_chart
from tpuport.topology.reports.html_markup import (
    card,
    cell,
    facts,
    kind_class,
    number_cell,
    quiet,
    source_cell,
    table,
    text_cell,
)
from tpuport.topology.reports.repeated_part import RepeatedPart, TimedSpan, find_part

_MAX_ROWS: Final = 20
# Narrower bars cannot be seen.
_SMALLEST_SHARE: Final = 0.0005
_ESTIMATE: Final = (
    "An estimate from the instruction schedules that the compiler wrote for this program, its traffic and its links: "
    "what a step takes on an otherwise idle machine."
)
_TICKS: Final = 5
# The end of a module's path, where a number belongs to the list that it counts: "to_q",
# "layers.7".
_NAME_AND_NUMBER: Final = re.compile(r"[^.]+(?:\.\d+)?$")


def time_card(report: dict[str, Any]) -> str:
    """A card with a bar for each kind of work, and what a step comes to."""
    kinds = estimated_time.kinds(report["profile"])
    # A program that does nothing takes no time.
    longest = max(kinds.values(), default=0.0) or 1.0
    bars = "".join(
        f'<span>{escape(kind)}</span><span class="track">'
        f'<span class="{kind_class(kind)}" style="width:{100 * seconds / longest:.4f}%" data-seconds="{seconds:.6g}">'
        f'</span></span><span class="n">{quantities.duration(seconds)}</span>'
        for kind, seconds in kinds.items()
    )
    body = f'<div class="time kinds">{bars}</div>{facts(estimated_time.facts(report).items())}'
    return card(
        "Estimated time a step",
        f'{body}<p class="quiet" style="margin:10px 0 0">{_ESTIMATE}</p>',
    )


def profile_cards(report: dict[str, Any], trace: dict[str, Any] | None) -> str:
    """Cards with the time by module, of one block, by line of code and by instruction.

    Args:
        report: of a program that fits.
        trace: when its instructions run; None leaves the block out.
    """
    profile = report["profile"]
    cards = [card("Time by module", flame_chart(profile))]
    if trace is not None and trace["seconds"]:
        part = find_part(trace)
        cards.append(card(part.title, _lanes(part, trace) + _legend(part, trace)))
    if not profile["instructions"]:
        return "".join(cards)
    cards.append(card("Lines of code that take longest", _lines(profile)))
    cards.append(card("Instructions that take longest", _instructions(profile)))
    return "".join(cards)


def _lanes(part: RepeatedPart, trace: dict[str, Any]) -> str:
    """A row for the core, for the modules whose code it executes, and for what goes on
    beside it.
    """
    rows = [_lane("core", (_bar(span, part, trace) for span in part.core))]
    rows.append(_lane("code of", _modules(part, trace)))
    if part.copies:
        rows.append(_lane("copies", (_bar(span, part, trace) for span in part.copies)))
    for axes, spans in part.collectives.items():
        # A collective that ends in another block leaves nothing here.
        if spans:
            rows.append(
                _lane(
                    "+".join(axes) or "links",
                    (_bar(span, part, trace) for span in spans),
                )
            )
    ticks = "".join(
        f"<span>{quantities.duration(part.seconds * tick / (_TICKS - 1))}</span>"
        for tick in range(_TICKS)
    )
    rows.append(f'<span></span><span class="ticks">{ticks}</span>')
    lanes = f'<div class="lanes" role="img" aria-label="timeline">{"".join(rows)}</div>'
    return f'<div class="scroll" tabindex="0">{lanes}</div>'


def _lane(name: str, bars: Iterable[str]) -> str:
    return f'<span class="quiet">{escape(name)}</span><span class="lane">{"".join(bars)}</span>'


def _bar(span: TimedSpan, part: RepeatedPart, trace: dict[str, Any]) -> str:
    instruction = trace["instructions"][span.instruction]
    name, kind = instruction["name"], instruction["kind"]
    if span.waiting:
        name, kind = f"wait for {name}", "waiting"
    source = instruction["source"]
    details = [
        f"{name}: {quantities.duration(span.seconds)}, {kind}",
        instruction["shape"],
        instruction["module"],
        "" if source is None else trace["sources"][source],
    ]
    return _box(
        span.start,
        span.seconds,
        part,
        kind_class(kind),
        name,
        "\n".join(filter(None, details)),
    )


def _modules(part: RepeatedPart, trace: dict[str, Any]) -> Iterator[str]:
    """A bar for each stretch of code of the same module, with the end of its path."""

    def module(span: TimedSpan) -> str:
        return trace["instructions"][span.instruction]["module"]

    for path, stretch in itertools.groupby(part.core, module):
        spans = list(stretch)
        if path:
            start = spans[0].start
            seconds = spans[-1].start + spans[-1].seconds - start
            title = f"{path}: {quantities.duration(seconds)}"
            name = "".join(_NAME_AND_NUMBER.findall(path))
            yield _box(start, seconds, part, "module", name, title)


def _box(
    start: float, seconds: float, part: RepeatedPart, name: str, text: str, title: str
) -> str:
    share = seconds / part.seconds
    if share < _SMALLEST_SHARE:
        return ""
    return (
        f'<span class="{name}" title="{escape(title)}" data-seconds="{seconds:.6g}" '
        f'style="left:{100 * start / part.seconds:.3f}%;width:{100 * share:.3f}%">{escape(text)}</span>'
    )


def _legend(part: RepeatedPart, trace: dict[str, Any]) -> str:
    """The colours of the kinds that occur."""
    waiting = sum(span.seconds for span in part.core if span.waiting)
    kinds = [
        "waiting" if span.waiting else trace["instructions"][span.instruction]["kind"]
        for span in itertools.chain(part.core, part.copies, *part.collectives.values())
    ]
    keys = "".join(
        f'<span><i class="swatch {kind_class(kind)}"></i>{escape(kind)}</span>'
        for kind in dict.fromkeys(kinds)
    )
    note = quiet(
        f"{quantities.duration(part.seconds)}, of which the core waits {quantities.duration(waiting)}. Below the core: "
        "whose code it executes, and the copies and collectives that go on beside it."
    )
    return f'<p class="legend">{keys}</p>{note}'


def _time_cells(seconds: float, profile: dict[str, Any]) -> list[str]:
    return [
        number_cell(quantities.duration(seconds)),
        number_cell(estimated_time.share(seconds, profile)),
    ]


def _lines(profile: dict[str, Any]) -> str:
    rows = [
        [
            *_time_cells(line["seconds"], profile),
            text_cell(estimated_time.main_kind(line), "nowrap"),
            source_cell(line["source"]),
        ]
        for line in profile["lines"][:_MAX_ROWS]
    ]
    others = profile["lines"][_MAX_ROWS:]
    if others:
        rest = sum(line["seconds"] for line in others)
        rows.append(
            [
                *_time_cells(rest, profile),
                text_cell(""),
                text_cell(f"and {len(others)} more"),
            ]
        )
    return table((">a step", ">share", "mostly", "from"), rows)


def _instructions(profile: dict[str, Any]) -> str:
    rows = [
        [
            *_time_cells(instruction["seconds"], profile),
            number_cell(f"{instruction['times']:,}"),
            text_cell(instruction["bound"]),
            number_cell(f"{instruction['mfu']:.0%}"),
            number_cell(f"{instruction['hbm']:.0%}"),
            cell(
                f"{escape(instruction['name'])}, {escape(instruction['kind'])}<br>"
                f"<code>{escape(instruction['shape'])}</code><br>{escape(instruction['module'])}",
                "nowrap",
            ),
            source_cell(instruction["source"]),
        ]
        for instruction in profile["instructions"]
    ]
    headings = (
        ">a step",
        ">share",
        ">times",
        "bound by",
        ">MFU",
        ">HBM",
        "instruction",
        "from",
    )
    return table(headings, rows)
