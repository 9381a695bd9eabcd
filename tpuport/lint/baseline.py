"""The baseline: a file of findings that a project knows about, so that only new ones
are reported.
"""

import collections
import contextlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tpuport.errors import PortError
from tpuport.lint.findings import Finding
from tpuport.lint.paths import write_atomically
from tpuport.lint.regular_files import read_regular_file

_FORMAT: Final = 1
# Of a million findings.
_MAX_BYTES: Final = 256_000_000

# Returns a file's lines, by absolute path.
ReadLines = Callable[[str], Sequence[str]]


class FindingKey(NamedTuple):
    """What identifies a finding even after its line has moved; `line` is the line's
    text, blanks normalised.
    """

    rule: str
    path: str
    function: str
    line: str


class BaselineSplit(NamedTuple):
    """Findings divided by a baseline; `stale` is the number of its entries that no
    longer occur.
    """

    new: list[Finding]
    known: list[Finding]
    stale: int


def finding_key(finding: Finding, read_lines: ReadLines, root: Path) -> FindingKey:
    """The key of a finding.

    Args:
        finding: with an absolute path.
        read_lines: returns a file's lines.
        root: the directory that the key's path is relative to.
    """
    lines = read_lines(finding.path)
    # A file may have become shorter since it was analysed.
    line = lines[finding.line - 1] if finding.line <= len(lines) else ""
    path = _relative_posix_path(finding.path, root)
    return FindingKey(finding.rule, path, finding.function, " ".join(line.split()))


def _relative_posix_path(path: str, root: Path) -> str:
    with contextlib.suppress(ValueError):  # on another drive of Windows
        path = os.path.relpath(path, root)
    return path.replace(os.sep, "/")


def write_baseline(
    file: Path, findings: Sequence[Finding], read_lines: ReadLines
) -> None:
    """Write the findings as a baseline.

    Raises:
        PortError: the file cannot be written.
    """
    root = _root_directory(file)
    counts = collections.Counter(
        finding_key(finding, read_lines, root) for finding in findings
    )
    entries = [
        {**key._asdict(), "count": count} for key, count in sorted(counts.items())
    ]
    text = json.dumps(
        {"format": _FORMAT, "findings": entries}, indent=1, ensure_ascii=False
    )
    try:
        write_atomically(file, f"{text}\n".encode())
    except OSError as error:
        raise PortError(
            f"the baseline cannot be written: {error.strerror}", where=str(file)
        ) from None


def read_baseline(file: Path) -> collections.Counter[FindingKey]:
    """The number of findings by key in a baseline.

    Raises:
        PortError: the file cannot be read, or is not a baseline.
    """
    try:
        content: Any = json.loads(read_regular_file(file, _MAX_BYTES))
        if content["format"] != _FORMAT:
            raise PortError(
                f"the baseline has format {content['format']!r}, and this version reads {_FORMAT}",
                where=str(file),
                fix="write it again with --write-baseline",
            )
        counts: collections.Counter[FindingKey] = collections.Counter()
        for entry in content["findings"]:
            key = FindingKey(*(str(entry[field]) for field in FindingKey._fields))
            counts[key] += int(entry["count"])
    except OSError as error:
        reason = f"the baseline cannot be read: {error.strerror}"
        raise PortError(
            reason, where=str(file), fix="write one with --write-baseline"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        reason = "this is not a baseline"
        raise PortError(
            reason, where=str(file), fix="write one with --write-baseline"
        ) from None
    return counts


def split_by_baseline(
    findings: Sequence[Finding],
    baseline: collections.Counter[FindingKey],
    read_lines: ReadLines,
    file: Path,
) -> BaselineSplit:
    """Divide findings into new and known ones.

    If more findings share a key than the baseline counts, the last of them are the new
    ones.

    Args:
        findings: in the order of reports.
        baseline: what `read_baseline` returned.
        read_lines: returns a file's lines.
        file: the baseline's file.
    """
    root = _root_directory(file)
    # A copy, because each finding uses up one of its key's entries.
    unmatched = collections.Counter(baseline)
    split = BaselineSplit([], [], 0)
    for finding in findings:
        key = finding_key(finding, read_lines, root)
        if unmatched[key] > 0:
            unmatched[key] -= 1
            split.known.append(finding)
        else:
            split.new.append(finding)
    return split._replace(stale=sum(unmatched.values()))


def _root_directory(file: Path) -> Path:
    """The directory that a baseline's paths are relative to."""
    return Path(os.path.abspath(file)).parent  # noqa: PTH100 - symbolic links are not resolved
