"""How attention is computed: what the user registered, or what the model that is being
traced asks for.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final

from jax.sharding import Mesh

from tpuport.attention.padding import MODES
from tpuport.errors import PortError

SEQUENCES: Final = ("auto", "gather", "ring", "ulysses")
IMPLEMENTATIONS: Final = ("auto", "flash", "xla")
_CHOICES: Final = {
    "sequence": SEQUENCES,
    "padding": MODES,
    "implementation": IMPLEMENTATIONS,
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of `register`, which describes them."""

    mesh: Mesh | None = None
    sequence: str = "auto"
    padding: str = "exact"
    implementation: str = "auto"
    interpret: bool = False

    def __post_init__(self) -> None:
        # The old name, which would otherwise seem misspelt.
        if self.implementation == "splash":
            raise PortError(
                'implementation="splash" is called "flash" now: it is tpuport\'s kernel, not jax\'s splash attention',
                where='register(implementation="splash")',
                fix='give implementation="flash"',
            )
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise PortError(
                    f"{name} cannot be {value!r}",
                    where=f"register({name}={value!r})",
                    fix=f"give one of {', '.join(map(repr, choices))}",
                )


_lock = threading.RLock()
# (owner, settings) of everything registered; the last entry counts. The tuple is
# replaced as a whole and never changed, so reading it needs no lock.
_registered: tuple[tuple[Any, Settings], ...] = ()
_default: ContextVar[Settings | None] = ContextVar("tpuport_attention", default=None)


def add_settings(owner: Any, settings: Settings) -> None:
    """Let these settings count in every thread until `remove_settings` is called with
    the same owner.
    """
    global _registered
    with _lock:
        _registered = (*_registered, (owner, settings))


def remove_settings(owner: Any) -> bool:
    """Remove what this owner registered, whatever was registered since. False if there
    was nothing.
    """
    global _registered
    with _lock:
        remaining = tuple(entry for entry in _registered if entry[0] is not owner)
        was_registered = len(remaining) < len(_registered)
        _registered = remaining
        return was_registered


def settings_owners() -> list[Any]:
    """The owners of all registered settings, in order."""
    return [owner for owner, _ in _registered]


def registered_settings() -> Settings | None:
    """The settings that the user registered last; a compiled program is specialised to
    them.
    """
    # Read once: another thread may replace the tuple between the check and the access.
    entries = _registered
    if not entries:
        return None
    return entries[-1][1]


@contextlib.contextmanager
def default_settings(mesh: Mesh | None) -> Iterator[None]:
    """Compute attention in this thread with default settings on a mesh, unless the user
    registered others.
    """
    token = _default.set(Settings(mesh=mesh))
    try:
        yield
    finally:
        _default.reset(token)


def current_settings() -> Settings | None:
    """The settings that apply to a call at this point; None if nobody asked for
    tpuport's attention.

    What the user registered comes first. If it has no mesh, it uses the mesh of the
    model that is being traced.
    """
    explicit, default = registered_settings(), _default.get()
    if explicit is None:
        return default
    if explicit.mesh is None and default is not None:
        return dataclasses.replace(explicit, mesh=default.mesh)
    return explicit
