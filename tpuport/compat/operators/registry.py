"""What an operator topic hands over: replacement lowerings and replacement methods, each with its reason."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Lowering:
    """One replacement in torchax's operator table.

    Args:
        target: the torch function, operator or overload it answers for.
        function: takes and returns torchax tensors (see `on_arrays` for one written over arrays).
        reason: what torchax does without it.
        is_view_op: whether it wants views as views, not as the tensors that they show.
    """

    target: Any
    function: Callable[..., Any]
    reason: str
    is_view_op: bool = False


@dataclasses.dataclass(frozen=True)
class Method:
    """One replacement method on torchax's `Tensor`, `View` or `Environment` class."""

    owner: str
    name: str
    function: Callable[..., Any] | classmethod
    reason: str


def on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of `jax.Array`s serve where torchax passes tensors; a scalar tensor of the host is a number."""

    @functools.wraps(function)
    def lowered(*args: Any, **kwargs: Any) -> Any:
        from tpuport.compat.runtime import environment

        env = environment()
        args, kwargs = env.t2j_iso((args, kwargs))
        return env.j2t_iso(function(*args, **kwargs))

    return lowered
