"""Rewriting files until nothing more can be: in memory first, then each file in one step."""

import dataclasses
import difflib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tpuport.lint import source
from tpuport.lint.diagnostics import tell
from tpuport.lint.files import write_atomically
from tpuport.lint.findings import Applicability, Finding, Severity

if TYPE_CHECKING:
    from tpuport.lint.engine import Lint

_ROUNDS: Final = 10

FixText = Callable[[str, Sequence[Finding], bool], tuple[str, int]]


def real_fix(text: str, findings: Sequence[Finding], unsafe: bool) -> tuple[str, int]:
    """One pass over a file's text: the new text, and how many places were rewritten."""
    from tpuport.lint.fixes import fix_text

    return fix_text(text, findings, unsafe)


# What rewrites a text. Tests put another one here.
fix: FixText = real_fix


@dataclasses.dataclass(slots=True)
class _File:
    """A file's text before and during fixing."""

    data: bytes
    encoding: str
    original: str
    text: str
    seen: set[str] = dataclasses.field(default_factory=set)
    count: int = 0
    given_up: bool = False


def fix_files(lint: "Lint") -> None:
    """Apply fixes and lint again until there are no more; then write the files, or only note the differences.

    A fix that raises, that gives text which does not parse, or that goes in circles leaves its file as it was and
    becomes a finding.
    """
    files: dict[str, _File] = {}
    before, source.overlay = source.overlay, {}
    try:
        for _ in range(_ROUNDS):
            changed = _round(lint, files)
            if not changed:
                break
            lint.again(_affected(lint, changed))
        rewritten = {path: file for path, file in files.items() if file.text != file.original}
        for path, file in rewritten.items():
            lint.fixed[path] = file.count
            lint.diffs[path] = _diff(lint.files[path], file)
            lint.texts[path] = source.split_lines(file.text)
        if lint.run.write:
            _write_all(lint, rewritten)
    finally:
        source.overlay = before


def _round(lint: "Lint", files: dict[str, _File]) -> set[str]:
    """One pass over every file that has something to fix; the absolute paths of those that changed."""
    wanted: dict[str, list[Finding]] = defaultdict(list)
    unsafe = lint.run.fix == Applicability.UNSAFE
    for finding in lint.told().findings:
        if finding.fix == Applicability.SAFE or (unsafe and finding.fix == Applicability.UNSAFE):
            wanted[finding.path].append(finding)
    changed: set[str] = set()
    for path, findings in wanted.items():
        file = files.get(path) or _open(lint, path)
        if file is None:
            continue
        files[path] = file
        if not file.given_up and _fix(lint, path, file, findings):
            source.overlay[Path(path)] = file.text
            lint.texts[path] = source.split_lines(file.text)
            changed.add(path)
    return changed


def _open(lint: "Lint", path: str) -> _File | None:
    try:
        data = Path(path).read_bytes()
        text, encoding = source.decode(data, path)
    except (OSError, source.Unreadable) as error:
        _tell(lint, path, f"the file could not be read again to fix it: {error}")
        return None
    return _File(data, encoding, text, text, {text})


def _fix(lint: "Lint", path: str, file: _File, findings: Sequence[Finding]) -> bool:
    """Whether a pass changed a file's text."""
    try:
        text, count = fix(file.text, sorted(findings), lint.run.fix == Applicability.UNSAFE)
    except Exception as error:  # noqa: BLE001 - one file's failure must not end the others'
        file.given_up = True
        _tell(lint, path, f"a fix failed: {type(error).__name__}: {error}")
        return False
    if not count or text == file.text:
        return False
    rules = ", ".join(sorted({finding.rule for finding in findings}))
    problem = "goes in circles" if text in file.seen else _unsound(text, path, file.encoding)
    if problem:
        file.given_up = True
        _tell(lint, path, f"the fix for {rules} {problem}; the file is as it was before that fix")
        return False
    file.seen.add(text)
    file.text, file.count = text, file.count + count
    return True


def _unsound(text: str, path: str, encoding: str) -> str:
    """What is wrong with a rewritten text; "" for nothing."""
    try:
        source.parse(text, Path(path), path)
        text.encode(encoding)
    except source.Unreadable as error:
        return f"gives text that does not parse ({error.finding.reason}, line {error.finding.line})"
    except UnicodeEncodeError:
        return f"gives text that {encoding} cannot hold"
    return ""


def _affected(lint: "Lint", changed: set[str]) -> Iterable[str]:
    return [
        path
        for path, result in lint.results.items()
        if path in changed or not changed.isdisjoint(result.dependencies)
    ]


def _diff(display: str, file: _File) -> str:
    old, new = (_kept_ends(text) for text in (file.original, file.text))
    return "".join(difflib.unified_diff(old, new, f"a/{display}", f"b/{display}"))


def _kept_ends(text: str) -> list[str]:
    lines = text.split("\n")
    ended = [f"{line}\n" for line in lines[:-1]]
    return [*ended, f"{lines[-1]}\n\\ No newline at end of file\n"] if lines[-1] else ended


def _write_all(lint: "Lint", files: dict[str, _File]) -> None:
    for path, file in files.items():
        try:
            _write(Path(path), file)
        except OSError as error:
            _tell(lint, path, f"the fixed file cannot be written: {error.strerror}")
            del lint.fixed[path], lint.diffs[path], lint.texts[path]


def _write(path: Path, file: _File) -> None:
    if path.read_bytes() != file.data:
        raise OSError(0, "it was changed by someone else meanwhile")
    write_atomically(path, file.text.encode(file.encoding))


def _tell(lint: "Lint", path: str, reason: str) -> None:
    remedy = (
        "fix it by hand, and report it as a bug of tpuport" if "fix " in reason else "make the file writable"
    )
    lint.findings.append(
        tell("TPU006", lint.files[path], " ".join(reason.split()), remedy, severity=Severity.ERROR)
    )
