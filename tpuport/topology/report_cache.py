"""A cache of reports on disk, so that a program is compiled once and its report shown
again at once.

A key identifies everything that decides on a report: the program, the compiler, and
tpuport's code.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from tpuport.lint.paths import write_atomically


def directory() -> Path | None:
    """Where reports are, in the user's cache directory; None if
    TPUPORT_COMPILATION_CACHE is "off".
    """
    match os.environ.get("TPUPORT_COMPILATION_CACHE", ""):
        case "off":
            return None
        case "":
            home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            return home / "tpuport" / "reports"
        case setting:
            return Path(setting) / "reports"


def read(key: str) -> dict[str, Any] | None:
    """The entry for a key; None if there is none, or if it cannot be read."""
    file = _file_of(key)
    if file is None:
        return None
    try:
        entry = json.loads(file.read_text(encoding="utf-8"))
        # The file's name is only part of the key's digest.
        if entry["key"] == key and isinstance(entry["value"], dict):
            return entry["value"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def write(key: str, value: dict[str, Any]) -> None:
    """Store plain values under a key. A directory that cannot be written is not an
    error: the cache only saves time.
    """
    file = _file_of(key)
    if file is None:
        return
    try:
        # Other processes may write the same entry, each a whole file.
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps({"key": key, "value": value}).encode())
    except OSError:
        return


def _file_of(key: str) -> Path | None:
    reports = directory()
    if reports is None:
        return None
    return reports / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
