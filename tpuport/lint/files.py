"""Writing a file so that a crash or an interruption leaves the old one or the new one whole."""

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file's bytes in one step, keeping its mode; what a symbolic link leads to is written, not the link.

    Raises:
        OSError: the file or its directory cannot be written; the file is as it was.
    """
    target = Path(os.path.realpath(path))
    mode = None
    if target.exists():
        if not os.access(target, os.W_OK):
            raise PermissionError(13, "the file is read-only", str(path))
        mode = target.stat().st_mode & 0o7777
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.chmod(name, mode if mode is not None else 0o666 & ~_umask())  # noqa: PTH101 - mkstemp made it private
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)  # noqa: PTH105 - a name, not a path, came from mkstemp
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
