"""Pieces of a page. Text from a report is escaped here; an argument called `markup` or
`body` is markup already.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import PurePath
from typing import Any, Final

# The colour of each kind of work, by the name of a CSS class.
_KIND_CLASSES: Final = {
    "matrix products": "products", "attention": "attention", "other kernels": "kernels",
    "copies and layouts": "copies", "elementwise": "elementwise", "collectives": "collectives", "waiting": "waiting",
}  # fmt: skip


def card(title: str, body: str) -> str:
    """A framed section under a heading; "" without a body."""
    if not body:
        return ""
    return f'<section class="card"><h3>{escape(title)}</h3>{body}</section>'


def cell(markup: str, name: str = "") -> str:
    """A table's cell, with a CSS class."""
    if not name:
        return f"<td>{markup}</td>"
    return f'<td class="{name}">{markup}</td>'


def text_cell(text: Any, name: str = "") -> str:
    """A table's cell of text, with a CSS class."""
    return cell(escape(str(text)), name)


def number_cell(text: Any) -> str:
    """A table's cell of a number."""
    return text_cell(text, "n")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls in a box of its own; a heading that starts with ">" is of
    numbers.
    """
    head = ""
    for heading in headings:
        attributes = 'scope="col"'
        if heading.startswith(">"):
            attributes += " class=n"
        head += f"<th {attributes}>{escape(heading.removeprefix('>'))}</th>"
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    # With a tab stop, a table can be scrolled by the keyboard.
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def kind_class(kind: str) -> str:
    """The CSS classes of a kind of work, as in `Profile.kinds`."""
    return f"kind {_KIND_CLASSES.get(kind, 'other')}"


def quiet(text: str) -> str:
    """A paragraph of secondary text."""
    return f'<p class="quiet">{escape(text)}</p>'


def prose(text: str) -> str:
    """Sentences as markup, in which backticks enclose code."""
    # Escaped first: what backticks enclose is text, too.
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(text))


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and their descriptions as text, without those that are empty."""
    entries = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
        for name, text in pairs
        if text
    )
    return f"<dl>{entries}</dl>"


def source_cell(source: dict[str, Any] | None) -> str:
    """A cell with a line of code: its file, function and text."""
    if source is None:
        return cell('<span class="quiet">not said</span>', "from")
    return site_cell(
        f"{source['file']}:{source['line']}", source["function"], source["code"]
    )


def site_cell(path: str, function: str, code: str = "") -> str:
    """A cell of at most two lines: file name and function, and the code; a tooltip has
    both in full.
    """
    # Paths are long, and file names of models are telling.
    name = escape(f"{PurePath(path).name} {function}".strip())
    markup = f'<span title="{escape(path)}">{name}</span>'
    if code:
        markup += f'<code title="{escape(code)}">{escape(code)}</code>'
    return cell(markup, "from")
