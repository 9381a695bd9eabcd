"""What the topics of this package list: replacement lowerings and replacement methods,
each with its reason.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

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


def on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering over torchax tensors from a function of `jax.Array`s; a scalar tensor
    on the host becomes a number.
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


def overloads(name: str) -> list[Any]:
    """An operator of aten, and each of its overloads: torchax's own entry for one would
    come first.
    """
    packet = getattr(torch.ops.aten, name)
    return [packet, *(getattr(packet, overload) for overload in packet.overloads())]
