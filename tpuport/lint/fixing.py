"""Applying fixes: files are rewritten in memory until nothing more can be fixed, then
each is written in one step.
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from tpuport.base.mappings import group_by
from tpuport.base.temporary import garbage_collection_off
from tpuport.lint import source
from tpuport.lint.diagnostics import make_finding
from tpuport.lint.findings import Applicability, Finding
from tpuport.lint.notebooks import ChangedCellsError, Notebook
from tpuport.lint.paths import write_atomically
from tpuport.lint.result_cache import Cache
from tpuport.lint.session import Session

_MAX_ROUNDS: Final = 10

# libcst reads about 14,000 lines a second. With more lines a finding shows what its
# rule can do at best.
_MAX_LINES: Final = 20_000


def rewrite_text_with_libcst(
    text: str, findings: Sequence[Finding], unsafe: bool
) -> tuple[str, int]:
    """One pass over a file's text: the new text, and the number of rewritten
    findings.
    """
    # Importing libcst takes as long as linting a file.
    from tpuport.lint.fixes import fix_text

    return fix_text(text, findings, unsafe)


def available_fixes_with_libcst(
    text: str, findings: Sequence[Finding]
) -> list[Applicability]:
    """What can be done about each finding, with the code at its position."""
    from tpuport.lint.fixes import available_fixes

    return available_fixes(text, findings)


RewriteText = Callable[[str, Sequence[Finding], bool], tuple[str, int]]
AvailableFixes = Callable[[str, Sequence[Finding]], list[Applicability]]

# The functions that know libcst. Variables so that tests can replace them.
rewrite_text: RewriteText = rewrite_text_with_libcst
available_fixes: AvailableFixes = available_fixes_with_libcst


class FixLabels(NamedTuple):
    """Findings with their `fix`, and whether that was determined from the code at each
    position.
    """

    findings: list[Finding]
    are_exact: bool


def label_fixes(session: Session, findings: Sequence[Finding]) -> FixLabels:
    """The findings, each with the fix that a further run could apply.

    A finding comes from its rule with the best fix that the rule can do anywhere. The
    code at its position may not allow that fix, or only an unsafe one, and what this
    run's own fixing has left can not be fixed at all.
    """
    fixable = group_by(
        (finding for finding in findings if finding.fix is not Applicability.NONE),
        attrgetter("path"),
    )
    # Fixing has changed texts that the cache knows, and may not have written them.
    cache = session.cache if session.run.fix is Applicability.NONE else None
    fix_by_identity = {id(finding): finding.fix for finding in findings}
    unknown: dict[str, list[Finding]] = {}
    for path, in_file in fixable.items():
        fixes = (
            cache.get_fixes(path, _text(session, path), in_file)
            if cache is not None
            else None
        )
        if fixes is None:
            unknown[path] = in_file
        else:
            fix_by_identity.update(zip(map(id, in_file), fixes, strict=True))
    are_exact = sum(len(session.lines(path)) for path in unknown) <= _MAX_LINES
    if are_exact:
        fix_by_identity.update(_determine_fixes(session, unknown, cache))
    labelled: list[Finding] = []
    for finding in findings:
        fix = fix_by_identity[id(finding)]
        if fix.is_within(session.run.fix):
            fix = Applicability.NONE
        labelled.append(dataclasses.replace(finding, fix=fix))
    return FixLabels(labelled, are_exact)


def _determine_fixes(
    session: Session, findings_by_file: Mapping[str, list[Finding]], cache: Cache | None
) -> dict[int, Applicability]:
    """What can be done about each finding, by its identity; the cache remembers it."""
    fix_by_identity: dict[int, Applicability] = {}
    for path, findings in findings_by_file.items():
        text = _text(session, path)
        # Nothing of a syntax tree is garbage before the whole of it is.
        with garbage_collection_off():
            fixes = available_fixes(text, findings)
        fix_by_identity.update(zip(map(id, findings), fixes, strict=True))
        if cache is not None:
            cache.put_fixes(path, text, findings, fixes)
    if cache is not None:
        cache.save()
    return fix_by_identity


def _text(session: Session, path: str) -> str:
    return "\n".join(session.lines(path)) + "\n"


@dataclasses.dataclass(slots=True)
class _FixedFile:
    """A file under fixing.

    Attributes:
        data: its bytes on disk.
        encoding: that of the bytes.
        original: its Python on disk: its text, or the module that the cells of a
            notebook form.
        text: its Python after the fixes so far.
        previous_texts: every text that it has had.
        count: number of rewritten findings.
        is_abandoned: a fix went wrong, and no other is tried.
        notebook: the file's cells, if it is a notebook.
    """

    data: bytes
    encoding: str
    original: str
    text: str
    previous_texts: set[str]
    count: int = 0
    is_abandoned: bool = False
    notebook: Notebook | None = None

    def content(self, text: str) -> str:
        """The file's text with this Python in it.

        Raises:
            ChangedCellsError: it cannot be divided into the notebook's cells.
        """
        return text if self.notebook is None else self.notebook.with_module(text)

    def readable(self, text: str) -> str:
        """This Python as it is shown to people."""
        return text if self.notebook is None else self.notebook.readable(text)


class FixResult(NamedTuple):
    """What fixing did.

    Attributes:
        counts: by absolute path, the number of rewritten findings.
        diffs: by absolute path, the unified diff.
        problems: findings on files that could not be fixed.
        texts: by absolute path, the rewritten text.
    """

    counts: dict[str, int]
    diffs: dict[str, str]
    problems: list[Finding]
    texts: dict[str, str]


def fix_files(session: Session, only: str | None = None) -> FixResult:
    """Apply fixes and analyse again until there are no more; then write the files, or
    only return the differences.

    A fix that raises, that produces text which does not parse, or that undoes another
    leaves its file unchanged and becomes a finding.

    Args:
        session: has analysed its files; its results become those of the fixed texts.
        only: the absolute path of the one file to fix; None for all.
    """
    return _Fixer(session, only).run()


class _Fixer:
    """The files of a session that have fixes, by absolute path, and the problems so
    far.
    """

    def __init__(self, session: Session, only: str | None) -> None:
        self.session = session
        self.only = only
        self.files: dict[str, _FixedFile] = {}
        self.problems: list[Finding] = []

    def run(self) -> FixResult:
        # While fixing, imports between the files must lead to the fixed texts.
        previous_overlay = source.overlay
        source.overlay = dict(previous_overlay)
        try:
            for _ in range(_MAX_ROUNDS):
                changed = self._fix_once()
                if not changed:
                    break
                self.session.reanalyse(self.session.affected_by(changed))
            # Nothing is written before all files are fixed, so that an interruption
            # leaves all of them alone.
            rewritten = {
                path: file
                for path, file in self.files.items()
                if file.text != file.original
            }
            if self.session.run.write:
                rewritten = {
                    path: file
                    for path, file in rewritten.items()
                    if self._write(path, file)
                }
        finally:
            source.overlay = previous_overlay
        counts = {path: file.count for path, file in rewritten.items()}
        diffs = {
            path: _unified_diff(self.session.files[path], file)
            for path, file in rewritten.items()
        }
        texts = {path: file.content(file.text) for path, file in rewritten.items()}
        return FixResult(counts, diffs, self.problems, texts)

    def _fix_once(self) -> set[str]:
        """One pass over every file that has findings to fix; the absolute paths of
        those that changed.
        """
        fixable: dict[str, list[Finding]] = collections.defaultdict(list)
        for finding in self.session.collect_findings().reported:
            is_wanted = self.only in (None, finding.path)
            if is_wanted and finding.fix.is_within(self.session.run.fix):
                fixable[finding.path].append(finding)
        changed: set[str] = set()
        for path, findings in fixable.items():
            if path not in self.files and not self._open(path):
                continue
            file = self.files[path]
            if not file.is_abandoned and self._fix(path, file, findings):
                source.overlay[Path(path)] = file.content(file.text)
                self.session.replace_text(path, file.content(file.text))
                changed.add(path)
        return changed

    def _open(self, path: str) -> bool:
        try:
            data, text, encoding = _read(path)
        except (OSError, source.Unreadable) as error:
            self._report(path, f"the file could not be read again to fix it: {error}")
            return False
        notebook = source.notebook_of(text, Path(path), path)
        if notebook is not None:
            text = notebook.module
        self.files[path] = _FixedFile(
            data, encoding, text, text, {text}, notebook=notebook
        )
        return True

    def _fix(self, path: str, file: _FixedFile, findings: Sequence[Finding]) -> bool:
        """Whether a pass changed a file's text."""
        try:
            text, count = rewrite_text(
                file.text,
                sorted(findings),
                self.session.run.fix == Applicability.UNSAFE,
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
            self._report(
                path,
                f"the fix for {rules} {problem}; the file is as it was before that fix",
            )
            return False
        file.previous_texts.add(text)
        file.text = text
        file.count += count
        return True

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
            make_finding(
                "TPU006", self.session.files[path], " ".join(reason.split()), remedy
            )
        )


def _read(path: str) -> tuple[bytes, str, str]:
    """A file's bytes, text and encoding; the text that an editor has not saved yet goes
    before that on disk.
    """
    unsaved = source.overlay.get(Path(path))
    if unsaved is not None:
        return unsaved.encode(errors="surrogatepass"), unsaved, "utf-8"
    data = Path(path).read_bytes()
    return data, *source.decode(data, path)


def _write_if_unchanged(path: Path, file: _FixedFile) -> str:
    """Write a file's new text; the problem if that fails, else ""."""
    try:
        if path.read_bytes() != file.data:
            return "it has been changed by another program meanwhile"
        write_atomically(path, file.content(file.text).encode(file.encoding))
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
        file.content(text).encode(file.encoding)
    except ChangedCellsError as error:
        return f"goes beyond one cell: {error.what}"
    except source.Unreadable as error:
        return f"gives text that does not parse ({error.finding.reason}, line {error.finding.line})"
    except UnicodeEncodeError:
        return f"gives text that {file.encoding} cannot encode"
    return ""


def _unified_diff(display: str, file: _FixedFile) -> str:
    import difflib  # slow to import, and most runs do not fix anything

    old = _diff_lines(file.readable(file.original))
    new = _diff_lines(file.readable(file.text))
    return "".join(difflib.unified_diff(old, new, f"a/{display}", f"b/{display}"))


def _diff_lines(text: str) -> list[str]:
    """A text's lines with their line ends, and the mark that `patch` expects after a
    last line without one.
    """
    *lines, last_line = text.split("\n")
    ended = [f"{line}\n" for line in lines]
    if last_line:
        ended.append(f"{last_line}\n\\ No newline at end of file\n")
    return ended
