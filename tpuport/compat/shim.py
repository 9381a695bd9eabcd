"""Let a torchax that names overloads which torch has removed be imported all the same.

torch dropped its named-tensor overloads (`aten.prod.dim_Dimname` and some twenty more);
torchax 0.0.13 still lists them in tables that it builds while it is imported. No
program can call an overload that does not exist, so an inert placeholder in those
tables changes nothing else.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import torch
from packaging.version import Version
from torch._ops import OpOverloadPacket

from tpuport.compat.versions import checked_versions
from tpuport.plurals import count_noun

_lock = threading.RLock()
_answered: list[str] = []


@dataclasses.dataclass(frozen=True)
class RemovedOverload:
    """Stands in a table for an operator overload that the installed torch no longer
    has; it cannot be called.
    """

    name: str


def is_removed_name(key: str) -> bool:
    """Whether an overload's name marks it as one of the named-tensor overloads."""
    lowered = key.lower()
    return "dimname" in lowered or "names" in lowered


def needed() -> bool:
    """Whether the installed torchax names overloads that the installed torch lacks.

    Later torchax asks torch what it has, and must not be told otherwise.
    """
    torchax = checked_versions()["torchax"]
    old = torchax is not None and Version(torchax) < Version("0.0.14.dev0")
    return old and not hasattr(torch.ops.aten.prod, "dim_Dimname")


@contextlib.contextmanager
def removed_overloads() -> Iterator[None]:
    """Answer each missing named-tensor overload with a `RemovedOverload` inside the
    block, and only there.

    A torch that still has an overload answers for itself, so with versions that agree
    nothing happens.
    """
    with _lock:
        original = OpOverloadPacket.__getattr__

        def answer(packet: OpOverloadPacket, key: str) -> Any:
            try:
                return original(packet, key)
            except AttributeError:
                if not is_removed_name(key):
                    raise
                name = f"{packet}.{key}"
                if name not in _answered:
                    _answered.append(name)
                return RemovedOverload(name)

        OpOverloadPacket.__getattr__ = answer  # type: ignore[method-assign]
        try:
            yield
        finally:
            OpOverloadPacket.__getattr__ = original  # type: ignore[method-assign]


def active_shims() -> dict[str, str]:
    """The import shims that the installed versions needed in this process: name to
    reason.

    Empty before torchax is imported through tpuport, and with versions that agree by
    themselves.
    """
    if not _answered:
        return {}
    reason = f"torchax names {count_noun(len(_answered), 'overload')} that torch has removed, such as {_answered[0]}"
    return {"removed-overloads": reason}
