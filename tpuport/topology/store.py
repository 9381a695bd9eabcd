"""Reports kept by program: what was compiled once is shown again at once."""

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

from tpuport.lint.files import write_atomically

_PACKAGE: Final = Path(__file__).parents[1]


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
    """Named by the key, and by the code that makes reports: another release's reports are not shown."""
    home = directory()
    if home is None:
        return None
    digest = hashlib.sha256(json.dumps([key, _code()]).encode()).hexdigest()[:32]
    return home / f"{digest}.json"


@functools.cache
def _code() -> str:
    digest = hashlib.sha256()
    for file in sorted((_PACKAGE / "topology").rglob("*.py")):
        digest.update(file.relative_to(_PACKAGE).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
