"""Pieces of a page. Whatever comes from a report is escaped here, or by who calls."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import PurePath
from typing import Any


def card(title: str, body: str) -> str:
    """A framed section of markup under a heading of text."""
    return f'<section class="card"><h3>{escape(title)}</h3>{body}</section>' if body else ""


def cell(markup: str, name: str = "") -> str:
    """A table's cell."""
    return f'<td class="{name}">{markup}</td>' if name else f"<td>{markup}</td>"


def said(text: Any, name: str = "") -> str:
    """A table's cell of text."""
    return cell(escape(str(text)), name)


def number(text: Any) -> str:
    """A table's cell of a number."""
    return said(text, "n")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls in a box of its own; a heading that starts with ">" is of numbers."""
    head = "".join(
        f'<th scope="col"{" class=n" if one.startswith(">") else ""}>{escape(one.removeprefix(">"))}</th>'
        for one in headings
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def prose(text: str) -> str:
    """Sentences as markup; what stands between backticks is code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(text))


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and what they are, as text; what is empty is left out."""
    shown = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs if text)
    return f"<dl>{shown}</dl>" if shown else ""


def source(found: dict[str, Any] | None) -> str:
    """A cell with a line of code: where it is, in what function, and what it says."""
    if not found:
        return cell('<span class="quiet">not said</span>', "from")
    return site(f"{found['file']}:{found['line']}", found["function"], found["code"])


def site(place: str, function: str, code: str = "") -> str:
    """A cell of two lines at most: the file's own name and the function, and the code; both in full on a pointer."""
    short = escape(f"{PurePath(place).name} {function}".strip())
    line = f'<code title="{escape(code)}">{escape(code)}</code>' if code else ""
    return cell(f'<span title="{escape(place)}">{short}</span>{line}', "from")
