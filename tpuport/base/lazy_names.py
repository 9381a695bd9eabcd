"""Names of a package that are imported when they are first asked for."""

import importlib
import sys
from collections.abc import Mapping
from typing import Any


def lazy_name(package: str, modules: Mapping[str, str], name: str) -> Any:
    """What a package's `__getattr__` gives for a name.

    Args:
        package: its `__name__`.
        modules: by the names that it has, the modules below it that define them.

    Raises:
        AttributeError: it has no such name.
    """
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
    # Python does not ask again then.
    setattr(sys.modules[package], name, value)
    return value
