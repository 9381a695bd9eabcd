"""Let a torchax that names operators which torch has removed be imported all the same.

Releases of torch take operators and overloads away: 2.13 those of named tensors
(`aten.prod.dim_Dimname`), 2.14 `aten.qr` and `aten.cholesky`. A released torchax still
lists them in tables that it builds while it is imported. No program can call what does
not exist, so an inert placeholder in those tables changes nothing else.
"""

import contextlib
import dataclasses
import dis
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, no_type_check

import torch
from torch._ops import OpOverloadPacket, _OpNamespace

from tpuport.base.plurals import count_noun

_lock = threading.RLock()
_answered: list[str] = []


@dataclasses.dataclass(frozen=True)
class RemovedOperator:
    """Stands in a table for an operator, an overload or a function that the installed
    torch no longer has; it cannot be called.
    """

    name: str

    def __getattr__(self, key: str) -> Any:
        if not names_without_asking(sys._getframe(1)):
            raise AttributeError(f"torch has no {self.name}.{key}")
        return RemovedOperator(f"{self.name}.{key}")


def names_without_asking(frame: FrameType) -> bool:
    """Whether torchax reads an attribute here as one that must exist.

    Where it asks torch what it has, by `hasattr`, `getattr` or inside of a `try`, the
    truth is the answer.
    """
    if frame.f_globals.get("__name__", "").partition(".")[0] != "torchax":
        return False
    code, offset = frame.f_code, frame.f_lasti
    if dis.opname[code.co_code[offset]] not in {"LOAD_ATTR", "LOAD_METHOD"}:
        return False
    return not any(start <= offset < end for start, end in _guarded_ranges(code))


@functools.cache
def _guarded_ranges(code: CodeType) -> tuple[tuple[int, int], ...]:
    """The instructions of code inside of a `try` or a `with`, from and to."""
    entries = dis.Bytecode(code).exception_entries  # pyright: ignore[reportAttributeAccessIssue]
    return tuple((entry.start, entry.end) for entry in entries)


@contextlib.contextmanager
def removed_operators() -> Iterator[None]:
    """Answer what torchax names and torch lacks with a `RemovedOperator` inside the
    block, and only there.

    A torch that still has an operator answers for itself, so with versions that agree
    nothing happens.
    """
    with _lock, contextlib.ExitStack() as restore:
        for owner in (OpOverloadPacket, _OpNamespace, torch):
            original = owner.__getattr__
            restore.callback(setattr, owner, "__getattr__", original)
            owner.__getattr__ = _answering(original)  # type: ignore[method-assign]
        yield


def _answering(original: Callable) -> Callable:
    """In place of the `__getattr__` of a class, or of the module torch, which has no
    `self`.
    """

    # A check of its arguments would be a frame between.
    @no_type_check
    def answer(*arguments: Any) -> Any:
        try:
            return original(*arguments)
        except AttributeError:
            if not names_without_asking(sys._getframe(1)):
                raise
        *owner, key = arguments
        name = f"{_owner_name(*owner)}.{key}"
        if name not in _answered:
            _answered.append(name)
        return RemovedOperator(name)

    return answer


def _owner_name(owner: Any = "torch") -> str:
    return owner.name if isinstance(owner, _OpNamespace) else str(owner)


def active_shims() -> dict[str, str]:
    """The import shims that the installed versions needed in this process: name to
    reason.

    Empty before torchax is imported through tpuport, and with versions that agree by
    themselves.
    """
    if not _answered:
        return {}
    reason = (
        f"torchax names {count_noun(len(_answered), 'operator')} or overloads that torch has removed, "
        f"such as {_answered[0]}"
    )
    return {"removed-operators": reason}
