"""Results of earlier runs on disk, each valid while neither its file nor anything it
depends on has changed.

A cache is a directory of JSON files. A run reads those for the directories that it
lints, and replaces each that changed in one step: of two simultaneous runs the later
one's entries stay, and no file is ever half written. A file that cannot be read, or
that another version wrote, counts as empty.

An entry refers to stamps and texts by their indices in tables that all entries of a
file share. Beside the entries are the fixes that are possible at each finding, valid as
long as the file's text is the same.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import operator
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tpuport.lint.configuration import Settings
from tpuport.lint.entry_verdicts import Stop, TracedEntry
from tpuport.lint.findings import FIELD_NAMES, Applicability, Finding, Severity
from tpuport.lint.modules import search_directories
from tpuport.lint.suppressions import Suppressions
from tpuport.lint.workers import FileResult
from tpuport.version import __version__

_log = logging.getLogger("tpuport")

_FORMAT: Final = 5
# Number of JSON files; linted files of one directory share one.
_BUCKETS: Final = 16
# Caches of this many different settings, and of this many projects, stay on disk.
_MAX_VARIANTS: Final = 6
_MAX_PROJECTS: Final = 40
# A file written less than this before it was read may change again without a change of
# its time stamp.
_SETTLED_NS: Final = 50_000_000


class Stamp(NamedTuple):
    """What tells one state of a file from another."""

    time_ns: int
    size: int


_MISSING: Final = Stamp(-1, -1)


def cache_directory_for(root: Path) -> Path:
    """The cache of the files below `root`'s project, in the user's cache directory:
    nothing is written beside them.
    """
    project = next(
        (
            parent
            for parent in (root, *root.parents)
            if (parent / "pyproject.toml").is_file()
        ),
        root,
    )
    digest = hashlib.blake2b(
        str(project).encode(errors="surrogateescape"), digest_size=6
    ).hexdigest()
    return user_cache_directory() / "lint" / f"{project.name}-{digest}"


def user_cache_directory() -> Path:
    """tpuport's part of the platform's cache directory; `TPUPORT_CACHE_DIR` names
    another one.
    """
    if chosen := os.environ.get("TPUPORT_CACHE_DIR"):
        return Path(chosen)
    home = os.path.expanduser("~")  # noqa: PTH111 - raises nothing without a home
    if sys.platform == "win32":
        return (
            Path(os.environ.get("LOCALAPPDATA") or f"{home}/AppData/Local")
            / "tpuport"
            / "Cache"
        )
    if sys.platform == "darwin":
        return Path(home) / "Library" / "Caches" / "tpuport"
    return Path(os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache") / "tpuport"


@functools.cache
def _linter_digest() -> str:
    """A digest of the linter's own files: another linter may find something else.

    Of their text, since all files of a wheel may have the same time.
    """
    digest = hashlib.blake2b(
        f"{__version__} {sys.version} {_FORMAT}".encode(), digest_size=16
    )
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)} {path.stat().st_size} ".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def file_stamp(path: str) -> Stamp:
    """A file's stamp; that of a missing file is (-1, -1)."""
    try:
        info = os.stat(path)  # noqa: PTH116 - runs thousands of times
    except (OSError, ValueError):
        return _MISSING
    return Stamp(info.st_mtime_ns, info.st_size)


class Cache:
    """Results by file, of runs with the same settings."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        # The other settings choose among findings, and need no results of their own.
        decisive = (
            settings.entry_points,
            settings.torchax,
            settings.training,
            settings.patched,
        )
        # The code of the packages that are found there is followed.
        key = (*decisive, search_directories(), _linter_digest())
        self._top_directory = directory
        self._directory = (
            directory / hashlib.blake2b(repr(key).encode(), digest_size=8).hexdigest()
        )
        self._file_stamp = functools.cache(file_stamp)
        self._buckets: dict[int, dict[str, Any]] = {}
        self._changed_buckets: set[int] = set()
        self._started_ns = time.time_ns()

    def get(self, paths: Iterable[str]) -> dict[str, FileResult]:
        """The results that are still valid."""
        results: dict[str, FileResult] = {}
        for path in paths:
            bucket = self._bucket(path)
            entry = bucket["files"].get(path)
            if entry is None or not self._is_valid(entry, bucket):
                continue
            # An entry that cannot be decoded is analysed again, like a missing one.
            with contextlib.suppress(IndexError, KeyError, TypeError, ValueError):
                results[path] = _decode_result(path, entry, bucket)
        return results

    def put(self, results: Sequence[FileResult]) -> None:
        """Take up new results; `save` writes them."""
        for result in results:
            stamps = [
                (path, *self._file_stamp(path))
                for path in (result.path, *result.dependencies)
            ]
            latest_ns = max(time_ns for _, time_ns, _ in stamps)
            # What failed may succeed next time, with more memory for instance.
            if result.failed or latest_ns > self._started_ns - _SETTLED_NS:
                continue
            bucket = self._bucket(result.path)
            bucket["files"][result.path] = _encode_result(result, stamps, bucket)
            self._changed_buckets.add(_bucket_number(result.path))

    def get_fixes(
        self, path: str, text: str, findings: Sequence[Finding]
    ) -> list[Applicability] | None:
        """What `put_fixes` stored about these findings of a text; None unless it stored
        something about all.
        """
        digest, fixes = self._bucket(path)["fixes"].get(path, ("", {}))
        if digest != _text_digest(text):
            return None
        # Damaged entries count as missing.
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            return [
                Applicability(fixes[_finding_digest(finding)]) for finding in findings
            ]
        return None

    def put_fixes(
        self,
        path: str,
        text: str,
        findings: Sequence[Finding],
        fixes: Sequence[Applicability],
    ) -> None:
        """Take up what can be done about each finding with the text at its position;
        `save` writes it.
        """
        digest = _text_digest(text)
        stored = self._bucket(path)["fixes"]
        # Runs with another selection of rules have asked about other findings of the
        # same text.
        known_digest, known_fixes = stored.get(path, ("", {}))
        merged = dict(known_fixes) if known_digest == digest else {}
        merged.update(zip(map(_finding_digest, findings), fixes, strict=True))
        stored[path] = (digest, merged)
        self._changed_buckets.add(_bucket_number(path))

    def save(self) -> None:
        """Write what changed. If the cache cannot be written, that is logged, and the
        run goes on.
        """
        if not self._changed_buckets:
            return
        try:
            self._prepare_directory()
            for number in self._changed_buckets:
                _write_bucket(
                    self._directory / f"{number}.json",
                    _without_garbage(self._buckets[number]),
                )
            self._changed_buckets.clear()
        except OSError as error:
            _log.info(
                "the lint cache in %s cannot be written: %s", self._top_directory, error
            )

    def _prepare_directory(self) -> None:
        """Create the directory, and remove the caches of settings that have not been
        used for longest.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        ignore_file = self._top_directory / ".gitignore"
        if not ignore_file.exists():
            ignore_file.write_text("*\n")
        variants = [path for path in self._top_directory.iterdir() if path.is_dir()]
        variants.sort(key=lambda path: path.stat().st_mtime)
        for variant in variants[:-_MAX_VARIANTS]:
            for file in variant.glob("*.json"):
                file.unlink(missing_ok=True)
            variant.rmdir()
        os.utime(self._directory)
        if self._top_directory.parent == user_cache_directory() / "lint":
            os.utime(self._top_directory)
            _remove_old_projects(self._top_directory.parent)

    def _is_valid(self, entry: Any, bucket: dict[str, Any]) -> bool:
        """Whether the file of an entry and everything it depends on is unchanged."""
        stamps = (bucket["stamps"][index] for index in entry[0])
        return all(
            self._file_stamp(path) == (time_ns, size) for path, time_ns, size in stamps
        )

    def _bucket(self, path: str) -> dict[str, Any]:
        number = _bucket_number(path)
        if number not in self._buckets:
            self._buckets[number] = _read_bucket(self._directory / f"{number}.json")
        return self._buckets[number]


def _remove_old_projects(directory: Path) -> None:
    """Remove the caches of projects that have not been linted for longest."""
    projects = sorted(
        filter(Path.is_dir, directory.iterdir()), key=lambda path: path.stat().st_mtime
    )
    for project in projects[:-_MAX_PROJECTS]:
        shutil.rmtree(project, ignore_errors=True)


def _bucket_number(path: str) -> int:
    directory = os.path.dirname(path).encode(errors="surrogateescape")  # noqa: PTH120
    return hashlib.blake2b(directory, digest_size=1).digest()[0] % _BUCKETS


def _empty_bucket() -> dict[str, Any]:
    return {"format": _FORMAT, "files": {}, "stamps": [], "texts": [], "fixes": {}}


def _text_digest(text: str) -> str:
    return hashlib.blake2b(
        text.encode(errors="surrogatepass"), digest_size=12
    ).hexdigest()


def _finding_digest(finding: Finding) -> str:
    """Of everything about a finding: whether its code is traced, for instance, decides
    about some fixes.
    """
    return hashlib.blake2b(
        repr(dataclasses.astuple(finding)).encode(errors="surrogatepass"), digest_size=8
    ).hexdigest()


def _read_bucket(file: Path) -> dict[str, Any]:
    with contextlib.suppress(
        OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError
    ):
        bucket = json.loads(file.read_bytes())
        if bucket["format"] == _FORMAT:
            # JSON turns the tuples of stamps into lists, which cannot be keys of a
            # table.
            bucket["stamps"] = list(map(tuple, bucket["stamps"]))
            stamp_count = len(bucket["stamps"])
            files = bucket["files"].items()
            bucket["files"] = {
                path: entry for path, entry in files if _has_stamps(entry, stamp_count)
            }
            bucket["fixes"] = {
                path: (digest, dict(fixes))
                for path, (digest, fixes) in bucket["fixes"].items()
            }
            return bucket
    return _empty_bucket()


def _has_stamps(entry: Any, stamp_count: int) -> bool:
    """Whether an entry's stamps exist; the rest is checked when the entry is
    decoded.
    """
    return all(type(index) is int and 0 <= index < stamp_count for index in entry[0])


def _write_bucket(file: Path, bucket: dict[str, Any]) -> None:
    """Replace a cache file in one step. Unlike a user's file it need not survive a
    power cut.
    """
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.write_text(
            json.dumps(bucket, separators=(",", ":"), ensure_ascii=True)
        )
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


# Keys of a bucket that exist in memory only.
_INDEX_SUFFIX: Final = " by value"


class _Table:
    """A list of values that entries refer to by index."""

    def __init__(self, bucket: dict[str, Any], name: str) -> None:
        self._values: list[Any] = bucket[name]
        key = name + _INDEX_SUFFIX
        if key not in bucket:
            bucket[key] = {value: index for index, value in enumerate(self._values)}
        self._indices: dict[Any, int] = bucket[key]

    def index(self, value: Any) -> int:
        """The value's index; an unknown value is added."""
        index = self._indices.setdefault(value, len(self._values))
        if index == len(self._values):
            self._values.append(value)
        return index


def _encode_result(
    result: FileResult, stamps: Sequence[Any], bucket: dict[str, Any]
) -> list[Any]:
    stamp_table = _Table(bucket, "stamps")
    texts = _Table(bucket, "texts")
    traced: dict[str, list[int]] = {}
    for function in sorted(result.traced):
        path, _, name = function.rpartition(":")
        traced.setdefault(path, []).append(texts.index(name))
    return [
        list(map(stamp_table.index, stamps)),
        result.lines,
        [_encode_finding(finding, texts) for finding in result.findings],
        result.entry_points,
        [[texts.index(path), names] for path, names in traced.items()],
        result.suppressions.to_json(),
        [
            [
                texts.index(entry.name),
                entry.line,
                [list(map(texts.index, stop)) for stop in entry.stops],
            ]
            for entry in result.entries
        ],
    ]


def _encode_finding(finding: Finding, texts: _Table) -> list[Any]:
    """The fields in order, each text as its index."""
    return [_encode_field(getattr(finding, name), texts) for name in FIELD_NAMES]


def _encode_field(value: Any, texts: _Table) -> Any:
    match value:
        # Severities and kinds of fixes are strings too.
        case str():
            return texts.index(value)
        case tuple():
            return list(map(texts.index, value))
        case _:
            return value


def _decode_result(path: str, entry: list[Any], bucket: dict[str, Any]) -> FileResult:
    stamps, lines, findings, entry_points, traced, comments, entries = entry
    texts = bucket["texts"]
    functions: list[str] = []
    for file, names in traced:
        functions += [f"{texts[file]}:{texts[name]}" for name in names]
    return FileResult(
        path=path,
        # `index` raises TypeError for anything but an integer, as damage in the other
        # fields does.
        lines=operator.index(lines),
        findings=tuple(_decode_finding(values, texts) for values in findings),
        dependencies=tuple(bucket["stamps"][index][0] for index in stamps[1:]),
        entry_points=operator.index(entry_points),
        traced=frozenset(functions),
        suppressions=Suppressions.from_json(comments),
        entries=tuple(
            TracedEntry(
                texts[name],
                line,
                tuple(Stop(texts[key], texts[calls]) for key, calls in stops),
            )
            for name, line, stops in entries
        ),
    )


def _decode_finding(values: list[Any], texts: list[str]) -> Finding:
    fields = dict(zip(FIELD_NAMES, values, strict=True))
    for name in ("path", "rule", "reason", "remedy", "function", "scenario"):
        fields[name] = texts[fields[name]]
    fields["severity"] = Severity(texts[fields["severity"]])
    fields["fix"] = Applicability(texts[fields["fix"]])
    fields["route"] = tuple(texts[index] for index in fields["route"])
    return Finding(**fields)


def _without_garbage(bucket: dict[str, Any]) -> dict[str, Any]:
    """The bucket to write: without files that no longer exist, and without stamps and
    texts that only they used.
    """
    compact = _empty_bucket()
    for path, entry in bucket["files"].items():
        if file_stamp(path) == _MISSING:
            continue
        with contextlib.suppress(IndexError, KeyError, TypeError, ValueError):
            stamps = [bucket["stamps"][index] for index in entry[0]]
            compact["files"][path] = _encode_result(
                _decode_result(path, entry, bucket), stamps, compact
            )
    # An entry may be missing because its file has just been written; its text is what
    # it is.
    compact["fixes"] = {
        path: fixes
        for path, fixes in bucket["fixes"].items()
        if file_stamp(path) != _MISSING
    }
    return {
        name: value
        for name, value in compact.items()
        if not name.endswith(_INDEX_SUFFIX)
    }
