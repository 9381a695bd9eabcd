"""Orthogonal polynomials, by the recurrence that makes each from the two before it.

torch takes closed forms of Chebyshev's polynomials for high degrees, which agree inside
of their interval.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.operators.declarations import Lowering, on_arrays
from tpuport.compat.operators.promotion import Operand

Recurrence = Callable[[Any, jax.Array, jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Family:
    """Polynomials of one variable by degree; the first is 1.

    Attributes:
        first: of degree 1.
        following: the polynomial of degree k + 1 by k, x, and the polynomials of
            degrees k - 1 and k.
        highest: degree that torch computes in float32; None if any.
    """

    first: Callable[[jax.Array], jax.Array]
    following: Recurrence
    highest: int | None = None

    def __call__(self, x: Operand, n: Operand) -> jax.Array:
        """Traced. Elementwise; 0 for a negative degree, or one that is no number."""
        x = jnp.asarray(x)
        dtype = (
            jnp.promote_types(x.dtype, jnp.float32)
            if x.dtype != jnp.float64
            else x.dtype
        )
        degrees = _whole(n)
        x, degrees = jnp.broadcast_arrays(x.astype(dtype), degrees)

        def step(
            k: Any, pair: tuple[jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            before, present = pair
            following = self.following(k, x, before, present)
            goes_on = k < degrees
            return jnp.where(goes_on, present, before), jnp.where(
                goes_on, following, present
            )

        # A bound that is known makes a loop that can be differentiated.
        is_number = isinstance(n, (int, float))
        highest = _whole_number(n) if is_number else jnp.max(degrees, initial=0)
        _, values = jax.lax.fori_loop(
            1, highest, step, (jnp.ones_like(x), self.first(x))
        )
        if self.highest is not None:
            values = jnp.where(degrees > self.highest, jnp.nan, values)
        return jnp.where(degrees < 0, 0, jnp.where(degrees == 0, 1, values))


def _whole(degrees: Operand) -> jax.Array:
    """Traced. As integers; NaN and infinities are negative, which they become in C, and
    no bound of a loop.
    """
    degrees = jnp.asarray(degrees)
    if jnp.issubdtype(degrees.dtype, jnp.floating):
        degrees = jnp.where(jnp.isfinite(degrees), degrees, -1)
    return degrees.astype(jnp.int32)


def _whole_number(degree: int | float) -> int:
    return int(degree) if math.isfinite(degree) else -1


def _chebyshev(
    first: Callable[[jax.Array], jax.Array], *, is_shifted: bool = False
) -> Family:
    """Chebyshev's four kinds differ in their first polynomial only; the shifted ones
    are over [0, 1].
    """

    def variable(x: jax.Array) -> jax.Array:
        return x + x - 1 if is_shifted else x

    return Family(
        lambda x: first(variable(x)),
        lambda k, x, before, present: 2 * variable(x) * present - before,
    )


_KINDS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "t": lambda x: x,
    "u": lambda x: x + x,
    "v": lambda x: x + x - 1,
    "w": lambda x: x + x + 1,
}
FAMILIES = {
    **{
        f"chebyshev_polynomial_{kind}": _chebyshev(first)
        for kind, first in _KINDS.items()
    },
    **{
        f"shifted_chebyshev_polynomial_{kind}": _chebyshev(first, is_shifted=True)
        for kind, first in _KINDS.items()
    },
    "legendre_polynomial_p": Family(
        lambda x: x, lambda k, x, p, q: ((k + k + 1) * x * q - k * p) / (k + 1)
    ),
    "hermite_polynomial_h": Family(
        lambda x: x + x, lambda k, x, p, q: 2 * x * q - 2 * k * p, 128
    ),
    "hermite_polynomial_he": Family(lambda x: x, lambda k, x, p, q: x * q - k * p, 128),
    "laguerre_polynomial_l": Family(
        lambda x: 1 - x, lambda k, x, p, q: ((k + k + 1 - x) * q - k * p) / (k + 1)
    ),
}

_aten = torch.ops.aten
LOWERINGS = tuple(
    Lowering(
        getattr(getattr(_aten, f"special_{name}"), overload),
        on_arrays(function),
        "lacks some forms",
    )
    for name, family in FAMILIES.items()
    for function in [functools.partial(family)]
    for overload in ("default", "n_scalar", "x_scalar")
)
METHODS = ()
