"""Functions of the host that compiled programs call."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from tpuport.compat.user_frames import user_line
from tpuport.errors import PortError
from tpuport.hardware.generations import assumed_generation

OnHost = Callable[..., list[np.ndarray]]


def require_callback(name: str) -> None:
    """PortError where a program cannot call the host.

    Args:
        name: of what would be computed there.
    """
    if assumed_generation() is not None:
        target = "a program for a described TPU"
    elif jax.process_count() > 1:
        target = "a program of several processes"
    else:
        return
    raise PortError(
        f"{name} is computed on the host, which {target} cannot call",
        where=user_line(),
        fix="compute it outside of the compiled function, or write it with other operators",
    )


def call_host(
    function: OnHost, shapes: Sequence[jax.ShapeDtypeStruct], *trees: Any
) -> list[jax.Array]:
    """Traced or not. What a function of arrays gives: at once where their values are
    known, else by a callback of the program.

    Args:
        function: pure. Equal ones make equal programs.
        shapes: of its results.
        trees: of arrays.
    """
    if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees)):
        return list(map(jnp.asarray, function(*trees)))
    # Only where a program calls the host: jax does not promise to keep it.
    from jax.experimental.buffer_callback import buffer_callback

    options: Any = {"vmap_method": "sequential"}
    return jax.lax.platform_dependent(
        *trees,
        cpu=buffer_callback(_IntoBuffers(function), list(shapes), **options),
        default=functools.partial(jax.pure_callback, function, list(shapes), **options),
    )


@dataclasses.dataclass(frozen=True)
class _IntoBuffers:
    """A function as a program for the CPU calls it.

    A pure callback would wait there for copies of its arguments, which need the threads
    that wait for it.
    """

    function: OnHost

    def __call__(self, context: Any, outputs: list[Any], *trees: Any) -> None:
        """On the host. Write the results into memory of the program."""
        results = self.function(*jax.tree.map(np.asarray, trees))
        for output, result in zip(outputs, results, strict=True):
            if output.shape != result.shape:
                message = f"{result.shape} in a program that expects {output.shape}"
                raise RuntimeError(f"a result of the host has the shape {message}")
            np.asarray(output)[...] = result
