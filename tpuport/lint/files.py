"""Writing a file so that a crash or an interruption leaves the old one or the new one whole."""

import contextlib
import os
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
    # Named before it is made: an interruption right after making it must still find it.
    temporary = target.with_name(f".{target.name}.{os.urandom(6).hex()}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(temporary, flags, 0o666), "wb") as file:
            if mode is not None:
                temporary.chmod(mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
