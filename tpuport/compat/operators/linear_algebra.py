"""Decompositions that torch computes from one triangle of a matrix."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.argument_checks import require
from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.compat.operators.matrix_failures import refusing


def eigh(
    x: jax.Array,
    UPLO: str = "L",
    compute_v: bool = True,
) -> tuple[jax.Array, jax.Array]:
    """Traced. Eigenvalues in ascending order and eigenvectors of the symmetric matrix
    that one triangle gives.
    """
    # Without symmetrizing, jax reads the lower triangle.
    lower = x if UPLO.upper() == "L" else jnp.conj(jnp.matrix_transpose(x))
    vectors, values = jax.lax.linalg.eigh(
        jnp.tril(lower), lower=True, symmetrize_input=False
    )
    return values, vectors if compute_v else jnp.zeros((0,), x.dtype)


def pinv(
    x: jax.Array,
    *,
    atol: jax.Array | None = None,
    rtol: jax.Array | None = None,
    hermitian: bool = False,
) -> jax.Array:
    """Traced. The pseudo-inverse; singular values up to `max(atol, rtol * the largest)`
    count as 0.
    """
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
    """Traced. Sign and logarithm of the determinant, and the LU decomposition with its
    pivots, counted from 1.
    """
    factors, pivots, _ = jax.lax.linalg.lu(x)
    sign, logarithm = jnp.linalg.slogdet(x)
    # The product of the pivots' signs, of which NaN has none.
    sign = jnp.where(jnp.isnan(logarithm), sign * 0, sign)
    return sign, logarithm, factors, pivots + 1


def det(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Traced. The determinant, and the LU decomposition with its pivots, counted from
    1.
    """
    factors, pivots, _ = jax.lax.linalg.lu(x)
    return jnp.linalg.det(x), factors, pivots + 1


def matrix_exp(x: jax.Array) -> jax.Array:
    """Traced. The exponential of square matrices, of halves computed in float32."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return jax.scipy.linalg.expm(wide).astype(x.dtype)


def linear(
    input: jax.Array,  # noqa: A002
    weight: jax.Array,
    bias: jax.Array | None = None,
) -> jax.Array:
    """Traced. `torch.nn.functional.linear`, its arguments by torch's names; a weight
    may be a vector [I], too.

    Raises:
        RuntimeError: torch's, for an input of another width than the weight's.
    """
    # jax would take the only number of an input for all.
    require(
        input.shape[-1] == weight.shape[-1],
        f"mat1 and mat2 shapes cannot be multiplied: linear() got an input {list(input.shape)} for a weight "
        f"{list(weight.shape)}",
    )
    # The product that `jnp.einsum` writes, which takes eight times as long to trace.
    result = jnp.tensordot(input, weight, axes=(-1, -1))
    return result if bias is None else result + bias


def linalg_svd(
    A: torch.Tensor,
    full_matrices: bool = True,
    *,
    driver: str | None = None,
    out: tuple[torch.Tensor, ...] | None = None,
) -> Any:
    """`torch.linalg.svd`; the driver chooses among algorithms of CUDA."""
    results = _aten._linalg_svd.default(A, full_matrices)
    return _return_types.linalg_svd(_stored(out, results))


def linalg_slogdet(
    A: torch.Tensor, *, out: tuple[torch.Tensor, ...] | None = None
) -> Any:
    """`torch.linalg.slogdet`."""
    results = _aten._linalg_slogdet.default(A)[:2]
    return _return_types.linalg_slogdet(_stored(out, results))


def qr(x: jax.Array, mode: str = "reduced") -> tuple[jax.Array, jax.Array]:
    """Traced. Q and R, whose product is x; in mode "r" an empty Q."""
    if mode == "r":
        return jnp.zeros(0, x.dtype), jnp.linalg.qr(x, mode="r")
    q, r = jnp.linalg.qr(x, mode=mode)
    return q, r


def svd(matrix: Any, some: bool = True, compute_uv: bool = True) -> Any:
    """`torch.svd`, whose third result is V, not its adjoint; zeros for U and V if they
    are not asked for.
    """
    left, values, adjoint = torch.linalg.svd(matrix, full_matrices=not some)
    if not compute_uv:
        left, adjoint = (
            matrix.new_zeros((*matrix.shape[:-2], size, size))
            for size in matrix.shape[-2:]
        )
    return _return_types.svd((left, values, adjoint.mH))


def lu_function(
    A: torch.Tensor,
    pivot: bool = True,
    get_infos: bool = False,
    out: tuple[torch.Tensor, ...] | None = None,
) -> tuple[torch.Tensor, ...]:
    """`torch.lu`, the older form of `torch.linalg.lu_factor_ex`."""
    results = torch.linalg.lu_factor_ex(A, pivot=pivot)
    if get_infos:
        return _return_types._lu_with_info(_stored(out, results))
    return _stored(out, results[:2])


def _stored(
    out: tuple[torch.Tensor, ...] | None, results: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The results, or the tensors that a caller wants them in."""
    if out is None:
        return tuple(results)
    return tuple(
        destination.resize_(result.shape).copy_(result)
        for destination, result in zip(out, results, strict=True)
    )


_return_types: Any = torch.return_types
_aten = torch.ops.aten
LOWERINGS = (
    Lowering(torch.lu, lu_function, "always pivots, and counts in 64 bits"),
    Lowering(torch.svd, svd, "does not conjugate V"),
    Lowering(torch.linalg.svd, linalg_svd, "gives what jax calls it"),
    Lowering(torch.linalg.slogdet, linalg_slogdet, "gives what another function gives"),
    Lowering(_aten.linalg_qr.default, on_arrays(qr), "gives no Q in mode r"),
    Lowering(_aten.linalg_matrix_exp.default, on_arrays(matrix_exp), "fails on halves"),
    Lowering(_aten._linalg_det.default, on_arrays(det), "has no lowering"),
    Lowering(
        _aten._linalg_slogdet.default, on_arrays(slogdet), "gives two of four results"
    ),
    # torchax averages the two triangles.
    refusing(_aten._linalg_eigh.default, on_arrays(eigh)),
    # torchax ignores atol, and that a matrix is hermitian.
    refusing(_aten.linalg_pinv.atol_rtol_tensor, on_arrays(pinv)),
)
METHODS = ()
