"""Indices outside of their dimension in compiled programs: checked on the device, if
the user asks for it.

A program has no values while it is traced, and no error comes from the device. While a
function is traced under `checking`, each index that an operator takes is also looked at
by the program, which tells the host of what is outside, also from inside of loops and
branches. After the call `watched` raises torch's error.

jax's checkify would make an error a result of the program. Its checks have numbers of
their own, so that no two blocks of a model would be alike (`layers.loop_blocks`), and
its rule for shard_map fails inside of loops.
"""

import contextvars
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from tpuport.compat.user_frames import user_line


class Requirement(NamedTuple):
    """What an index has to be, in a line of code.

    Attributes:
        kind: of the error.
        message: of torch, with "{index}" where it shows the index.
        line: of the user's code.
    """

    kind: type[Exception]
    message: str
    line: str


_is_checking: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "checks indices", default=False
)
# By requirement its number in programs: one for a line of a block, however many blocks
# there are.
_numbers: dict[Requirement, int] = {}
# (number of the requirement, index) of the run that `watched` watches.
_failures: list[tuple[int, int]] = []
_run_lock = threading.RLock()


def asked_for_by_environment() -> bool:
    """Whether TPUPORT_CHECK_INDICES asks for checks in every program of this
    process.
    """
    return os.environ.get("TPUPORT_CHECK_INDICES", "").lower() not in (
        "",
        "0",
        "off",
        "false",
    )


def is_checking() -> bool:
    """Whether the program that is traced checks its indices."""
    return _is_checking.get()


@contextmanager
def checking(enabled: bool) -> Iterator[None]:
    """Traced. Let a program that is traced inside of the block check its indices, or
    not.
    """
    token = _is_checking.set(enabled)
    try:
        yield
    finally:
        _is_checking.reset(token)


def require(
    index: jax.Array, is_outside: jax.Array, kind: type[Exception], message: str
) -> None:
    """Traced. Let the program tell of an index with elements outside; nothing, unless
    it checks its indices.

    Args:
        index: of any shape; `is_outside` says of each element whether it is.
        kind, message: of torch's error, with "{index}" where it shows the first such
            element.
    """
    if not is_checking():
        return
    number = _numbers.setdefault(Requirement(kind, message, user_line()), len(_numbers))
    first = jnp.argmax(is_outside.ravel())
    element = index.astype(jnp.int32).ravel()[first]
    io_callback(_note, None, np.int32(number), jnp.any(is_outside), element)


def _note(number: Any, has_failed: Any, element: Any) -> None:
    """On the host, while the program runs. Under jax.vmap the arguments may be
    arrays.
    """
    numbers, failures, elements = np.broadcast_arrays(number, has_failed, element)
    for position in map(tuple, np.argwhere(failures)):
        _failures.append((int(numbers[position]), int(elements[position])))  # noqa: PERF401


@contextmanager
def watched() -> Iterator[None]:
    """Run programs that check their indices, one thread at a time, and raise torch's
    error for the first that failed.

    What ran inside of the block is complete afterwards.

    Raises:
        IndexError, RuntimeError: as torch does for the operator, with the line of the
            code.
    """
    with _run_lock:
        _failures.clear()
        yield
        jax.effects_barrier()
        failures = sorted(_failures)
        _failures.clear()
    if not failures:
        return
    # Numbers are given in the order of the trace, which is that of the code.
    number, element = failures[0]
    kind, message, line = list(_numbers)[number]
    raise kind(f"{message.replace('{index}', str(element))}\n  where: {line}")
