"""Room for the frames of functions that call each other deeply.

CPython 3.11 and later keep the frames of Python functions in pieces of 16 kB. Where a
piece is full, a call maps another one and its return unmaps it again, each time: the
interpreter of the linter, whose calls go up and down by some hundred frames, spent a
twelfth of its time on that. A frame that is larger than a piece gets one of its own,
rounded up to the next power of two, and the calls in it use the rest.
"""

from collections.abc import Callable
from typing import Final, TypeVar

Result = TypeVar("Result")

# In words of 8 bytes: a little over half of a piece of 1 MB.
_WORDS: Final = 70_000


def with_frame_room(run: Callable[[], Result]) -> Result:
    """Call a function with some 450 kB for the frames of what it calls."""
    return run()


with_frame_room.__code__ = with_frame_room.__code__.replace(co_stacksize=_WORDS)
