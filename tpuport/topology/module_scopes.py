"""Names of the model's modules in the compiled program: each instruction knows the
module whose code it is.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

import jax
import torch

# Marks a module among the names of a traced operation,
# "jit(call)/~layers.0/~attn/linear/dot_general".
_MARK: Final = "~"
_NUMBER: Final = re.compile(r"\.\d+(?=\.|$)")


@contextlib.contextmanager
def module_scopes(model: torch.nn.Module) -> Iterator[None]:
    """Mark what the model's modules compute while they are traced inside."""
    names = {module: name for name, module in model.named_modules() if name}
    # The modules whose forward runs, outermost first.
    running: list[tuple[str, Any]] = []

    def enter(module: torch.nn.Module, arguments: Any) -> None:
        outer = running[-1][0] if running else ""
        name = names[module]
        scope = jax.named_scope(_MARK + name.removeprefix(f"{outer}."))
        scope.__enter__()
        running.append((name, scope))

    def leave(module: torch.nn.Module, arguments: Any, result: Any) -> None:
        if running:
            running.pop()[1].__exit__(None, None, None)

    with contextlib.ExitStack() as stack:
        for module in names:
            # Around the module's other hooks: scopes that these open are left before
            # this one is.
            before = module.register_forward_pre_hook(enter, prepend=True)
            after = module.register_forward_hook(leave, always_call=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        yield


def star_numbers(path: str) -> str:
    """A module's path with "*" for the numbers of blocks, "layers.*.attn"."""
    return _NUMBER.sub(".*", path)


def module_path(op_name: str) -> str:
    """The path of the module whose code an operation is; empty if there is none.

    Args:
        op_name: the operation's name in the compiled program.
    """
    parts = [
        part.removeprefix(_MARK)
        for part in op_name.split("/")
        if part.startswith(_MARK)
    ]
    return ".".join(_without_repetition(parts))


def _without_repetition(parts: list[str]) -> list[str]:
    """Parts of a path that the compiler has joined with itself, as of a loop and its
    body: each part once.
    """
    for length in range(len(parts) // 2, 0, -1):
        for start in range(len(parts) - 2 * length + 1):
            middle = start + length
            if parts[start:middle] == parts[middle : middle + length]:
                return _without_repetition(parts[:start] + parts[middle:])
    return parts
