"""Attributes that an object has, or variables that the environment has, for as long as
a block runs, or until they are restored; garbage that waits for the end of a block.
"""

import contextlib
import gc
import os
from collections.abc import Iterator
from typing import Any, Final

# In place of the attribute of an object that has none of its own.
ABSENT: Final[Any] = object()


@contextlib.contextmanager
def temporary_attributes(owner: Any, **values: Any) -> Iterator[None]:
    """Let an object have these attributes in the block, and afterwards its own again,
    or those of its class.

    Of a `threading.local`, they are those of this thread.
    """
    # Not `setattr`: what a class makes of an assignment could not be undone.
    namespace = vars(owner)
    before = {name: namespace[name] for name in values if name in namespace}
    namespace.update(values)
    try:
        yield
    finally:
        # Those that stay keep their place: code may go through attributes in order.
        for name in values.keys() - before.keys():
            namespace.pop(name, None)
        namespace.update(before)


@contextlib.contextmanager
def temporary_environment(name: str, value: str) -> Iterator[None]:
    """Let a variable of the environment have a value in the block, and afterwards its
    own again: child processes that start later do not have it.
    """
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def restore_attribute(owner: Any, name: str, former: Any) -> None:
    """Give an object back an attribute of its own, or take it away if it was
    `ABSENT`: what it inherits is seen again.
    """
    if former is ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, former)


@contextlib.contextmanager
def garbage_collection_off() -> Iterator[None]:
    """Suspend garbage collection for a block that makes many objects, few of them
    garbage: each collection would look at all that the process has.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
