"""`# tpuport: ignore[TPU101] reason`: on a line, on a block's first line, or for a
whole file; `# noqa: TPU101`.
"""

import dataclasses
import io
import itertools
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from tpuport.base.mappings import group_by
from tpuport.lint.diagnostics import make_finding
from tpuport.lint.findings import Finding
from tpuport.lint.rule_catalogue import id_by_name, is_known_prefix

_COMMENT: Final = re.compile(r"#\s*tpuport:\s*(?P<content>.*)", re.DOTALL)
_IGNORE: Final = re.compile(r"(?P<keyword>ignore-file|ignore)\s*\[(?P<ids>[^\]]*)\]")
# What other linters read too. Without ids it is about their findings: a suppression
# names the rules that it is for.
_NOQA: Final = re.compile(
    r"#\s*noqa\s*:\s*(?P<ids>[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)", re.IGNORECASE
)
_NOQA_ID: Final = re.compile(r"TPU\d+", re.IGNORECASE)
_END_OF_FILE: Final = 10**9


@dataclasses.dataclass(frozen=True, slots=True)
class Suppression:
    """A comment that suppresses findings.

    Attributes:
        line, column, end_column: the comment's position.
        first, last: the lines whose findings it suppresses, by where they start.
        ids: ids or prefixes, in capitals.
    """

    line: int
    column: int
    end_column: int
    first: int
    last: int
    ids: tuple[str, ...]


class CommentProblem(NamedTuple):
    """A comment that suppresses nothing because it cannot be understood."""

    line: int
    column: int
    end_column: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Suppressions:
    """The `# tpuport:` comments of a file."""

    comments: tuple[Suppression, ...] = ()
    problems: tuple[CommentProblem, ...] = ()

    def to_json(self) -> list[Any]:
        """Plain lists, for the cache."""
        return [
            list(map(dataclasses.astuple, self.comments)),
            list(self.problems),
        ]

    @staticmethod
    def from_json(value: Any) -> "Suppressions":
        """The inverse of `to_json`."""
        comments, problems = value
        suppressions = [
            Suppression(*position, ids=tuple(ids)) for *position, ids in comments
        ]
        return Suppressions(
            tuple(suppressions), tuple(CommentProblem(*problem) for problem in problems)
        )


def parse_suppressions(text: str) -> Suppressions:
    """The suppressions of a file that parses."""
    # Tokenizing takes longer than parsing, and few files have such comments.
    if "tpuport:" not in text and _NOQA.search(text) is None:
        return Suppressions()
    reader = _TokenReader()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
            reader.read(token)
    except (tokenize.TokenError, SyntaxError) as error:
        reader.problems.append(
            CommentProblem(
                1, 1, 2, f"the comments cannot be told from the code: {error}"
            )
        )
    reader.finish()
    return Suppressions(tuple(reader.suppressions), tuple(reader.problems))


class _TokenReader:
    """Follows logical lines and blocks through a file's tokens, and determines the
    lines that each comment covers.

    Attributes:
        suppressions: those whose lines are known.
        problems: comments that cannot be understood.
        line_comments: comments of the current logical line, each with whether it stands
            alone on a line before it.
        line_start: the first line of the current logical line; 0 between logical lines.
        last_code_line: the last line of the logical line before.
        ends_with_colon: the current logical line so far ends with a colon.
        is_decorator: the current logical line is a decorator.
        decorator_comments: comments on decorators whose function or class has not
            started yet.
        block_comments: comments on the first line of a block that is not indented yet.
        open_blocks: comments on the first line of each block around the current line.
    """

    def __init__(self) -> None:
        self.suppressions: list[Suppression] = []
        self.problems: list[CommentProblem] = []
        self.line_comments: list[tuple[Suppression, bool]] = []
        self.line_start = 0
        self.last_code_line = 0
        self.ends_with_colon = False
        self.is_decorator = False
        self.decorator_comments: list[Suppression] = []
        self.block_comments: list[Suppression] = []
        self.open_blocks: list[list[Suppression]] = []

    def read(self, token: tokenize.TokenInfo) -> None:
        """Take the file's next token."""
        match token.type:
            case tokenize.COMMENT:
                self._read_comment(token)
            case tokenize.INDENT:
                self.open_blocks.append(self.block_comments)
                self.block_comments = []
            case tokenize.DEDENT:
                if self.open_blocks:
                    self._close_block(self.open_blocks.pop(), self.last_code_line)
            case tokenize.NEWLINE:
                self._end_logical_line(token.start[0])
            case tokenize.NL | tokenize.ENDMARKER:
                # Neither code nor the end of a logical line.
                pass
            case _:
                self._read_code(token)

    def finish(self) -> None:
        """Take the end of the file."""
        # The file may end inside a block, or after an incomplete line.
        for comments in self.open_blocks:
            self._close_block(comments, _END_OF_FILE)
        self.suppressions += [comment for comment, _ in self.line_comments]
        self.suppressions += self.block_comments + self.decorator_comments
        self.suppressions.sort(key=lambda comment: (comment.line, comment.column))

    def _read_code(self, token: tokenize.TokenInfo) -> None:
        if not self.line_start:
            self.line_start = token.start[0]
            self.is_decorator = token.string == "@"
            # After the colon a new logical line started without an indent: a block on
            # one line, already over.
            self.suppressions += self.block_comments
            self.block_comments = []
        self.ends_with_colon = token.string == ":"

    def _read_comment(self, token: tokenize.TokenInfo) -> None:
        match = _COMMENT.search(token.string)
        if match is None:
            self._read_noqa(token)
            return
        line = token.start[0]
        column = token.start[1] + match.start() + 1
        end_column = token.end[1] + 1
        ignore = _IGNORE.match(match["content"])
        if ignore is None:
            reason = "the comment names no rule: it suppresses nothing"
            self.problems.append(CommentProblem(line, column, end_column, reason))
            return
        # A comma at the end is not a mistake.
        names = [part.strip() for part in ignore["ids"].split(",") if part.strip()]
        # Names are as good as ids: `ignore[item]` is `ignore[TPU201]`.
        ids = tuple(id_by_name().get(name.lower(), name.upper()) for name in names)
        problem = _problem_with_names(names, ids)
        if problem:
            reason = f"{problem}: the comment suppresses nothing"
            self.problems.append(CommentProblem(line, column, end_column, reason))
        elif ignore["keyword"] == "ignore-file":
            self.suppressions.append(
                Suppression(line, column, end_column, 1, _END_OF_FILE, ids)
            )
        else:
            stands_alone = (
                not self.line_start and not token.line[: token.start[1]].strip()
            )
            self.line_comments.append(
                (Suppression(line, column, end_column, line, line, ids), stands_alone)
            )

    def _read_noqa(self, token: tokenize.TokenInfo) -> None:
        match = _NOQA.search(token.string)
        names = _NOQA_ID.findall(match["ids"]) if match is not None else []
        # Ids of other linters are theirs.
        if match is None or not names:
            return
        line, column = token.start[0], token.start[1] + match.start() + 1
        end_column = token.start[1] + match.end() + 1
        ids = tuple(name.upper() for name in names)
        if problem := _problem_with_names(names, ids):
            reason = f"{problem}: the comment suppresses nothing"
            self.problems.append(CommentProblem(line, column, end_column, reason))
        else:
            # For its own line only, as in other linters.
            self.suppressions.append(
                Suppression(line, column, end_column, line, line, ids)
            )

    def _end_logical_line(self, end: int) -> None:
        """Assign the line's comments to the line itself, or to the block that it
        opens.
        """
        comments: list[Suppression] = []
        for comment, stands_alone in self.line_comments:
            if stands_alone or comment.line in {self.line_start, end}:
                comments.append(
                    dataclasses.replace(comment, first=self.line_start, last=end)
                )
            else:  # in the middle of a logical line of several lines: for its own line only
                self.suppressions.append(comment)
        # A comment on a decorator reaches down into the function.
        comments += [
            dataclasses.replace(comment, last=end)
            for comment in self.decorator_comments
        ]
        self.line_comments = []
        self.decorator_comments = []
        if self.is_decorator:
            self.decorator_comments = comments
        elif self.ends_with_colon:
            self.block_comments = comments
        else:
            self.suppressions += comments
        self.last_code_line = end
        self.line_start = 0
        self.ends_with_colon = False

    def _close_block(self, comments: Iterable[Suppression], last: int) -> None:
        for comment in comments:
            self.suppressions.append(
                dataclasses.replace(comment, last=max(comment.last, last))
            )


def _problem_with_names(names: Sequence[str], ids: Sequence[str]) -> str:
    """What is wrong with the brackets of a comment; "" if nothing is."""
    if not ids:
        return "the brackets name no rule"
    for name, id_ in zip(names, ids, strict=True):
        # Prefixes as short as "T" would hide everything.
        if not (id_.startswith("TPU") and is_known_prefix(id_)):
            return f"no rule's id starts with {name!r}"
    return ""


class FilteredFindings(NamedTuple):
    """Findings after suppression.

    Attributes:
        findings: those not suppressed.
        comment_findings: findings on the comments themselves: unused or invalid ones.
        suppressed: number of suppressed findings.
    """

    findings: list[Finding]
    comment_findings: list[Finding]
    suppressed: int


def filter_findings(
    findings: Sequence[Finding],
    suppressions: Suppressions,
    path: str,
    enabled_ids: Iterable[str],
) -> FilteredFindings:
    """Apply a file's suppressions to its findings.

    Args:
        findings: those of one file.
        suppressions: its comments.
        path: the file, for the findings on comments.
        enabled_ids: ids of the selected rules: a suppression of another rule does not
            count as unused.
    """
    # Of several comments on one finding all count as used.
    used: set[tuple[Suppression, str]] = set()
    remaining: list[Finding] = []
    for finding, covering in _with_covering_comments(findings, suppressions):
        uses = _uses(covering, finding)
        used.update(uses)
        if not uses:
            remaining.append(finding)
    enabled_ids = tuple(enabled_ids)
    comment_findings: list[Finding] = []
    for comment in suppressions.comments:
        candidates = [prefix for prefix in comment.ids if (comment, prefix) not in used]
        unused = [
            prefix
            for prefix in candidates
            if any(id_.startswith(prefix) for id_ in enabled_ids)
        ]
        if unused:
            comment_findings.append(_unused_suppression(comment, unused, path))
    for line, column, end_column, reason in suppressions.problems:
        finding = make_finding(
            "TPU005", path, reason, line=line, column=column, end_column=end_column
        )
        comment_findings.append(finding)
    return FilteredFindings(remaining, comment_findings, len(findings) - len(remaining))


def _with_covering_comments(
    findings: Sequence[Finding], suppressions: Suppressions
) -> Iterator[tuple[Finding, list[Suppression]]]:
    """Each finding with the comments that cover it, in time that grows with their
    number and not with its square.

    A comment covers a finding that starts in its lines or, if it is about a single
    line, ends on it.
    """
    by_extent = group_by(suppressions.comments, lambda c: c.first == c.last)
    at_line = group_by(by_extent.get(True, []), attrgetter("first"))
    pending = sorted(by_extent.get(False, []), key=attrgetter("first"), reverse=True)
    active: list[Suppression] = []
    around: dict[int, list[Suppression]] = {}
    for line in sorted({finding.line for finding in findings}):
        while pending and pending[-1].first <= line:
            active.append(pending.pop())
        active = [comment for comment in active if line <= comment.last]
        around[line] = list(active)
    for finding in findings:
        lines = {finding.line, max(finding.line, finding.end_line)}
        yield (
            finding,
            [
                *around[finding.line],
                *itertools.chain(*(at_line.get(line, ()) for line in lines)),
            ],
        )


def _uses(
    covering: Iterable[Suppression], finding: Finding
) -> list[tuple[Suppression, str]]:
    """The comments that suppress a finding, of those that cover it, each with the
    prefix that does it.
    """
    return [
        (comment, prefix)
        for comment in covering
        for prefix in comment.ids
        if finding.rule.startswith(prefix)
    ]


def _unused_suppression(
    comment: Suppression, unused: Sequence[str], path: str
) -> Finding:
    names = ", ".join(unused)
    remedy = (
        "remove the comment"
        if len(unused) == len(comment.ids)
        else f"remove {names} from the comment"
    )
    return make_finding(
        "TPU003",
        path,
        f"this suppresses no finding of {names}",
        remedy,
        line=comment.line,
        column=comment.column,
        end_column=comment.end_column,
    )
