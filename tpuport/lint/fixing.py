"""Applying fixes: files are rewritten in memory until nothing more can be fixed, then each is written in one step."""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tpuport.lint import source
from tpuport.lint.diagnostics import make_finding
from tpuport.lint.findings import Applicability, Finding
from tpuport.lint.paths import write_atomically
from tpuport.lint.session import Session

_MAX_ROUNDS: Final = 10

# libcst reads about 14,000 lines a second. With more lines a finding shows what its rule can do at best.
_MAX_LINES: Final = 20_000


def rewrite_text_with_libcst(text: str, findings: Sequence[Finding], unsafe: bool) -> tuple[str, int]:
    """One pass over a file's text: the new text, and the number of rewritten findings."""
    # Importing libcst takes as long as linting a file.
    from tpuport.lint.fixes import fix_text

    return fix_text(text, findings, unsafe)


def available_fixes_with_libcst(text: str, findings: Sequence[Finding]) -> list[Applicability]:
    """What can be done about each finding, with the code at its position."""
    from tpuport.lint.fixes import available_fixes

    return available_fixes(text, findings)


RewriteText = Callable[[str, Sequence[Finding], bool], tuple[str, int]]
AvailableFixes = Callable[[str, Sequence[Finding]], list[Applicability]]

# The functions that know libcst. Variables so that tests can replace them.
rewrite_text: RewriteText = rewrite_text_with_libcst
available_fixes: AvailableFixes = available_fixes_with_libcst


class FixLabels(NamedTuple):
    """Findings with their `fix`, and whether that was determined from the code at each position."""

    findings: list[Finding]
    are_exact: bool


def label_fixes(session: Session, findings: Sequence[Finding]) -> FixLabels:
    """The findings, each with the fix that a further run could apply.

    A finding comes from its rule with the best fix that the rule can do anywhere. The code at its position may not
    allow that fix, or only an unsafe one, and what this run's own fixing has left can not be fixed at all.
    """
    findings_by_file: dict[str, list[Finding]] = collections.defaultdict(list)
    for finding in findings:
        if finding.fix is not Applicability.NONE:
            findings_by_file[finding.path].append(finding)
    are_exact = sum(len(session.lines(path)) for path in findings_by_file) <= _MAX_LINES
    fix_by_identity = {id(finding): finding.fix for finding in findings}
    if are_exact:
        for path, fixable in findings_by_file.items():
            fixes = available_fixes("\n".join(session.lines(path)) + "\n", fixable)
            fix_by_identity.update(zip(map(id, fixable), fixes, strict=True))
    labelled: list[Finding] = []
    for finding in findings:
        fix = fix_by_identity[id(finding)]
        if fix.is_within(session.run.fix):
            fix = Applicability.NONE
        labelled.append(dataclasses.replace(finding, fix=fix))
    return FixLabels(labelled, are_exact)


@dataclasses.dataclass(slots=True)
class _FixedFile:
    """A file under fixing.

    Attributes:
        data: its bytes on disk.
        encoding: that of the bytes.
        original: its text on disk.
        text: its text after the fixes so far.
        previous_texts: every text that it has had.
        count: number of rewritten findings.
        is_abandoned: a fix went wrong, and no other is tried.
    """

    data: bytes
    encoding: str
    original: str
    text: str
    previous_texts: set[str]
    count: int = 0
    is_abandoned: bool = False


class FixResult(NamedTuple):
    """What fixing did.

    Attributes:
        counts: by absolute path, the number of rewritten findings.
        diffs: by absolute path, the unified diff.
        problems: findings on files that could not be fixed.
    """

    counts: dict[str, int]
    diffs: dict[str, str]
    problems: list[Finding]


def fix_files(session: Session) -> FixResult:
    """Apply fixes and analyse again until there are no more; then write the files, or only return the differences.

    A fix that raises, that produces text which does not parse, or that undoes another leaves its file unchanged and
    becomes a finding.
    """
    return _Fixer(session).run()


class _Fixer:
    """The files of a session that have fixes, by absolute path, and the problems so far."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.files: dict[str, _FixedFile] = {}
        self.problems: list[Finding] = []

    def run(self) -> FixResult:
        # While fixing, imports between the files must lead to the fixed texts.
        previous_overlay = source.overlay
        source.overlay = {}
        try:
            for _ in range(_MAX_ROUNDS):
                changed = self._fix_once()
                if not changed:
                    break
                self.session.reanalyse(self._affected_files(changed))
            # Nothing is written before all files are fixed, so that an interruption leaves all of them alone.
            rewritten = {path: file for path, file in self.files.items() if file.text != file.original}
            if self.session.run.write:
                rewritten = {path: file for path, file in rewritten.items() if self._write(path, file)}
        finally:
            source.overlay = previous_overlay
        counts = {path: file.count for path, file in rewritten.items()}
        diffs = {path: _unified_diff(self.session.files[path], file) for path, file in rewritten.items()}
        return FixResult(counts, diffs, self.problems)

    def _fix_once(self) -> set[str]:
        """One pass over every file that has findings to fix; the absolute paths of those that changed."""
        fixable: dict[str, list[Finding]] = collections.defaultdict(list)
        for finding in self.session.collect_findings().reported:
            if finding.fix.is_within(self.session.run.fix):
                fixable[finding.path].append(finding)
        changed: set[str] = set()
        for path, findings in fixable.items():
            if path not in self.files and not self._open(path):
                continue
            file = self.files[path]
            if not file.is_abandoned and self._fix(path, file, findings):
                source.overlay[Path(path)] = file.text
                self.session.replace_text(path, file.text)
                changed.add(path)
        return changed

    def _open(self, path: str) -> bool:
        try:
            data = Path(path).read_bytes()
            text, encoding = source.decode(data, path)
        except (OSError, source.Unreadable) as error:
            self._report(path, f"the file could not be read again to fix it: {error}")
            return False
        self.files[path] = _FixedFile(data, encoding, text, text, {text})
        return True

    def _fix(self, path: str, file: _FixedFile, findings: Sequence[Finding]) -> bool:
        """Whether a pass changed a file's text."""
        try:
            text, count = rewrite_text(
                file.text, sorted(findings), self.session.run.fix == Applicability.UNSAFE
            )
        except Exception as error:  # noqa: BLE001 - a failure on one file must not end the fixing of the others
            file.is_abandoned = True
            self._report(path, f"a fix failed: {type(error).__name__}: {error}")
            return False
        if not count or text == file.text:
            return False
        problem = _problem_with_text(text, path, file)
        if problem:
            file.is_abandoned = True
            rules = ", ".join(sorted({finding.rule for finding in findings}))
            self._report(path, f"the fix for {rules} {problem}; the file is as it was before that fix")
            return False
        file.previous_texts.add(text)
        file.text = text
        file.count += count
        return True

    def _affected_files(self, changed: set[str]) -> list[str]:
        """The files whose results depend on the changed ones."""
        return [
            path
            for path, result in self.session.results.items()
            if not changed.isdisjoint((path, *result.dependencies))
        ]

    def _write(self, path: str, file: _FixedFile) -> bool:
        problem = _write_if_unchanged(Path(path), file)
        if problem:
            self._report(path, f"the fixed file cannot be written: {problem}")
            self.session.restore_text(path)
        return not problem

    def _report(self, path: str, reason: str) -> None:
        remedy = "make the file writable"
        if "fix " in reason:
            remedy = "fix it by hand, and report it as a bug of tpuport"
        self.problems.append(
            make_finding("TPU006", self.session.files[path], " ".join(reason.split()), remedy)
        )


def _write_if_unchanged(path: Path, file: _FixedFile) -> str:
    """Write a file's new text; the problem if that fails, else ""."""
    try:
        if path.read_bytes() != file.data:
            return "it has been changed by another program meanwhile"
        write_atomically(path, file.text.encode(file.encoding))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _problem_with_text(text: str, path: str, file: _FixedFile) -> str:
    """What is wrong with a rewritten text; "" if nothing is."""
    # Two fixes that undo each other would go on forever.
    if text in file.previous_texts:
        return "goes in circles"
    try:
        source.parse(text, Path(path), path)
        text.encode(file.encoding)
    except source.Unreadable as error:
        return f"gives text that does not parse ({error.finding.reason}, line {error.finding.line})"
    except UnicodeEncodeError:
        return f"gives text that {file.encoding} cannot encode"
    return ""


def _unified_diff(display: str, file: _FixedFile) -> str:
    import difflib  # slow to import, and most runs do not fix anything

    old = _diff_lines(file.original)
    new = _diff_lines(file.text)
    return "".join(difflib.unified_diff(old, new, f"a/{display}", f"b/{display}"))


def _diff_lines(text: str) -> list[str]:
    """A text's lines with their line ends, and the mark that `patch` expects after a last line without one."""
    *lines, last_line = text.split("\n")
    ended = [f"{line}\n" for line in lines]
    if last_line:
        ended.append(f"{last_line}\n\\ No newline at end of file\n")
    return ended
