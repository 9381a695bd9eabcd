"""Ctrl-C while jax traces: its caches stay usable.

On a miss, a cache of jax 0.10 (`weakref_lru_cache`) adds an entry, asks a function of
one line whether to explain the miss, and fills the entry. An interrupt within that line
leaves an entry that nobody fills: jax takes every later call for a recursive one, and
raises RecursionError until its caches are cleared.
"""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import PurePath

import jax


@contextlib.contextmanager
def cleared_if_spoiled() -> Iterator[None]:
    """Clear jax's caches if an interrupt of this block has left an entry unfilled; also
    a decorator.

    The interrupt goes through. Programs are compiled again then; after any other
    interrupt they are not.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        clear_if_spoiled(interrupt)
        raise


def clear_if_spoiled(interrupt: KeyboardInterrupt) -> None:
    """As `cleared_if_spoiled`, for an interrupt that was caught."""
    if _has_spoiled_cache(interrupt):
        jax.clear_caches()


def _has_spoiled_cache(interrupt: KeyboardInterrupt) -> bool:
    error: BaseException | None = interrupt
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            code = frame.f_code
            if code.co_name == "<lambda>" and PurePath(code.co_filename).parts[-3:] == (
                "jax",
                "_src",
                "util.py",
            ):
                return True
        # tpuport and jax raise errors of their own from an interrupt.
        error = error.__cause__
    return False
