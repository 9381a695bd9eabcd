"""`# tpuport: ignore[TPU101] reason`: on a line, on a block's first line, or for a whole file."""

import dataclasses
import io
import re
import tokenize
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tpuport.lint.diagnostics import ids_by_name, known_ids, tell
from tpuport.lint.findings import Finding

_COMMENT: Final = re.compile(r"#\s*tpuport:\s*(?P<what>.*)", re.DOTALL)
_IGNORE: Final = re.compile(r"(?P<word>ignore-file|ignore)\s*\[(?P<ids>[^\]]*)\]")
_LAYOUT: Final = frozenset({tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT})
_END: Final = 10**9


@dataclasses.dataclass(frozen=True, slots=True)
class Suppression:
    """One comment.

    Attributes:
        line, column, end_column: the comment's place.
        first, last: the lines whose findings it suppresses, by where they start.
        ids: ids or prefixes, in capitals.
    """

    line: int
    column: int
    end_column: int
    first: int
    last: int
    ids: tuple[str, ...]

    def covers(self, finding: Finding) -> bool:
        """Whether a finding starts, or on one line ends, where this counts."""
        return self.first <= finding.line <= self.last or (
            self.first == self.last and finding.line <= self.first == finding.end_line
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Suppressions:
    """A file's comments, and what is wrong with them: `(line, column, end column, reason)`."""

    comments: tuple[Suppression, ...] = ()
    problems: tuple[tuple[int, int, int, str], ...] = ()

    def to_json(self) -> list[Any]:
        """As plain lists."""
        return [[dataclasses.astuple(comment) for comment in self.comments], list(self.problems)]

    @staticmethod
    def from_json(value: Any) -> "Suppressions":
        """What `to_json` gave."""
        comments, problems = value
        return Suppressions(
            tuple(
                Suppression(line, column, end, first, last, tuple(ids))
                for line, column, end, first, last, ids in comments
            ),
            tuple((line, column, end, reason) for line, column, end, reason in problems),
        )


def find(text: str) -> Suppressions:
    """The suppressions of a file that parses."""
    if "tpuport:" not in text:
        return Suppressions()
    reader = _Reader()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
            reader.take(token)
    except (tokenize.TokenError, SyntaxError) as error:
        reader.problems.append((1, 1, 2, f"the comments cannot be told from the code: {error}"))
    reader.close(_END)
    return Suppressions(tuple(reader.found), tuple(reader.problems))


class _Reader:
    """Follows logical lines and blocks through a file's tokens."""

    def __init__(self) -> None:
        self.found: list[Suppression] = []
        self.problems: list[tuple[int, int, int, str]] = []
        self.comments: list[
            tuple[Suppression, bool]
        ] = []  # of the running logical line; whether it stands alone
        self.start = 0  # where the logical line starts; 0 between lines
        self.opens = False  # its last token is a colon
        self.decorator = False
        self.waiting: list[Suppression] = []  # on the first line of a block that is not indented yet
        self.decorated: list[Suppression] = []
        self.blocks: list[list[Suppression]] = []
        self.last = 0  # last line of code

    def take(self, token: tokenize.TokenInfo) -> None:
        if token.type == tokenize.COMMENT:
            self._comment(token)
        elif token.type == tokenize.INDENT:
            self.blocks.append(self.waiting)
            self.waiting = []
        elif token.type == tokenize.DEDENT:
            self._close(self.blocks.pop() if self.blocks else [], self.last)
        elif token.type == tokenize.NEWLINE:
            self._logical(token.start[0])
        elif token.type not in _LAYOUT and token.type != tokenize.ENDMARKER:
            if not self.start:
                self.start = token.start[0]
                self.decorator = token.string == "@"
                self._one_line_block()
            self.opens = token.string == ":"

    def _comment(self, token: tokenize.TokenInfo) -> None:
        match = _COMMENT.search(token.string)
        if match is None:
            return
        line, column, end = token.start[0], token.start[1] + match.start() + 1, token.end[1] + 1
        ignore = _IGNORE.match(match["what"])
        if ignore is None:
            self.problems.append((line, column, end, "the comment names no rule: it suppresses nothing"))
            return
        written = [part.strip() for part in ignore["ids"].split(",") if part.strip()]
        ids = tuple(ids_by_name().get(part.lower(), part.upper()) for part in written)
        unknown = [
            prefix
            for prefix in ids
            if not prefix.startswith("TPU") or not any(known.startswith(prefix) for known in known_ids())
        ]
        if unknown or not ids:
            first = written[ids.index(unknown[0])] if unknown else ""
            what = f"no rule's id starts with {first!r}" if unknown else "the brackets name no rule"
            self.problems.append((line, column, end, f"{what}: the comment suppresses nothing"))
            return
        if ignore["word"] == "ignore-file":
            self.found.append(Suppression(line, column, end, 1, _END, ids))
        else:
            alone = not token.line[: token.start[1]].strip() and not self.start
            self.comments.append((Suppression(line, column, end, line, line, ids), alone))

    def _logical(self, end: int) -> None:
        """A logical line ends: its comments count for it, or for the block it opens."""
        here: list[Suppression] = []
        for comment, alone in self.comments:
            if alone or comment.line in {self.start, end}:
                here.append(dataclasses.replace(comment, first=self.start, last=end))
            else:
                self.found.append(comment)
        self.comments, self.last = [], end
        here += [dataclasses.replace(one, last=end) for one in self.decorated]
        self.decorated = []
        if self.decorator:
            self.decorated = here
        elif self.opens:
            self.waiting = here
        else:
            self.found += here
        self.start, self.opens = 0, False

    def _one_line_block(self) -> None:
        """A logical line starts where a block was to be: that block was none."""
        self.found += self.waiting
        self.waiting = []

    def _close(self, comments: Iterable[Suppression], last: int) -> None:
        self.found += [dataclasses.replace(comment, last=max(comment.last, last)) for comment in comments]

    def close(self, last: int) -> None:
        """The file ends."""
        for comments in self.blocks:
            self._close(comments, last)
        self.found += [*(comment for comment, _ in self.comments), *self.waiting, *self.decorated]
        self.found.sort(key=lambda comment: (comment.line, comment.column))


def apply(
    findings: Sequence[Finding], suppressions: Suppressions, path: str, asked: Iterable[str]
) -> tuple[list[Finding], int]:
    """A file's findings without those suppressed, with what is wrong with its comments; and how many were suppressed.

    Args:
        findings: those of one file.
        suppressions: its comments.
        path: the file, for the findings on comments.
        asked: ids of the rules that ran: a suppression of others is not unused.
    """
    used: set[tuple[int, str]] = set()
    kept: list[Finding] = []
    for finding in findings:
        fitting = [
            (number, prefix)
            for number, comment in enumerate(suppressions.comments)
            if comment.covers(finding)
            for prefix in comment.ids
            if finding.rule.startswith(prefix)
        ]
        used.update(fitting)
        if not fitting:
            kept.append(finding)
    count = len(findings) - len(kept)
    ran = tuple(asked)
    for number, comment in enumerate(suppressions.comments):
        unused = [
            prefix
            for prefix in comment.ids
            if (number, prefix) not in used and any(one.startswith(prefix) for one in ran)
        ]
        if unused:
            kept.append(_unused(comment, unused, path))
    for line, column, end, reason in suppressions.problems:
        kept.append(tell("TPU005", path, reason, line=line, column=column, end_column=end))
    return kept, count


def _unused(comment: Suppression, unused: Sequence[str], path: str) -> Finding:
    names = ", ".join(unused)
    remedy = "remove the comment" if len(unused) == len(comment.ids) else f"remove {names} from the comment"
    return tell("TPU003", path, f"this suppresses no finding of {names}", remedy,
                line=comment.line, column=comment.column, end_column=comment.end_column)  # fmt: skip
