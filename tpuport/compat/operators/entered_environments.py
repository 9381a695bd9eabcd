"""Whether torchax's environment is entered, for each thread by itself: torchax keeps
one flag for all, which the first thread to leave takes from the others.
"""

import threading
from typing import Any, Final

from tpuport.compat.declarations import Lowering, Method

_thread = threading.local()


def _is_entered(environment: Any) -> bool:
    return getattr(_thread, "is_entered", False)


def _set_entered(environment: Any, value: bool) -> None:
    _thread.is_entered = value


LOWERINGS: Final[tuple[Lowering, ...]] = ()
METHODS: Final = (
    Method(
        "Environment",
        "enabled",
        property(_is_entered, _set_entered),
        "is one flag for all threads",
    ),
)
