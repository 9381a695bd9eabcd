"""Patterns in the settings: files and directories to leave out, and functions that are
entry points.
"""

import dataclasses
import fnmatch
from collections.abc import Iterable, Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Excluder:
    """Patterns of files and directories that are left out.

    A pattern without a slash matches the name of a file or of any directory above it,
    one with a slash matches the path from the root; `*` and `**` both match across
    slashes.

    Attributes:
        patterns: shell patterns: `*_test.py`, `legacy`, `models/old/*`.
        root: what patterns with a slash start from.
    """

    patterns: tuple[str, ...]
    root: Path

    def excludes(self, path: Path) -> bool:
        """Whether a pattern matches the path itself or a directory between it and the
        root.
        """
        # Checked first because this runs for every file of a directory, mostly without
        # any pattern.
        if not self.patterns:
            return False
        root = Path(path.anchor)
        if path.is_relative_to(self.root):
            root = self.root
        relative = path.relative_to(root)
        # The last parent is the root itself, which no pattern leaves out.
        candidates = [relative, *relative.parents][:-1]
        return any(
            matches_path(pattern, candidate.as_posix())
            for pattern in self.patterns
            for candidate in candidates
        )


def matches_path(pattern: str, path: str) -> bool:
    """Whether a shell pattern matches a relative path, or its last part if the pattern
    has no slash.
    """
    pattern = pattern.removeprefix("./").rstrip("/")
    if "/" not in pattern:
        return fnmatch.fnmatchcase(path.rpartition("/")[2], pattern)
    pattern = pattern.removeprefix("/")
    # `**/` also matches no directory at all, which fnmatch does not know.
    return any(
        fnmatch.fnmatchcase(path, form)
        for form in (pattern, pattern.removeprefix("**/"))
    )


def matches_function(pattern: str, path: Path, qualname: str) -> bool:
    """Whether an entry-point pattern matches a function.

    Args:
        pattern: `package.module:Class.method`, `Class.method` or `function`, with `*`.
        path: the function's file. The part before the colon may be any end of its
            dotted path, whether or not the directories are packages.
        qualname: the function's qualified name in the file.
    """
    module_pattern, _, name_pattern = pattern.rpartition(":")
    if not fnmatch.fnmatchcase(qualname, name_pattern):
        return False
    names = _module_names(path)
    # Without a module, the function may be in any.
    return not module_pattern or any(
        fnmatch.fnmatchcase(name, module_pattern) for name in names
    )


def _module_names(path: Path) -> list[str]:
    """Every dotted name that the file could have, from the longest to the file's own
    stem.
    """
    # A package's `__init__.py` has the name of its directory.
    parts = path.with_suffix("").parts[1:]
    if path.stem == "__init__":
        parts = parts[:-1]
    return [".".join(parts[start:]) for start in range(len(parts))]


def unmatched_patterns(
    patterns: Sequence[str], functions: Iterable[str]
) -> tuple[str, ...]:
    """The entry-point patterns that match none of these functions, each function as
    `path:qualname`.
    """
    unmatched = dict.fromkeys(patterns)
    for function in functions:
        path, _, qualname = function.rpartition(":")
        for pattern in list(unmatched):
            if matches_function(pattern, Path(path), qualname):
                del unmatched[pattern]
    return tuple(unmatched)
