"""Whether torchax's environment is entered, for each thread by itself: torchax keeps
one flag for all, which the first block to end takes from other threads and from the
blocks around it.
"""

import threading
import weakref
from typing import Any, Final

from tpuport.compat.declarations import Lowering, Method

_thread = threading.local()


def _depths() -> weakref.WeakKeyDictionary[Any, int]:
    """How many blocks this thread is in, by environment."""
    if not hasattr(_thread, "depths"):
        _thread.depths = weakref.WeakKeyDictionary()
    return _thread.depths


def _is_entered(environment: Any) -> bool:
    return _depths().get(environment, 0) > 0


def _set_entered(environment: Any, value: bool) -> None:
    """As torchax assigns it: true when a block begins, false when it ends."""
    depth = _depths().get(environment, 0) + (1 if value else -1)
    # A new environment begins with false.
    _depths()[environment] = max(depth, 0)


LOWERINGS: Final[tuple[Lowering, ...]] = ()
METHODS: Final = (
    Method(
        "Environment",
        "enabled",
        property(_is_entered, _set_entered),
        "is one flag for all threads and all blocks",
    ),
)
