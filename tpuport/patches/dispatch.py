"""What stands at a patched name: a function that asks, in each call, whether the replacement is to serve it."""

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tpuport import compat
from tpuport.errors import PortError
from tpuport.patches.patch import Patch


class Switch:
    """One patch in force, or no longer: whatever still holds its wrapper is the original's caller again."""

    def __init__(self, patch: Patch, original: Callable[..., Any]) -> None:
        self.patch, self.original = patch, original
        self.active = False
        self._replacement: Callable[..., Any] | None = None
        self.wrapper = self._wrapper()

    def replacement(self) -> Callable[..., Any]:
        """The function that stands in, imported now where it has not been.

        Raises:
            PortError: there is none, or its module does not import.
        """
        if self._replacement is None:
            self._replacement = _imported(self.patch)
        return self._replacement

    def prepare(self) -> None:
        """Import the replacement, unless its module is just being imported (it may import the target itself)."""
        name = self.patch.replacement.partition(":")[0]
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if not getattr(spec, "_initializing", False):
            self.replacement()

    def _wrapper(self) -> Callable[..., Any]:
        original, always = self.original, self.patch.when == "always"

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            if self.active and (always or _any_ported(args, kwargs)):
                return self.replacement()(*args, **kwargs)
            return original(*args, **kwargs)

        return patched


def _imported(patch: Patch) -> Callable[..., Any]:
    module, _, name = patch.replacement.partition(":")
    value: Any
    try:
        value = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise PortError(
            f"the replacement of patch {patch.name!r} is not there: {error}", where=patch.replacement
        ) from error
    return value


def _any_ported(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    if "torchax.tensor" not in sys.modules:
        return False  # nothing can be, and torch need not be imported to know
    return any(_ported(value) for value in args) or any(_ported(value) for value in kwargs.values())


def _ported(value: Any, depth: int = 1) -> bool:
    """Whether a tensor, a module's first weight, or one of a list, tuple or dict of such, is on the device."""
    if compat.is_ported(value):
        return True
    if isinstance(value, sys.modules["torch"].nn.Module):
        first = next(value.parameters(), None)
        return compat.is_ported(next(value.buffers(), None) if first is None else first)
    if depth and isinstance(value, dict):
        return any(_ported(item, depth - 1) for item in value.values())
    return bool(depth) and isinstance(value, (list, tuple)) and any(_ported(v, depth - 1) for v in value)
