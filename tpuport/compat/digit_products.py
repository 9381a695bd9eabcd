"""Products of a few rows of floating-point numbers with small integers, as sums of
products of integers.

The vector unit of a TPU takes longer to make four-bit integers floating-point numbers
than HBM takes to deliver them. Its matrix units read them as eight-bit integers, which
costs next to nothing. So the activations become integers: each number is written with
digits, to the base 254, of the largest magnitude in its group, and each digit is a row
of a product of integers, which is exact. Matrix units take as long to load weights for
one row as for thirty.

Letters: D digits, R rows, N = D * R, G groups of inputs, I inputs in a group, O
outputs; J neighbouring groups that are multiplied at once, B = G / J.
"""

from typing import Final

import jax
import jax.numpy as jnp

# A digit is from -127 to 127, and what it leaves is at most half of its unit: 127 units
# of the next digit.
_LARGEST: Final = 127
_BASE: Final = 254.0


def split_digits(
    rows: jax.Array, count: int
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Traced. Digits [..., I] of numbers, as int8, and the unit of each, float32 [...].

    Digits times their units add up to the numbers. A group with a number that is not
    finite has a unit that is not, as its product would not be.
    """
    wide = rows.astype(jnp.float32)
    largest_unit = jnp.max(jnp.abs(wide), axis=-1) / _LARGEST
    rest = wide / jnp.where(largest_unit == 0, 1, largest_unit)[..., None]
    digits, units = [], []
    for position in range(count):
        digit = jnp.round(rest)
        digits.append(digit.astype(jnp.int8))
        units.append(largest_unit * _BASE**-position)
        rest = (rest - digit) * _BASE
    return digits, units


def _digit_rows(rows_RGI: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Traced. All digits as rows [N, G, I], and their units [G, N]."""
    digits, units = split_digits(rows_RGI, count)
    return jnp.concatenate(digits), jnp.concatenate(units).T


def multiply_groups(
    rows_RGI: jax.Array,
    values_GIO: jax.Array,
    scale_GO: jax.Array,
    shift_GO: jax.Array | None,
    digits: int,
    joined: int = 1,
    minimum_GO: jax.Array | None = None,
) -> jax.Array:
    """Traced. The product of rows with weights `(values - shift) * scale - minimum`,
    float32 [R, O].

    Args:
        rows_RGI: at least one row.
        values_GIO: integers that int8 holds.
        scale_GO: any floating-point type, [G, O] or [G, 1].
        shift_GO: int32, likewise; None for zero.
        minimum_GO: as `scale_GO`; None for zero.
        digits: of each number. Three are more than the 24 bits of float32 for the
            largest number of a group.
        joined: J, which divides G. A matrix unit is 128 inputs deep, and takes as long
            for fewer.
    """
    if joined > 1:
        return _multiply_joined(
            rows_RGI, values_GIO, scale_GO, shift_GO, digits, joined, minimum_GO
        )
    count, groups, _ = rows_RGI.shape
    row_sums_RG = jnp.sum(rows_RGI.astype(jnp.float32), axis=-1)
    digits_NGI, unit_GN = _digit_rows(rows_RGI, digits)
    sums_GNO = jax.lax.dot_general(
        digits_NGI,
        values_GIO.astype(jnp.int8),
        (((2,), (1,)), ((1,), (0,))),
        preferred_element_type=jnp.int32,
    )
    if shift_GO is not None:
        digit_sums_GN = jnp.sum(digits_NGI, axis=-1, dtype=jnp.int32).T
        sums_GNO -= digit_sums_GN[..., None] * shift_GO[:, None]
    products_GNO = sums_GNO.astype(jnp.float32) * unit_GN[..., None]
    if count == 1:
        # Without a dimension for the only row, which XLA would give a layout of its
        # own.
        products_GO = jnp.sum(products_GNO, axis=1) * scale_GO.astype(jnp.float32)
        if minimum_GO is not None:
            # Before groups are added: devices that divide them add both at once.
            products_GO -= row_sums_RG[0][:, None] * minimum_GO.astype(jnp.float32)
        return jnp.sum(products_GO, axis=0)[None]
    products_GRO = jnp.sum(products_GNO.reshape(groups, digits, count, -1), axis=1)
    products_GRO *= scale_GO.astype(jnp.float32)[:, None]
    if minimum_GO is not None:
        products_GRO -= (
            row_sums_RG.T[..., None] * minimum_GO.astype(jnp.float32)[:, None]
        )
    return jnp.sum(products_GRO, axis=0)


def _multiply_joined(
    rows_RGI: jax.Array,
    values_GIO: jax.Array,
    scale_GO: jax.Array,
    shift_GO: jax.Array | None,
    digits: int,
    joined: int,
    minimum_GO: jax.Array | None,
) -> jax.Array:
    """Traced. The same with J groups in each product: each has rows of its own, which
    are zero for the others.
    """
    count, groups, inputs = rows_RGI.shape
    blocks = groups // joined
    row_sums_RBJ = jnp.sum(rows_RGI.astype(jnp.float32), axis=-1).reshape(
        count, blocks, joined
    )
    digits_NGI, unit_GN = _digit_rows(rows_RGI, digits)
    digits_BNJI = digits_NGI.reshape(-1, blocks, joined, inputs).transpose(1, 0, 2, 3)
    # Behind the group that a row belongs to, the group of its inputs.
    spread_BNJJI = (
        digits_BNJI[:, :, :, None] * jnp.eye(joined, dtype=jnp.int8)[..., None]
    )
    sums = jax.lax.dot_general(
        spread_BNJJI.reshape(blocks, -1, joined * inputs),
        values_GIO.reshape(blocks, joined * inputs, -1).astype(jnp.int8),
        (((2,), (1,)), ((0,), (0,))),
        preferred_element_type=jnp.int32,
    )
    unit_NBJ = unit_GN.T.reshape(-1, blocks, joined)
    scale_BJO = scale_GO.reshape(blocks, joined, -1).astype(jnp.float32)
    digit_sums_BNJ = jnp.sum(digits_BNJI, axis=-1, dtype=jnp.int32)
    totals = []
    for row in range(count):
        products_BJO: jax.Array | float = 0.0
        for number in range(row, digits * count, count):
            # A slice, because XLA would copy a reshaped array into another layout.
            sums_BJO = sums[:, number * joined : (number + 1) * joined]
            if shift_GO is not None:
                sums_BJO -= digit_sums_BNJ[:, number, :, None] * shift_GO.reshape(
                    blocks, joined, -1
                )
            products_BJO += sums_BJO.astype(jnp.float32) * unit_NBJ[number, ..., None]
        products_BJO *= scale_BJO
        if minimum_GO is not None:
            minimum_BJO = minimum_GO.reshape(blocks, joined, -1).astype(jnp.float32)
            products_BJO -= row_sums_RBJ[row][..., None] * minimum_BJO
        totals.append(jnp.sum(products_BJO, axis=(0, 1)))
    return jnp.stack(totals)
