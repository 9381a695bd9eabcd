"""`logaddexp` and `logcumsumexp`, also of complex numbers, whose angles go on beyond pi
as torch's do.
"""

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.operators.complex_functions import FUNCTIONS
from tpuport.compat.operators.declarations import Lowering, on_arrays


def logaddexp(x: jax.Array, y: jax.Array) -> jax.Array:
    """Traced. `log(exp(x) + exp(y))`."""
    if not (jnp.iscomplexobj(x) or jnp.iscomplexobj(y)):
        return jnp.logaddexp(x, y)
    dtype = jnp.promote_types(x.dtype, y.dtype)
    return _add(*jnp.broadcast_arrays(x.astype(dtype), y.astype(dtype)))


def _add(x: jax.Array, y: jax.Array) -> jax.Array:
    """torch's formula for complex numbers."""
    exp, log = FUNCTIONS["exp"], FUNCTIONS["log"]
    is_first_smaller = x.real < y.real
    smaller, larger = (
        jnp.where(is_first_smaller, x, y),
        jnp.where(is_first_smaller, y, x),
    )
    is_infinite = ~jnp.isfinite(smaller.real) & (smaller.real == larger.real)
    finite = larger + jnp.log1p(exp(jnp.where(is_infinite, 0, smaller - larger)))
    # Of -inf the angle is lost anyway.
    both_infinite = jnp.where(
        smaller.real < 0, smaller, log(exp(smaller) + exp(larger))
    )
    total = jnp.where(is_infinite, both_infinite, finite)
    return jnp.where(jnp.isnan(x) | jnp.isnan(y), jnp.nan * (1 + 1j), total)


def logcumsumexp(x: jax.Array, dim: int) -> jax.Array:
    """Traced. The logarithm of the running sum of exponentials along a dimension."""
    if x.ndim == 0 or not x.size:
        return x
    if not jnp.iscomplexobj(x):
        return jax.lax.cumlogsumexp(x, axis=dim % x.ndim)
    rows = jnp.moveaxis(x, dim, 0)

    # In torch's order, on which it depends how often an angle has gone round.
    def step(total: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = _add(row, total)
        return total, total

    _, totals = jax.lax.scan(step, jnp.full_like(rows[0], -jnp.inf), rows)
    return jnp.moveaxis(totals, 0, dim)


_aten = torch.ops.aten
LOWERINGS = (
    Lowering(_aten.logaddexp.default, on_arrays(logaddexp), "is for real numbers"),
    Lowering(
        _aten.logcumsumexp.default, on_arrays(logcumsumexp), "is for real numbers"
    ),
)
METHODS = ()
