"""What files gave last time, on disk, valid while neither they nor anything they depend on changed.

A cache is a directory of JSON files. A run reads those for the directories that it lints, and replaces each that
changed in one step: of two runs at once the later one's entries stay, and nothing is ever half written. What cannot
be read, or is of another version, counts as empty.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tpuport.lint.findings import Applicability, Finding, Severity
from tpuport.lint.settings import Settings
from tpuport.lint.suppressions import Suppressions
from tpuport.lint.work import FileResult

_log = logging.getLogger("tpuport")

_FORMAT: Final = 1
# Files with the same number share one cache file.
_BUCKETS: Final = 16
_KEPT_VARIANTS: Final = 6
# A file written within so many nanoseconds before it was read may change again without its time changing.
_SETTLED_NS: Final = 50_000_000

Stamp = tuple[int, int]  # modification time in nanoseconds and size; (-1, -1) where there is nothing


def directory_for(root: Path) -> Path:
    """Where the cache of files below `root` is: beside the nearest pyproject.toml, else in the user's cache."""
    for parent in (root, *root.parents):
        if (parent / "pyproject.toml").is_file() and os.access(parent, os.W_OK):
            return parent / ".tpuport_cache" / "lint"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(home) / "tpuport" / "lint"


@functools.cache
def _program() -> str:
    """What the linter's own files are, by times and sizes."""
    import tpuport

    digest = hashlib.blake2b(f"{tpuport.__version__} {sys.version} {_FORMAT}".encode(), digest_size=16)
    for directory, _, names in sorted(os.walk(Path(__file__).parent)):
        for name in sorted(name for name in names if name.endswith(".py")):
            digest.update(f"{directory}/{name} {stamp(os.path.join(directory, name))}".encode())  # noqa: PTH118
    return digest.hexdigest()


def stamp(path: str) -> Stamp:
    """A file's stamp."""
    try:
        info = os.stat(path)  # noqa: PTH116 - called thousands of times
    except (OSError, ValueError):
        return (-1, -1)
    return (info.st_mtime_ns, info.st_size)


class Cache:
    """Results by file, of runs with the same settings."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        key = (settings.entry_points, settings.torchax, settings.training, sys.prefix, _program())
        self._top = directory
        self._directory = directory / hashlib.blake2b(repr(key).encode(), digest_size=8).hexdigest()
        self._stamp = functools.cache(stamp)
        self._buckets: dict[int, dict[str, Any]] = {}
        self._changed: set[int] = set()
        self._started = time.time_ns()

    def get(self, paths: Iterable[str]) -> dict[str, FileResult]:
        """Results that are still valid."""
        found: dict[str, FileResult] = {}
        for path in paths:
            bucket = self._bucket(path)
            entry = bucket["files"].get(path)
            if entry is not None and all(self._unchanged(bucket["stamps"][number]) for number in entry[0]):
                try:
                    found[path] = _decode(path, entry, bucket)
                except (IndexError, KeyError, TypeError, ValueError):
                    continue
        return found

    def put(self, results: Sequence[FileResult]) -> None:
        """Note results; `save` writes them."""
        for result in results:
            stamps = [(path, *self._stamp(path)) for path in (result.path, *result.dependencies)]
            if result.failed or any(time_ns > self._started - _SETTLED_NS for _, time_ns, _ in stamps):
                continue
            bucket = self._bucket(result.path)
            bucket["files"][result.path] = _encode(
                result, stamps, _Table(bucket, "stamps"), _Table(bucket, "texts")
            )
            self._changed.add(_number(result.path))

    def save(self) -> None:
        """Write what changed. A cache that cannot be written is logged, and the run goes on."""
        try:
            if self._changed:
                self._prepare()
            for number in self._changed:
                _replace(self._directory / f"{number}.json", _compact(self._buckets[number]))
        except OSError as error:
            _log.info("the lint cache in %s cannot be written: %s", self._top, error)

    def _prepare(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        ignore = self._top / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
        variants = sorted(
            (one for one in self._top.iterdir() if one.is_dir()), key=lambda one: one.stat().st_mtime
        )
        for old in variants[:-_KEPT_VARIANTS]:
            for file in old.glob("*.json"):
                file.unlink(missing_ok=True)
            old.rmdir()
        os.utime(self._directory)

    def _unchanged(self, stamped: Any) -> bool:
        path, time_ns, size = stamped
        return self._stamp(path) == (time_ns, size)

    def _bucket(self, path: str) -> dict[str, Any]:
        number = _number(path)
        if number not in self._buckets:
            self._buckets[number] = _read(self._directory / f"{number}.json")
        return self._buckets[number]


def _number(path: str) -> int:
    directory = os.path.dirname(path).encode(errors="surrogateescape")  # noqa: PTH120
    return hashlib.blake2b(directory, digest_size=1).digest()[0] % _BUCKETS


def _read(file: Path) -> dict[str, Any]:
    try:
        bucket = json.loads(file.read_bytes())
        if bucket["format"] == _FORMAT and isinstance(bucket["files"], dict):
            bucket["files"] = {
                path: entry for path, entry in bucket["files"].items() if _sound(entry, bucket)
            }
            return bucket
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return {"format": _FORMAT, "files": {}, "stamps": [], "texts": []}


def _sound(entry: Any, bucket: dict[str, Any]) -> bool:
    """Whether an entry's stamps are there; the rest is checked when it is decoded."""
    count = len(bucket["stamps"])
    return all(type(number) is int and 0 <= number < count for number in entry[0])


def _replace(file: Path, bucket: dict[str, Any]) -> None:
    """Replace a cache file in one step; unlike a user's file it need not survive a power cut."""
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(bucket, separators=(",", ":"), ensure_ascii=True))
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


class _Table:
    """Numbers for values that many entries share."""

    def __init__(self, bucket: dict[str, Any], name: str) -> None:
        self.values: list[Any] = bucket[name]
        key = f"{name} by value"
        if key not in bucket:
            bucket[key] = {_hashable(value): number for number, value in enumerate(self.values)}
        self.numbers: dict[Any, int] = bucket[key]

    def number(self, value: Any) -> int:
        known = self.numbers.get(value)
        if known is None:
            known = self.numbers[value] = len(self.values)
            self.values.append(value)
        return known


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Finding))


def _encode(result: FileResult, stamps: Sequence[Any], known: _Table, texts: _Table) -> list[Any]:
    number = texts.number
    findings = [
        [
            number(value)
            if isinstance(value, str)
            else [number(name) for name in value]
            if name == "route"
            else value
            for name, value in ((name, getattr(finding, name)) for name in _FIELDS)
        ]
        for finding in result.findings
    ]
    traced: dict[str, list[int]] = {}
    for place in sorted(result.traced):
        path, _, name = place.rpartition(":")
        traced.setdefault(path, []).append(number(name))
    return [
        [known.number(tuple(stamped)) for stamped in stamps],
        result.lines,
        findings,
        result.entry_points,
        [[number(path), names] for path, names in traced.items()],
        result.suppressions.to_json(),
    ]


def _decode(path: str, entry: list[Any], bucket: dict[str, Any]) -> FileResult:
    stamps, lines, findings, entry_points, traced, comments = entry
    texts = bucket["texts"]
    return FileResult(
        path,
        lines,
        tuple(_finding(values, texts) for values in findings),
        tuple(bucket["stamps"][number][0] for number in stamps[1:]),
        entry_points,
        frozenset(f"{texts[file]}:{texts[name]}" for file, names in traced for name in names),
        Suppressions.from_json(comments),
    )


def _finding(values: list[Any], texts: list[str]) -> Finding:
    path, line, column, end_line, end_column, rule, severity, reason, remedy, function, route, fix, stops = (
        values
    )
    return Finding(
        texts[path], line, column, end_line, end_column, texts[rule], Severity(texts[severity]), texts[reason],
        texts[remedy], texts[function], tuple(texts[name] for name in route), Applicability(texts[fix]), stops,
    )  # fmt: skip


def _compact(bucket: dict[str, Any]) -> dict[str, Any]:
    """A bucket as it is written: without files that are gone, and without what only they used."""
    fresh: dict[str, Any] = {"format": _FORMAT, "files": {}, "stamps": [], "texts": []}
    stamps, texts = _Table(fresh, "stamps"), _Table(fresh, "texts")
    for path, entry in bucket["files"].items():
        stamped = [tuple(bucket["stamps"][number]) for number in entry[0]]
        if stamp(path) != (-1, -1):
            with contextlib.suppress(IndexError, KeyError, TypeError, ValueError):
                fresh["files"][path] = _encode(_decode(path, entry, bucket), stamped, stamps, texts)
    return {name: value for name, value in fresh.items() if not name.endswith("by value")}
