"""Patterns of entry points: which functions of which files they mean."""

import fnmatch
from collections.abc import Iterable, Sequence
from pathlib import Path


def fits(pattern: str, path: Path, qualname: str) -> bool:
    """Whether a pattern means a function.

    Args:
        pattern: `package.module:Class.method`, `Class.method` or `function`, with `*`.
        path: the function's file. Before the colon may stand any end of its dotted path, whether or not the
            directories are packages.
        qualname: the function's qualified name in the file.
    """
    module, _, name = pattern.rpartition(":")
    if not fnmatch.fnmatchcase(qualname, name):
        return False
    return not module or any(fnmatch.fnmatchcase(ending, module) for ending in _endings(path))


def _endings(path: Path) -> list[str]:
    parts = [*path.parts[1:-1], *([] if path.stem == "__init__" else [path.stem])]
    return [".".join(parts[start:]) for start in range(len(parts))]


def unmatched(patterns: Sequence[str], traced: Iterable[str]) -> tuple[str, ...]:
    """The patterns that mean none of these functions, each `path:qualname`."""
    places = [(Path(path), name) for path, _, name in (place.rpartition(":") for place in traced)]
    return tuple(
        pattern for pattern in patterns if not any(fits(pattern, path, name) for path, name in places)
    )
