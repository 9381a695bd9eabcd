"""Waits for changes of the linted files, by their stamps."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tpuport.lint.configuration import find_settings
from tpuport.lint.paths import discover_files
from tpuport.lint.patterns import Excluder
from tpuport.lint.result_cache import Stamp, file_stamp

_SECONDS_BETWEEN: Final = 0.5


def stamps_of(paths: Sequence[str | Path]) -> Mapping[str, Stamp]:
    """The stamps of the Python files at or below the paths, to be taken before they are
    linted.
    """
    settings = find_settings(paths)
    files = discover_files(paths, Excluder(settings.exclude, settings.root)).files
    return {str(path): file_stamp(str(path)) for path in files}


def wait_for_change(
    paths: Sequence[str | Path],
    before: Mapping[str, Stamp],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when a file was changed, created or removed since the stamps were
    taken.
    """
    while stamps_of(paths) == before:
        sleep(_SECONDS_BETWEEN)
