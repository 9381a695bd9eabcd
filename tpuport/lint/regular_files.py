"""Reading files that users name: never a device or a pipe, which may have no end, and
never more than fits.
"""

import errno
import stat
from pathlib import Path
from typing import Final

# No source file, baseline or settings file is larger. Parsing takes three hundred times
# the size in memory.
MAX_BYTES: Final = 32_000_000


def read_regular_file(path: Path, most_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a file.

    Args:
        path: symbolic links are followed.
        most_bytes: a larger file is not read.

    Raises:
        OSError: the file cannot be read, is a directory, a device or a pipe, or is too
            large; `strerror` says which.
    """
    # Checked first: opening a pipe waits for somebody to write to it.
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > most_bytes:
        reason = f"it has {status.st_size:,} bytes, more than the {most_bytes:,} that are read"
        raise OSError(errno.EFBIG, reason, str(path))
    return path.read_bytes()


def is_file(path: Path) -> bool:
    """Whether the path is a file that may be looked at; False too for a name too long,
    or in a closed directory.
    """
    try:
        return path.is_file()
    except OSError:
        return False
