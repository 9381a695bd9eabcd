"""What a check is doing, for whoever wants to show it."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Final

# Takes what is being done, in a few words.
Listener = Callable[[str], None]


class _Activity:
    """What is being done now, and who is told."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.stage = ""


_activity: Final[contextvars.ContextVar[_Activity | None]] = contextvars.ContextVar(
    "activity of a check", default=None
)


@contextlib.contextmanager
def told_to(listener: Listener) -> Iterator[None]:
    """Tell a listener what a check inside of the block is doing, several thousand times
    a second it may be.
    """
    token = _activity.set(_Activity(listener))
    try:
        yield
    finally:
        _activity.reset(token)


def enter_stage(description: str) -> None:
    """A stage begins."""
    activity = _activity.get()
    if activity is not None:
        activity.stage = description
        activity.listener(description)


def tell(what: str, module: str = "") -> None:
    """Something is done in the stage, with a module of the model."""
    activity = _activity.get()
    if activity is not None:
        subject = f" {module}" if module else ""
        activity.listener(f"{activity.stage}: {what}{subject}")
