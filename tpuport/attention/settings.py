"""How attention is computed: what the user registered, or what the model that is being traced asks for."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from jax.sharding import Mesh

from tpuport.attention.padding import MODES
from tpuport.errors import PortError

SEQUENCES = ("gather", "ring", "ulysses")
IMPLEMENTATIONS = ("auto", "splash", "xla")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of `register`, which describes them."""

    mesh: Mesh | None = None
    sequence: str = "gather"
    padding: str = "exact"
    implementation: str = "auto"
    interpret: bool = False

    def __post_init__(self) -> None:
        known = {"sequence": SEQUENCES, "padding": MODES, "implementation": IMPLEMENTATIONS}
        for name, choices in known.items():
            if (value := getattr(self, name)) not in choices:
                raise PortError(
                    f"{name} cannot be {value!r}",
                    where=f"register({name}={value!r})",
                    fix=f"give one of {', '.join(map(repr, choices))}",
                )


_lock = threading.RLock()
# Replaced as a whole, never changed, so that reading it needs no lock. The last entry counts.
_chosen: tuple[tuple[Any, Settings], ...] = ()
_automatic: ContextVar[Settings | None] = ContextVar("tpuport_attention", default=None)


def choose(owner: Any, settings: Settings) -> None:
    """Let these settings count for every thread, until `withdraw` is called with the same owner."""
    global _chosen
    with _lock:
        _chosen = (*_chosen, (owner, settings))


def withdraw(owner: Any) -> bool:
    """Take back what this owner chose, whatever has been chosen since; whether there was anything."""
    global _chosen
    with _lock:
        kept = tuple(entry for entry in _chosen if entry[0] is not owner)
        found = len(kept) < len(_chosen)
        _chosen = kept
        return found


def owners() -> list[Any]:
    """Whoever has chosen settings that are in force, in order."""
    return [owner for owner, _ in _chosen]


def chosen() -> Settings | None:
    """The settings that the user registered last; a compiled program is made for them."""
    entries = _chosen
    return entries[-1][1] if entries else None


@contextlib.contextmanager
def automatic(mesh: Mesh | None) -> Iterator[None]:
    """Let attention in this thread run with default settings on a mesh, where the user has not chosen any."""
    token = _automatic.set(Settings(mesh=mesh))
    try:
        yield
    finally:
        _automatic.reset(token)


def current() -> Settings | None:
    """The settings of a call that is made now; None where nobody has asked for tpuport's attention.

    What the user chose comes first. Without a mesh of its own it takes that of the model that is being traced.
    """
    explicit, ours = chosen(), _automatic.get()
    if explicit is None:
        return ours
    if explicit.mesh is None and ours is not None:
        return dataclasses.replace(explicit, mesh=ours.mesh)
    return explicit
