"""What the topics of this package list: replacement lowerings and replacement methods,
each with its reason; and a call on its way to a lowering.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tpuport.internals.mechanism import Mechanism


@dataclasses.dataclass(frozen=True)
class Lowering:
    """One replacement in torchax's operator table.

    Args:
        target: the torch function, operator or overload.
        function: takes and returns torchax tensors (see `on_arrays` for one written
            over arrays).
        reason: what torchax does wrong without it.
    """

    target: Any
    function: Callable[..., Any]
    reason: str


@dataclasses.dataclass(frozen=True)
class Method:
    """One replacement method on torchax's `Tensor` or `Environment` class, or in its
    "device_module".

    Some are of torch: names in its modules ("torch.utils"), and of its "Distribution"
    and "VonMises".

    Args:
        mechanism: what the replacement is of, if torchax may stop to call the method.
    """

    owner: str
    name: str
    function: Any
    reason: str
    mechanism: Mechanism | None = None


class Call:
    """A call of a function or an operator of torch. What happens before it runs may
    change it.

    Attributes:
        environment: torchax's.
        function: of torch, or an overload of an operator.
        args, kwargs: its arguments.
    """

    __slots__ = ("args", "environment", "function", "kwargs")

    def __init__(
        self, environment: Any, function: Any, args: tuple, kwargs: dict[str, Any]
    ) -> None:
        self.environment = environment
        self.function = function
        self.args = args
        self.kwargs = kwargs


class Answer(NamedTuple):
    """The result of a call that needs no lowering."""

    value: Any


def on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering over torchax tensors from a function of `jax.Array`s; a scalar tensor
    on the host becomes a number.

    torchax's table has the function of arrays itself (`function_of_arrays`).
    """

    @functools.wraps(function)
    def lowering(*args: Any, **kwargs: Any) -> Any:
        # Imported here: the versions have to be checked before. A lowering runs only in
        # its environment.
        import torchax

        env = torchax.default_env()
        args, kwargs = env.t2j_iso((args, kwargs))
        return env.j2t_iso(function(*args, **kwargs))

    return lowering


_CODE_ON_ARRAYS = on_arrays(abs).__code__


def function_of_arrays(lowering: Callable[..., Any]) -> Callable[..., Any] | None:
    """What `on_arrays` made a lowering of; None for other lowerings."""
    # By its code: functions around a lowering have its attributes, too.
    is_on_arrays = getattr(lowering, "__code__", None) is _CODE_ON_ARRAYS
    return lowering.__wrapped__ if is_on_arrays else None  # type: ignore[attr-defined]


def overloads(name: str) -> list[Any]:
    """An operator of aten, and each of its overloads: torchax's own entry for one would
    come first.
    """
    packet = getattr(torch.ops.aten, name)
    return [packet, *(getattr(packet, overload) for overload in packet.overloads())]
