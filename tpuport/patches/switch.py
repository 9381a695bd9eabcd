"""The function bound to a patched name: it decides in each call whether the replacement
or the original runs.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tpuport import compat
from tpuport.errors import PortError
from tpuport.patches.patch import Patch

Preparation = Callable[
    [Any, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]
]

_Replacement = TypeVar("_Replacement", bound=Callable[..., Any])
_WITH_ORIGINAL = "tpuport_with_original"

_preparations: dict[str, list[Preparation]] = {}


class Switch:
    """One patch. While it is not active, its wrapper only calls the original."""

    def __init__(self, patch: Patch, original: Callable[..., Any]) -> None:
        self.patch = patch
        self.original = original
        self.active = False
        # Imported on first use, because it may import the module of the target.
        self._replacement: Callable[..., Any] | None = None
        self.wrapper = self._wrapper()

    def replacement(self) -> Callable[..., Any]:
        """The replacing function, imported on first use.

        Raises:
            PortError: there is none, or its module cannot be imported.
        """
        if self._replacement is None:
            self._replacement = _import_replacement(self.patch)
        return self._replacement

    def prepare(self) -> None:
        """Import the replacement, unless its module is being imported now (it may
        import the target itself).
        """
        name = self.patch.replacement.partition(":")[0]
        if not is_being_imported(sys.modules.get(name)):
            self.replacement()

    def _wrapper(self) -> Callable[..., Any]:
        original = self.original
        always = self.patch.when == "always"

        # inspect.signature must still show the original arguments: transformers reads
        # them.
        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            if (
                self.active
                and not _is_compiling()
                and (always or _any_ported([*args, *kwargs.values()]))
            ):
                replacement = self.replacement()
                if getattr(replacement, _WITH_ORIGINAL, False):
                    return replacement(original, *args, **kwargs)
                return replacement(*args, **kwargs)
            return original(*args, **kwargs)

        return patched


def with_original(function: _Replacement) -> _Replacement:
    """Let a replacement receive the function that it replaces as its first argument,
    before the arguments of the call.
    """
    setattr(function, _WITH_ORIGINAL, True)
    return function


def is_being_imported(module: Any) -> bool:
    """Whether a module of `sys.modules` has not run to its end yet."""
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def _import_replacement(patch: Patch) -> Callable[..., Any]:
    module, _, name = patch.replacement.partition(":")
    value: Any
    try:
        value = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise PortError(
            f"the replacement of patch {patch.name!r} cannot be imported: {error}",
            where=patch.replacement,
        ) from error
    return value


def _is_compiling() -> bool:
    """Whether torch.compile reads the call: of tensors on the host, and it cannot read
    what decides here.
    """
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def _any_ported(values: Iterable[Any]) -> bool:
    if "torchax.tensor" not in sys.modules:
        return False  # no tensor can be on the device; torch need not be imported to know that
    return any(map(_is_ported, values))


def _is_ported(value: Any, depth: int = 1) -> bool:
    """Whether a tensor, a module's first weight, or an item of a list, tuple or dict of
    those, is on the device.
    """
    if compat.is_ported(value):
        return True
    if isinstance(value, sys.modules["torch"].nn.Module):
        first = next(value.parameters(), None)
        if first is None:
            first = next(value.buffers(), None)
        return compat.is_ported(first)
    # Searching deeper would cost time in every call.
    if depth == 0:
        return False
    if isinstance(value, dict):
        value = tuple(value.values())
    return isinstance(value, (list, tuple)) and any(
        _is_ported(item, depth - 1) for item in value
    )


def before_tracing(target: str) -> Callable[[Preparation], Preparation]:
    """Let a function see, and change, the arguments of a module's calls before they are
    traced: (module, args, kwargs).

    It runs on the values of each call while a patch of the class is in force, and
    returns args and kwargs. It belongs in the module that holds the replacement:

        @before_tracing("package.models:Model")
        def without_empty_images(module, args, kwargs):
            ...
            return args, kwargs

    Args:
        target: "module:qualified.name" of the class; classes that inherit from it are
            served as well.
    """

    def register(function: Preparation) -> Preparation:
        # The same function again means that its module was reloaded: the new one takes
        # its turn last.
        others = [
            other for other in preparations(target) if _name(other) != _name(function)
        ]
        _preparations[target] = [*others, function]
        return function

    return register


def _name(function: Preparation) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def preparations(target: str) -> list[Preparation]:
    """The functions that `before_tracing` registered for a class, in order."""
    return list(_preparations.get(target, ()))
