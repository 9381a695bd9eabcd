"""Names of functions in someone's own code: "package.module:function" or "path/to/file.py:function"."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Final

from tpuport.errors import PortError

NAMED: Final = re.compile(r"(?P<module>.+\.py|[A-Za-z_]\w*(\.\w+)*):(?P<function>[A-Za-z_]\w*)")


def is_code(target: str) -> bool:
    """Whether this names a function, or a file of Python code."""
    return bool(NAMED.fullmatch(target)) or target.endswith(".py")


def check(named: str) -> None:
    """PortError where there is no such file, or no such package or module; nothing of it is run."""
    match = NAMED.fullmatch(named)
    if match is None:
        raise PortError(
            "this names no function", where=named, fix="module:function, or path/to/file.py:function"
        )
    where = match["module"]
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise PortError("there is no such file", where=where, fix="check the path")
    elif not _is_there(where.partition(".")[0]):
        raise PortError(
            f"there is no module {where!r}", where=str(Path.cwd()),
            fix="run where it can be imported, or give path/to/file.py:function",
        )  # fmt: skip


def _is_there(package: str) -> bool:
    """Whether it can be imported from the current directory, as far as that is known without running it."""
    entry = str(Path.cwd())
    sys.path.insert(0, entry)
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # it is imported, and does not say from where
        return True
    finally:
        sys.path.remove(entry)
