"""Reports kept by program: what was compiled once is shown again at once.

A key says all that decides on a report: the program, the compiler, and the code that reads what the compiler made.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from tpuport.lint.paths import write_atomically


def directory() -> Path | None:
    """Where reports are kept, in the user's cache directory; None where TPUPORT_COMPILATION_CACHE is "off"."""
    wanted = os.environ.get("TPUPORT_COMPILATION_CACHE", "")
    if wanted == "off":
        return None
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(wanted) if wanted else home / "tpuport") / "reports"


def read(key: str) -> dict[str, Any] | None:
    """What was kept under the key; None where there is nothing, or nothing that can be read."""
    file = _file(key)
    if file is None:
        return None
    try:
        entry = json.loads(file.read_text(encoding="utf-8"))
        return entry["value"] if entry["key"] == key and isinstance(entry["value"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(key: str, value: dict[str, Any]) -> None:
    """Keep plain values under a key. Where the directory cannot be written, nothing is kept."""
    file = _file(key)
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps({"key": key, "value": value}).encode())
    except OSError:
        return


def _file(key: str) -> Path | None:
    home = directory()
    return None if home is None else home / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
