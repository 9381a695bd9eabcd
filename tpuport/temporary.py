"""Attributes that an object has for as long as a block runs."""

import contextlib
from collections.abc import Iterator
from typing import Any


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
        for name in values:
            namespace.pop(name, None)
        namespace.update(before)
