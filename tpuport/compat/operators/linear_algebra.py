"""Decompositions that torch computes from one triangle of a matrix."""

from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.operators.declarations import Lowering, on_arrays
from tpuport.errors import PortError


def eigh(
    x: jax.Array,
    UPLO: str = "L",
    compute_v: bool = True,
) -> tuple[jax.Array, jax.Array]:
    """Traced. Eigenvalues in ascending order and eigenvectors of the symmetric matrix that one triangle gives."""
    # Without symmetrizing, jax reads the lower triangle.
    lower = x if UPLO.upper() == "L" else jnp.conj(jnp.matrix_transpose(x))
    vectors, values = jax.lax.linalg.eigh(jnp.tril(lower), lower=True, symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros((0,), x.dtype)


def pinv(
    x: jax.Array,
    *,
    atol: jax.Array | None = None,
    rtol: jax.Array | None = None,
    hermitian: bool = False,
) -> jax.Array:
    """Traced. The pseudo-inverse; singular values up to `max(atol, rtol * the largest)` count as 0."""
    if not x.size:
        return jnp.matrix_transpose(x)
    if hermitian:
        values, vectors = eigh(x)
        left, right = vectors, jnp.conj(jnp.matrix_transpose(vectors))
    else:
        u, values, v = jnp.linalg.svd(x, full_matrices=False)
        left, right = (jnp.conj(jnp.matrix_transpose(factor)) for factor in (v, u))
    largest = jnp.abs(values).max(-1)
    bound = jnp.zeros_like(largest) if atol is None else atol.astype(largest.dtype)
    if rtol is None:
        precision = jnp.finfo(x.dtype).eps * max(x.shape[-2:])
        rtol = jnp.where(bound > 0, 0.0, precision)
    threshold = jnp.maximum(bound, rtol.astype(largest.dtype) * largest)[..., None]
    is_kept = jnp.abs(values) > threshold
    inverse = jnp.where(is_kept, 1 / jnp.where(is_kept, values, 1), 0).astype(x.dtype)
    return (left * inverse[..., None, :]) @ right


def slogdet(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Traced. Sign and logarithm of the determinant, and the LU decomposition with its pivots, counted from 1."""
    factors, pivots, _ = jax.lax.linalg.lu(x)
    sign, logarithm = jnp.linalg.slogdet(x)
    return sign, logarithm, factors, pivots + 1


def det(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Traced. The determinant, and the LU decomposition with its pivots, counted from 1."""
    factors, pivots, _ = jax.lax.linalg.lu(x)
    return jnp.linalg.det(x), factors, pivots + 1


def ldl_factor_ex(x: jax.Array, **options: Any) -> Any:
    """Traced. torchax's, of real matrices."""
    from torchax.ops.ops_registry import all_aten_ops

    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise PortError(
            "linalg.ldl_factor of complex numbers is not available on the device", fix="use linalg.lu"
        )
    return all_aten_ops[_aten.linalg_ldl_factor_ex].func(x, **options)


_aten = torch.ops.aten
LOWERINGS = (
    Lowering(_aten.linalg_ldl_factor_ex.default, on_arrays(ldl_factor_ex), "gives NaN for complex numbers"),
    Lowering(_aten._linalg_det.default, on_arrays(det), "has no lowering"),
    Lowering(_aten._linalg_slogdet.default, on_arrays(slogdet), "gives two of four results"),
    Lowering(_aten._linalg_eigh.default, on_arrays(eigh), "averages the two triangles"),
    Lowering(
        _aten.linalg_pinv.atol_rtol_tensor, on_arrays(pinv), "ignores atol, and that a matrix is hermitian"
    ),
)
METHODS = ()
