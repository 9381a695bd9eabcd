"""Operations on the device that are not run one by one.

In a block of `deferring` each operator is given to somebody who collects operators and
runs them as one program. Whoever reads an array that is not there yet lets them run.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from tpuport.compat.declarations import Answer, Call


class Collector(Protocol):
    """Who collects operators."""

    def collect(self, call: Call) -> Answer | None:
        """What an operator returns that will run later; None if it has to run now."""


class _Thread(threading.local):
    collector: Collector | None = None


_thread = _Thread()


def collector() -> Collector | None:
    """Who collects the operators of this thread now."""
    return _thread.collector


@contextlib.contextmanager
def deferring(collector: Collector | None) -> Iterator[None]:
    """Let operators in the block be collected; None lets them run."""
    former = _thread.collector
    _thread.collector = collector
    try:
        yield
    finally:
        _thread.collector = former


class TracedFloat:
    """What a `torch.SymFloat` stands for: a number that is an argument of a program.

    torch hands it through its own code in place of a float.

    Args:
        array: of no dimensions, traced.
    """

    def __init__(self, array: Any) -> None:
        self.array = array

    def is_float(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return True

    def _no(self) -> bool:
        return False

    def _none(self) -> None:
        return None

    is_int = is_bool = is_constant = is_nested_int = has_hint = _no
    maybe_as_int = maybe_as_float = maybe_as_bool = _none
    constant_int = constant_float = constant_bool = nested_int = singleton_int = _none

    def _graph_repr(self) -> str:
        return "a number"

    str = _graph_repr

    def clone(self) -> "TracedFloat":
        return self

    @classmethod
    def of(cls, array: Any) -> torch.SymFloat:
        """The number that torch takes."""
        return torch.SymFloat(cls(array))


def is_traced_float(value: Any) -> bool:
    """Whether a value is a number of `TracedFloat.of`."""
    return type(value) is torch.SymFloat and type(value.node) is TracedFloat


def array_of_float(value: Any) -> Any:
    """The array of such a number; any other value as it is."""
    return value.node.array if is_traced_float(value) else value
