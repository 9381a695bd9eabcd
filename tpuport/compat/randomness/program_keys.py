"""The keys of a program's draws as its argument, and the loops of jax in which a draw
would be repeated.
"""

import sys
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import jax
from jax.extend.core import get_opaque_trace_state

from tpuport.compat.user_frames import stack_depth, user_line
from tpuport.errors import PortError

# A generator as a program knows it: None for torch's default one, the number of a
# generator among the arguments of the call, or a weak reference to any other.
Source = int | weakref.ref | None


@jax.tree_util.register_pytree_node_class
class ProgramKeys:
    """The keys of a program's draws: for each source [N, 2] words, for N draws."""

    def __init__(self, sources: Sequence[Source], arrays: Sequence[Any]) -> None:
        self.sources = tuple(sources)
        self.arrays = tuple(arrays)

    def tree_flatten(self) -> tuple[tuple[Any, ...], Hashable]:
        """The arrays, and what a program is made for."""
        return self.arrays, self.sources

    @classmethod
    def tree_unflatten(cls, sources: Any, arrays: Any) -> "ProgramKeys":
        """The opposite of `tree_flatten`."""
        return cls(sources, arrays)

    def by_source(self) -> dict[Source, Any]:
        """The array of each source."""
        return dict(zip(self.sources, self.arrays, strict=True))


class LoopGuard:
    """Where a stream begins: the trace, and the depth of Python's stack."""

    def __init__(self) -> None:
        self._trace = get_opaque_trace_state()
        self._depth = stack_depth()

    def check_loops(self) -> None:
        """Raise an error if the current line is in a loop of jax's, entered since, that
        would repeat a draw.
        """
        if get_opaque_trace_state() == self._trace:
            return
        frame: Any = sys._getframe()
        for _ in range(stack_depth() - self._depth):
            if frame.f_code.co_filename.endswith("control_flow/loops.py"):
                raise PortError(
                    "a random number is drawn inside of a jax.lax loop, and would be the same in each iteration",
                    where=user_line(),
                    fix="draw all numbers before the loop, or loop in Python",
                )
            frame = frame.f_back
