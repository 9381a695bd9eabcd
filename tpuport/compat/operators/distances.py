"""Distances between points.

Shapes: P and R points of M coordinates.
"""

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.argument_checks import require
from tpuport.compat.declarations import Lowering, on_arrays

_BY_PRODUCTS = "use_mm_for_euclid_dist"
_BY_PRODUCTS_OF_MANY = "use_mm_for_euclid_dist_if_necessary"
# More points than this are many to torch.
_MANY = 25


def cdist(
    x1: jax.Array,
    x2: jax.Array,
    p: float = 2.0,
    compute_mode: str | None = _BY_PRODUCTS_OF_MANY,
) -> jax.Array:
    """Traced. The p-norm distance [..., P, R] of each point in `x1` [..., P, M] to each
    in `x2` [..., R, M].
    """
    require(p >= 0, "cdist only supports non-negative p values")
    # jax would take the only coordinate for all.
    require(
        x1.shape[-1] == x2.shape[-1],
        f"X1 and X2 must have the same number of columns. X1: {x1.shape[-1]} X2: {x2.shape[-1]}",
    )
    is_many = max(x1.shape[-2], x2.shape[-2]) > _MANY
    if p == 2 and (
        compute_mode == _BY_PRODUCTS
        or (compute_mode == _BY_PRODUCTS_OF_MANY and is_many)
    ):
        return _euclidean_by_products(x1, x2)
    differences = jnp.abs(x1[..., :, None, :] - x2[..., None, :, :])
    if p == float("inf"):
        # torch leaves out NaN here, but not in `pdist`.
        differences = jnp.where(jnp.isnan(differences), 0, differences)
    return _norm(differences, p)


def _norm(differences: jax.Array, p: float) -> jax.Array:
    """The p-norm of absolute differences along the last dimension."""
    if p == 0:
        # NaN is not counted as one difference.
        return jnp.minimum(jnp.ceil(differences), 1).sum(-1)
    if p == 1:
        return differences.sum(-1)
    if p == 2:
        return jnp.sqrt((differences * differences).sum(-1))
    if p == float("inf"):
        return differences.max(-1, initial=0)
    return (differences**p).sum(-1) ** (1 / p)


def _euclidean_by_products(x1: jax.Array, x2: jax.Array) -> jax.Array:
    squares1 = (x1 * x1).sum(-1)[..., :, None]
    squares2 = (x2 * x2).sum(-1)[..., None, :]
    squares = squares1 + squares2 - 2 * jnp.matmul(x1, jnp.matrix_transpose(x2))
    return jnp.sqrt(jnp.maximum(squares, 0))


LOWERINGS = (
    Lowering(torch.cdist, on_arrays(cdist), "has 1 for an infinite p, and negative p"),
)
METHODS = ()
