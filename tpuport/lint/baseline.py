"""A baseline: the findings that a project has and knows, so that only new ones are told."""

import collections
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tpuport.errors import PortError
from tpuport.lint.files import write_atomically
from tpuport.lint.findings import Finding

_FORMAT: Final = 1
_FIELDS: Final = ("rule", "path", "function", "line")

Lines = Callable[[str], Sequence[str]]
Key = tuple[str, str, str, str]


def key(finding: Finding, lines: Lines, root: Path) -> Key:
    """What a finding is recognised by when lines have moved: rule, path, function and the line's words.

    Args:
        finding: with an absolute path.
        lines: a file's lines, by absolute path.
        root: what the path is written relative to.
    """
    text = lines(finding.path)
    line = " ".join(text[finding.line - 1].split()) if finding.line <= len(text) else ""
    return finding.rule, relative(finding.path, root), finding.function, line


def relative(path: str, root: Path) -> str:
    """A path from a directory, with forward slashes."""
    try:
        return os.path.relpath(path, root).replace(os.sep, "/")
    except ValueError:  # another drive
        return path.replace(os.sep, "/")


def write(file: Path, findings: Sequence[Finding], lines: Lines) -> None:
    """Write the findings as a baseline.

    Raises:
        PortError: the file cannot be written.
    """
    counted = collections.Counter(key(finding, lines, _root(file)) for finding in findings)
    entries = [
        {**dict(zip(_FIELDS, known, strict=True)), "count": count} for known, count in sorted(counted.items())
    ]
    text = json.dumps({"format": _FORMAT, "findings": entries}, indent=1, ensure_ascii=False)
    try:
        write_atomically(file, f"{text}\n".encode())
    except OSError as error:
        raise PortError(f"the baseline cannot be written: {error.strerror}", where=str(file)) from None


def read(file: Path) -> collections.Counter[Key]:
    """The counts of a baseline.

    Raises:
        PortError: the file cannot be read, or is no baseline.
    """
    try:
        content: Any = json.loads(file.read_bytes())
        if content["format"] != _FORMAT:
            raise PortError(
                f"the baseline has format {content['format']!r}, and this version reads {_FORMAT}",
                where=str(file),
                fix="write it again with --write-baseline",
            )
        counted: collections.Counter[Key] = collections.Counter()
        for entry in content["findings"]:
            rule, path, function, line = (str(entry[name]) for name in _FIELDS)
            counted[rule, path, function, line] += int(entry["count"])
    except OSError as error:
        raise PortError(
            f"the baseline cannot be read: {error.strerror}",
            where=str(file),
            fix="write one with --write-baseline",
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise PortError(
            "this is no baseline", where=str(file), fix="write one with --write-baseline"
        ) from None
    return counted


def split(
    findings: Sequence[Finding], known: collections.Counter[Key], lines: Lines, file: Path
) -> tuple[list[Finding], list[Finding], int]:
    """New findings, known ones, and how many of the baseline's no longer occur.

    Of more findings with one key than the baseline counts, the last are the new ones.
    """
    left = collections.Counter(known)
    new: list[Finding] = []
    old: list[Finding] = []
    for finding in findings:
        found = key(finding, lines, _root(file))
        if left[found] > 0:
            left[found] -= 1
            old.append(finding)
        else:
            new.append(finding)
    return new, old, sum(left.values())


def _root(file: Path) -> Path:
    return Path(os.path.abspath(file)).parent  # noqa: PTH100
