"""`torch.linalg.ldl_factor` and `ldl_solve`: Bunch and Kaufman's factors of symmetric
and Hermitian matrices.

A is the product of permutations, a unit triangle L, and a D whose blocks have one or
two rows, in LAPACK's compact form for the lower triangle: `sytf2` and `hetf2` compute
it, `sytrs` and `hetrs` solve systems with it. jax has neither
(https://github.com/jax-ml/jax/issues/12779).
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import torch

from tpuport.compat.operators.declarations import Lowering, on_arrays
from tpuport.compat.operators.samplers import require_values

# Bunch and Kaufman's bound of a pivot beside the largest element of its column.
_ALPHA = (1 + math.sqrt(17)) / 8


class _Progress(NamedTuple):
    """A factorization after some columns.

    Attributes:
        column: the next one.
        rest: what is left of the matrix, both triangles.
        factors: L below its diagonal of ones, and D.
        pivots: row numbers from 1, negative for a block of two.
        info: the first column, from 1, whose pivot is 0; 0 if there is none.
    """

    column: jax.Array
    rest: jax.Array
    factors: jax.Array
    pivots: jax.Array
    info: jax.Array


class _Block(NamedTuple):
    """A block of D, `[[first, upper], [lower, second]]`; of one row if `is_pair` is
    false.
    """

    first: jax.Array
    lower: jax.Array
    upper: jax.Array
    second: jax.Array
    is_pair: jax.Array

    def divide(self, left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`[left, right] D^-1`; for the other side, exchange `lower` and `upper`."""
        # A pair's largest elements are beside its diagonal.
        scale = jnp.where(self.is_pair, jnp.abs(self.lower), 1).astype(self.first.dtype)
        first, lower, upper, second = (part / scale for part in self[:4])
        determinant = (first * second - lower * upper) * scale
        divisor = jnp.where(self.is_pair, determinant, self.first)
        first_of_pair = left * second - right * lower
        second_of_pair = right * first - left * upper
        return jnp.where(
            self.is_pair, first_of_pair, left
        ) / divisor, second_of_pair / divisor


def ldl_factor_ex(
    x: jax.Array, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Traced. The compact factors [..., N, N] of matrices, their pivots [..., N], and
    the first pivot that is 0 [...].

    Torch reads `check_errors` from the last of these, which is not known while tracing.
    """
    if not x.size:
        return x, jnp.zeros(x.shape[:-1], jnp.int32), jnp.zeros(x.shape[:-2], jnp.int32)
    factor = functools.partial(_factor, is_hermitian=hermitian and jnp.iscomplexobj(x))
    results = jnp.vectorize(factor, signature="(n,n)->(n,n),(n),()")(x)
    if check_errors:
        require_values(
            lambda info: info == 0,
            results[2],
            message="linalg.ldl_factor_ex: a pivot of the factors is zero",
        )
    return results


def _factor(
    x: jax.Array, *, is_hermitian: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    size = x.shape[-1]
    lower = jnp.tril(x, -1)
    diagonal = x.diagonal().real.astype(x.dtype) if is_hermitian else x.diagonal()
    rest = lower + _adjoint(lower, is_hermitian) + jnp.diag(diagonal)
    start = _Progress(
        jnp.int32(0),
        rest,
        jnp.zeros_like(x),
        jnp.zeros(size, jnp.int32),
        jnp.zeros((), jnp.int32),
    )
    end = jax.lax.while_loop(
        lambda progress: progress.column < size,
        functools.partial(_eliminate, is_hermitian),
        start,
    )
    return end.factors, end.pivots, end.info


def _adjoint(x: jax.Array, is_hermitian: bool) -> jax.Array:
    return x.T.conj() if is_hermitian else x.T


def _eliminate(is_hermitian: bool, progress: _Progress) -> _Progress:
    """One block, and the rest of the matrix without it."""
    k, rest = progress.column, progress.rest
    row, is_pair, is_zero = _choose_pivot(rest, k)
    last = k + is_pair
    rest = _exchanged(_exchanged(rest, last, row).T, last, row).T
    row_numbers = jnp.arange(rest.shape[0])
    left, right = (
        jnp.where(row_numbers > last, column, 0)
        for column in (rest[:, k], rest[:, k + 1])
    )
    # A column of zeros stays as it is.
    first = jnp.where(is_zero, 1, rest[k, k])
    block = _Block(first, rest[k + 1, k], rest[k, k + 1], rest[k + 1, k + 1], is_pair)
    first_of_l, second_of_l = block.divide(left, right)
    second_of_l = jnp.where(is_pair, second_of_l, 0)
    updated = (
        rest
        - jnp.outer(first_of_l, _adjoint(left, is_hermitian))
        - jnp.outer(second_of_l, _adjoint(right, is_hermitian))
    )
    below = jnp.where(is_pair & (row_numbers == k + 1), block.lower, first_of_l)
    factors = progress.factors.at[:, k].set(
        jnp.where(row_numbers == k, rest[k, k], below)
    )
    second = jnp.where(row_numbers == k + 1, block.second, second_of_l)
    factors = jnp.where(
        is_pair & (row_numbers == k + 1)[None, :], second[:, None], factors
    )
    is_of_block = (row_numbers >= k) & (row_numbers <= last)
    pivots = jnp.where(
        is_of_block, jnp.where(is_pair, -row - 1, row + 1), progress.pivots
    )
    info = jnp.where(is_zero & (progress.info == 0), k + 1, progress.info)
    return _Progress(
        last + 1, updated, factors, pivots.astype(jnp.int32), info.astype(jnp.int32)
    )


def _choose_pivot(
    rest: jax.Array, k: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The row to exchange with the block's last, whether the block has two rows, and
    whether its column is all 0.
    """
    size = _magnitude(rest)
    row_numbers = jnp.arange(rest.shape[0])
    column = jnp.where(row_numbers > k, size[:, k], -1)
    candidate, largest = jnp.argmax(column), jnp.maximum(column.max(), 0)
    largest_beside = jnp.where(
        (row_numbers >= k) & (row_numbers != candidate), size[candidate], 0
    ).max()
    own = size[k, k]
    is_zero = jnp.maximum(own, largest) == 0
    stays = (
        is_zero
        | (own >= _ALPHA * largest)
        | (own * largest_beside >= _ALPHA * largest * largest)
    )
    is_pair = ~stays & ~(size[candidate, candidate] >= _ALPHA * largest_beside)
    return jnp.where(stays, k, candidate), is_pair, is_zero


def _magnitude(x: jax.Array) -> jax.Array:
    """LAPACK's measure of row_numbers."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if jnp.iscomplexobj(x) else jnp.abs(x)


def _exchanged(x: jax.Array, row: jax.Array, other: jax.Array) -> jax.Array:
    return x.at[row].set(x[other]).at[other].set(x[row])


def ldl_solve(
    factors: jax.Array, pivots: jax.Array, right: jax.Array, *, hermitian: bool = False
) -> jax.Array:
    """Traced. X [..., N, K] of the systems A X = `right`, by the factors of
    `ldl_factor`.
    """
    shape = jnp.broadcast_shapes(factors.shape[:-2], right.shape[:-2])
    if not factors.size or not right.size:
        return jnp.zeros((*shape, *right.shape[-2:]), right.dtype)
    solve = functools.partial(
        _solve, is_hermitian=hermitian and jnp.iscomplexobj(factors)
    )
    return jnp.vectorize(solve, signature="(n,n),(n),(n,k)->(n,k)")(
        factors, pivots, right
    )


def _solve(
    factors: jax.Array, pivots: jax.Array, right: jax.Array, *, is_hermitian: bool
) -> jax.Array:
    size = factors.shape[0]
    row_numbers = jnp.arange(size)[:, None]
    rows = jnp.abs(pivots) - 1

    def divide(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """By a block's columns of L, and by the block."""
        k, x = state
        is_pair = pivots[k] < 0
        last = k + is_pair
        x = _exchanged(x, last, rows[k])
        x = x - jnp.where(row_numbers > last, factors[:, k, None], 0) * x[k]
        x = (
            x
            - jnp.where(is_pair & (row_numbers > last), factors[:, k + 1, None], 0)
            * x[k + 1]
        )
        lower = factors[k + 1, k]
        # D is on the left of x.
        upper = lower.conj() if is_hermitian else lower
        block = _Block(factors[k, k], upper, lower, factors[k + 1, k + 1], is_pair)
        first, second = block.divide(x[k], x[k + 1])
        x = jnp.where(
            is_pair & (row_numbers == k + 1),
            second,
            jnp.where(row_numbers == k, first, x),
        )
        return last + 1, x

    def divide_by_adjoint(
        state: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        """By the same columns of L', from the last block on."""
        k, x = state
        is_pair = pivots[k] < 0
        solved = jnp.where(row_numbers > k, x, 0)
        products = _adjoint(factors, is_hermitian) @ solved
        x = x - jnp.where(
            (row_numbers == k) | (is_pair & (row_numbers == k - 1)), products, 0
        )
        return k - 1 - is_pair, _exchanged(x, k, rows[k])

    _, x = jax.lax.while_loop(
        lambda state: state[0] < size, divide, (jnp.int32(0), right)
    )
    _, x = jax.lax.while_loop(
        lambda state: state[0] >= 0, divide_by_adjoint, (jnp.int32(size - 1), x)
    )
    return x


_aten = torch.ops.aten
LOWERINGS = (
    Lowering(
        _aten.linalg_ldl_factor_ex.default,
        on_arrays(ldl_factor_ex),
        "is for positive definite matrices, and gives NaN for others",
    ),
    Lowering(_aten.linalg_ldl_solve.default, on_arrays(ldl_solve), "has no lowering"),
)
METHODS = ()
