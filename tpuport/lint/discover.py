"""From the paths that a user names to the files to lint."""

import dataclasses
import fnmatch
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tpuport.lint.diagnostics import tell
from tpuport.lint.findings import Finding, Severity

# Hidden directories are skipped too, and every directory that is a virtual environment.
SKIPPED: Final = frozenset("__pycache__ node_modules site-packages venv env".split())
# Skipped where they are no packages.
SKIPPED_UNLESS_PACKAGE: Final = frozenset("build dist _build".split())


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What stands below the paths.

    Attributes:
        files: absolute path to what the user sees, in the order found; symbolic links to files are kept as they are.
        findings: paths that do not exist, directories that cannot be read, notebooks.
    """

    files: dict[Path, str]
    findings: list[Finding]


@dataclasses.dataclass(frozen=True, slots=True)
class Excluder:
    """Patterns of files and directories that are left out.

    A pattern without a slash fits the name of a file or of any directory above it, one with a slash fits the path
    from the root; `*` and `**` both run over slashes.

    Attributes:
        patterns: shell patterns: `*_test.py`, `legacy`, `models/old/*`.
        root: what patterns with a slash start from.
    """

    patterns: tuple[str, ...]
    root: Path

    def excludes(self, path: Path) -> bool:
        """Whether a pattern fits the path itself or a directory between it and the root."""
        if not self.patterns:
            return False
        try:
            relative = path.relative_to(self.root)
        except ValueError:
            relative = Path(*path.parts[1:])
        prefixes = ["/".join(relative.parts[: n + 1]) for n in range(len(relative.parts))]
        return any(fits(pattern, prefix) for pattern in self.patterns for prefix in prefixes)


def fits(pattern: str, path: str) -> bool:
    """Whether a shell pattern fits a relative path: its last part where the pattern has no slash."""
    pattern = pattern.removeprefix("./").rstrip("/")
    if "/" not in pattern:
        return fnmatch.fnmatchcase(path.rpartition("/")[2], pattern)
    pattern = pattern.removeprefix("/")
    return fnmatch.fnmatchcase(path, pattern) or (
        pattern.startswith("**/") and fnmatch.fnmatchcase(path, pattern[3:])
    )


def discover(paths: Sequence[str | Path], excluder: Excluder, *, exclude_named: bool = False) -> Found:
    """The Python files at and below some paths, each once.

    Args:
        paths: files and directories. A file that is named is linted whatever its suffix.
        excluder: what is left out of directories.
        exclude_named: leave it out where it is named, too.
    """
    found = Found({}, [])
    for path in paths:
        _Walk(found, excluder, exclude_named).start(path)
    return found


class _Walk:
    """One path that the user named."""

    def __init__(self, found: Found, excluder: Excluder, exclude_named: bool) -> None:
        self.found, self.excluder, self.exclude_named = found, excluder, exclude_named
        self.seen: set[str] = set()
        self.notebooks = 0
        self.count = 0

    def start(self, named: str | Path) -> None:
        display = os.fspath(named)
        path = Path(os.path.abspath(display))  # noqa: PTH100 - symbolic links stay
        if self.exclude_named and self.excluder.excludes(path):
            return
        try:
            is_directory = path.is_dir()
            exists = is_directory or path.exists() or path.is_symlink()
        except (OSError, ValueError):
            is_directory = exists = False
        if is_directory:
            self._top(path, display)
        elif not exists:
            self._fail(display, "there is no such file or directory", "check the path's spelling")
        elif path.suffix == ".ipynb":
            self.found.findings.append(tell("TPU004", display, _NOTEBOOK, severity=Severity.ERROR))
        else:
            self.found.files.setdefault(path, display)

    def _top(self, path: Path, display: str) -> None:
        before = len(self.found.findings)
        links: list[tuple[Path, str]] = [(path, display)]
        # What a link leads to comes last, so that files are seen at their own place if that is below the path too.
        while links:
            self._directory(*links.pop(0), links, above=())
        if not self.count and len(self.found.findings) == before:
            self._fail(
                display, "there is no Python file in this directory", "name a directory that holds some"
            )

    def _directory(
        self, path: Path, display: str, links: list[tuple[Path, str]], above: tuple[str, ...]
    ) -> None:
        real = os.path.realpath(path)
        if real in self.seen:
            return
        self.seen.add(real)
        try:
            with os.scandir(path) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self._fail(
                display, f"the directory cannot be read: {error.strerror}", "make it readable, or exclude it"
            )
            return
        directories = [entry for entry in listed if _is_directory(entry)]
        for entry in listed:
            if entry not in directories:
                self._file(Path(entry.path), os.path.join(display, entry.name))  # noqa: PTH118 - as the user wrote it
        for entry in self._entered(directories):
            shown = os.path.join(display, entry.name)  # noqa: PTH118
            if not entry.is_symlink():
                self._directory(Path(entry.path), shown, links, (*above, real))
            elif os.path.realpath(entry.path) in {*above, real}:
                reason = "this symbolic link leads back to a directory above it, and is not followed"
                self.found.findings.append(
                    tell("TPU002", shown, reason, "remove the link, or exclude it", severity=Severity.WARNING)
                )
            else:
                links.append((Path(entry.path), shown))

    def _entered(self, directories: Iterable[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        for entry in directories:
            name, path = entry.name, Path(entry.path)
            if name.startswith(".") or name in SKIPPED or name.endswith(".egg-info"):
                continue
            # os.path.exists is false, not an error, for what lies in a directory that may not be read.
            if name in SKIPPED_UNLESS_PACKAGE and not os.path.exists(path / "__init__.py"):  # noqa: PTH110
                continue
            if os.path.exists(path / "pyvenv.cfg") or self.excluder.excludes(path):  # noqa: PTH110
                continue
            yield entry

    def _file(self, path: Path, display: str) -> None:
        if path.suffix not in {".py", ".ipynb"} or self.excluder.excludes(path):
            return
        if path.suffix == ".ipynb":
            self.found.findings.append(tell("TPU004", display, _NOTEBOOK))
        else:
            self.count += 1
            self.found.files.setdefault(path, display)

    def _fail(self, display: str, reason: str, remedy: str) -> None:
        self.found.findings.append(tell("TPU002", display, reason, remedy))


_NOTEBOOK: Final = "notebooks are not linted"


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: reading it as a file says so
        return False
