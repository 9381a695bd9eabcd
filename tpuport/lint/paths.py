"""Which files the user's paths name, and how to replace a file."""

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tpuport.lint import source
from tpuport.lint.diagnostics import make_finding
from tpuport.lint.findings import Finding, Severity
from tpuport.lint.patterns import Excluder

# Hidden directories are skipped too, and so is every directory that is a virtual
# environment.
SKIPPED: Final = frozenset(
    {"__pycache__", "node_modules", "site-packages", "venv", "env"}
)
# Usually build products, but projects do have packages of these names.
SKIPPED_UNLESS_PACKAGE: Final = frozenset({"build", "dist", "_build"})

_LINTED_SUFFIXES: Final = frozenset({".py", ".ipynb"})


@dataclasses.dataclass(frozen=True, slots=True)
class Discovery:
    """What the user's paths lead to.

    Attributes:
        files: absolute path to the path that reports show, in the order of discovery;
            symbolic links to files are not resolved.
        findings: paths that do not exist, directories that cannot be read.
    """

    files: dict[Path, str]
    findings: list[Finding]


def discover_files(
    paths: Sequence[str | Path], excluder: Excluder, *, exclude_named: bool = False
) -> Discovery:
    """The Python files and notebooks at and below some paths, each once.

    Args:
        paths: files and directories. A file that is named is linted whatever its
            suffix.
        excluder: what to leave out of directories.
        exclude_named: leave it out even if the user names it.
    """
    discovery = Discovery({}, [])
    for path in paths:
        display = os.fspath(path)
        absolute = Path(os.path.abspath(display))  # noqa: PTH100 - symbolic links are not resolved
        if not (exclude_named and excluder.excludes(absolute)):
            _Walk(discovery, excluder).add(absolute, display)
    return discovery


class _Walk:
    """The walk below one path that the user named."""

    def __init__(self, discovery: Discovery, excluder: Excluder) -> None:
        self.discovery = discovery
        self.excluder = excluder
        self.visited: set[str] = set()
        self.file_count = 0
        # Linked directories come last, so that a file that is also below the path
        # itself is reported there.
        self.links: list[tuple[Path, str]] = []

    def add(self, path: Path, display: str) -> None:
        match _kind_of_path(path):
            case "directory":
                self._add_tree(path, display)
            case "missing":
                self._report(
                    "TPU002",
                    display,
                    "there is no such file or directory",
                    "check the path's spelling",
                )
            case _:
                self.discovery.files.setdefault(path, display)

    def _add_tree(self, path: Path, display: str) -> None:
        findings_before = len(self.discovery.findings)
        self.links.append((path, display))
        while self.links:
            self._add_directory(*self.links.pop(0), ancestors=())
        if not self.file_count and len(self.discovery.findings) == findings_before:
            reason = "there is no Python file in this directory"
            self._report(
                "TPU002", display, reason, "name a directory that contains some"
            )

    def _add_directory(
        self, path: Path, display: str, ancestors: tuple[str, ...]
    ) -> None:
        real_path = os.path.realpath(path)
        if real_path in self.visited:
            return
        self.visited.add(real_path)
        try:
            with os.scandir(path) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            reason = f"the directory cannot be read: {error.strerror}"
            self._report("TPU002", display, reason, "make it readable, or exclude it")
            return
        directories: list[os.DirEntry[str]] = []
        for entry in entries:
            if _is_directory(entry):
                directories.append(entry)
            else:
                self._add_file(Path(entry.path), os.path.join(display, entry.name))  # noqa: PTH118 - keeps `./`
        for entry in directories:
            if self._is_searched(entry):
                self._add_subdirectory(entry, display, (*ancestors, real_path))

    def _add_subdirectory(
        self, entry: os.DirEntry[str], display: str, ancestors: tuple[str, ...]
    ) -> None:
        path = Path(entry.path)
        display = os.path.join(display, entry.name)  # noqa: PTH118 - keeps `./`
        if not entry.is_symlink():
            self._add_directory(path, display, ancestors)
        elif os.path.realpath(path) in ancestors:
            reason = "this symbolic link leads back to a directory above it, and is not followed"
            self._report(
                "TPU002",
                display,
                reason,
                "remove the link, or exclude it",
                severity=Severity.WARNING,
            )
        else:
            self.links.append((path, display))

    def _is_searched(self, entry: os.DirEntry[str]) -> bool:
        name = entry.name
        if name in SKIPPED or name.startswith(".") or name.endswith(".egg-info"):
            return False
        path = Path(entry.path)
        # os.path.exists returns False, and does not raise, for a file in a directory
        # that may not be read.
        if name in SKIPPED_UNLESS_PACKAGE and not os.path.exists(path / "__init__.py"):  # noqa: PTH110
            return False
        is_environment = os.path.exists(path / "pyvenv.cfg")  # noqa: PTH110
        return not is_environment and not self.excluder.excludes(path)

    def _add_file(self, path: Path, display: str) -> None:
        if path.suffix not in _LINTED_SUFFIXES or self.excluder.excludes(path):
            return
        self.file_count += 1
        self.discovery.files.setdefault(path, display)

    def _report(
        self,
        rule: str,
        display: str,
        reason: str,
        remedy: str = "",
        severity: Severity | None = None,
    ) -> None:
        self.discovery.findings.append(
            make_finding(rule, display, reason, remedy, severity=severity)
        )


def _kind_of_path(path: Path) -> str:
    """One of "file", "directory" and "missing"; a dangling link is a file, so that
    reading it reports the problem.
    """
    # A text that is not on disk, such as standard input.
    if path in source.overlay:
        return "file"
    try:
        if path.is_dir():
            return "directory"
        if path.exists() or path.is_symlink():
            return "file"
    except (OSError, ValueError):  # a name that is too long, or has a null byte
        pass
    return "missing"


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: reading it as a file reports that
        return False


def common_directory(paths: Sequence[str | Path]) -> Path:
    """The innermost directory that contains all the paths."""
    if not paths:
        return Path.cwd()
    return Path(os.path.commonpath(map(_enclosing_directory, paths)))


def _enclosing_directory(path: str | Path) -> str:
    absolute = os.path.abspath(path)  # noqa: PTH100 - symbolic links are not resolved
    return absolute if os.path.isdir(absolute) else os.path.dirname(absolute)  # noqa: PTH112, PTH120


def relative_to_working_directory(path: str) -> str:
    """The path from the working directory, or the path itself if it lies outside."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _copy_owner_and_mode(status: os.stat_result, path: Path) -> None:
    # Changing the owner takes bits off the mode, so that comes first.
    if hasattr(os, "chown"):
        # Not permitted, or an owner that this container or file system does not know.
        with contextlib.suppress(OSError):
            os.chown(path, status.st_uid, status.st_gid)
    path.chmod(status.st_mode & 0o7777)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file's bytes so that a crash leaves either the old file or the new one
    whole.

    The mode stays, and the owner where this process may give files away. If `path` is a
    symbolic link, its target is replaced and not the link.

    Raises:
        OSError: the file or its directory cannot be written; the file is unchanged.
    """
    target = Path(os.path.realpath(path))
    status = None
    if target.exists():
        if not os.access(target, os.W_OK):
            raise PermissionError(13, "the file is read-only", str(path))
        status = target.stat()
    # The name is chosen before the file exists: an interruption right after its
    # creation must still remove it.
    temporary = target.with_name(f".{target.name}.{os.urandom(6).hex()}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
            if status is not None:
                _copy_owner_and_mode(status, temporary)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
