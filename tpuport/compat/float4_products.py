"""Products of a few rows with weights in MXFP4, as sums of products of integers: a
kernel for TPU.

A vector unit converts four-bit floats one by one, which takes it longer than HBM takes
to deliver the same weights in bfloat16. Twice such a float is an integer of at most 12,
and a few operations on whole words make eight of them at once. Their products with the
digits of activations are those of `digit_products`, scaled by powers of two.

The kernel reads the weights of the expert that it is told at run time, and of no other.

Letters: X experts, D digits, R rows, G groups of 32 inputs, I inputs in a group, K = G
* I inputs, O outputs, C chunks of 128 inputs, B rounds of eight chunks, J = 4 groups in
a chunk, P = J * I inputs in a chunk, N = D * J * R rows of a chunk's product, each of
which is zero but for the inputs of its group; W words of eight values.
"""

import functools
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tpuport.compat.digit_products import split_digits
from tpuport.compat.few_bits import MXFP4_GROUP

NAME: Final = "tpuport_float4"
# A matrix unit is 128 inputs deep.
_CHUNK: Final = 128
_JOINED: Final = _CHUNK // MXFP4_GROUP
# Chunks of a round of the kernel's loop: their 32 scales are a tile of bytes.
_ROUND: Final = 8
# Of weights in each step of the grid: the kernel waits for the first of them.
_BLOCK_BYTES: Final = 1 << 21
_LANES: Final = 128
_ONE, _TWO, _FOUR = np.uint32(1), np.uint32(2), np.uint32(4)


def multiply_float4(
    rows_RK: jax.Array,
    values_XGIO: jax.Array,
    scale_XGO: jax.Array,
    expert: jax.Array,
    digits: int,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Traced. The product of rows and the weights [K, O] of an expert,
    `values * scale`, float32 [R, O].

    Args:
        values_XGIO: float4_e2m1fn, with groups of 32.
        scale_XGO: float8_e8m0fnu, powers of two.
        expert: an integer.
        digits: of each number, as in `digit_products`.
        interpret: run the kernel in Python, on any device.
    """
    count = rows_RK.shape[0]
    experts, groups, _, outputs = values_XGIO.shape
    # Four groups of an even number of rows fill the sublanes of a vector register.
    digits_CNP, unit_BNC = _spread_digits(
        jnp.pad(rows_RK, [(0, count % 2), (0, 0)]), digits
    )
    padded_count = count + count % 2
    chunks = digits_CNP.shape[0]
    columns = _block_columns(groups * MXFP4_GROUP, outputs)

    def of_expert(block: Any, expert_ref: Any) -> tuple[Any, ...]:
        return expert_ref[0], 0, block

    digit_rows, units = (
        pl.BlockSpec(array.shape, lambda block, expert_ref: (0, 0, 0))
        for array in (digits_CNP, unit_BNC)
    )
    # What a block has beyond the last group is multiplied by zeros.
    scales = pl.BlockSpec(
        (None, _round_up(groups, _JOINED * _ROUND), columns), of_expert
    )
    values = pl.BlockSpec((None, chunks * _CHUNK, columns), of_expert)
    values_XKO = values_XGIO.reshape(experts, groups * MXFP4_GROUP, outputs)
    if not interpret:
        # XLA would fetch the weights of all experts into VMEM for the product with one.
        values_XKO = pltpu.with_memory_space_constraint(values_XKO, pltpu.HBM)
    product_RO = pl.pallas_call(
        functools.partial(_multiply_block, digits=digits, groups=groups),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(outputs, columns),),
            in_specs=[digit_rows, units, scales, values],
            out_specs=pl.BlockSpec(
                (padded_count, columns), lambda block, expert_ref: (0, block)
            ),
        ),
        out_shape=jax.ShapeDtypeStruct((padded_count, outputs), jnp.float32),
        interpret=interpret,
        name=NAME,
    )(
        jnp.asarray(expert, jnp.int32)[None],
        digits_CNP,
        unit_BNC,
        scale_XGO,
        values_XKO,
    )
    return product_RO[:count]


def _block_columns(inputs: int, outputs: int) -> int:
    """Outputs of a block: as many lanes as fit its bytes, and about as many in the last
    block.
    """
    lanes = -(-outputs // _LANES)
    most_lanes = max(1, 2 * _BLOCK_BYTES // (inputs * _LANES))
    blocks = -(-lanes // most_lanes)
    return -(-lanes // blocks) * _LANES


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _spread_digits(rows_RK: jax.Array, digits: int) -> tuple[jax.Array, jax.Array]:
    """Traced. The digits [C, N, P] of rows, even inputs of a chunk first, and their
    units [rounds, N, chunks].
    """
    count, inputs = rows_RK.shape
    chunks = -(-inputs // _CHUNK)
    rows_RCP = jnp.pad(rows_RK, [(0, 0), (0, chunks * _CHUNK - inputs)]).reshape(
        count, chunks, _CHUNK
    )
    # A product, because XLA would move inputs between lanes in several steps. It is
    # exact.
    spread_CJRP = jnp.einsum(
        "rcp,jpq->cjrq",
        rows_RCP,
        jnp.asarray(_spreading_matrices(), rows_RK.dtype),
        precision="highest",
    )
    numbers, units = split_digits(
        spread_CJRP.reshape(chunks, _JOINED * count, _CHUNK), digits
    )
    unit_CN = jnp.pad(jnp.concatenate(units, axis=1), [(0, -chunks % _ROUND), (0, 0)])
    unit_BNC = unit_CN.reshape(-1, _ROUND, unit_CN.shape[1]).swapaxes(1, 2)
    return jnp.concatenate(numbers, axis=1), unit_BNC


@functools.cache
def _spreading_matrices() -> np.ndarray:
    """A matrix for each group, which moves its inputs where `decode_words` has them,
    and no others.
    """
    order = np.arange(_CHUNK).reshape(-1, 2).T.ravel()
    moves_PP = np.eye(_CHUNK)[:, order]
    is_in_group_JP = np.arange(_CHUNK) // MXFP4_GROUP == np.arange(_JOINED)[:, None]
    return moves_PP * is_in_group_JP[..., None]


def _multiply_block(
    expert_ref: Any,
    digits_CNP: Any,
    unit_BNC: Any,
    scale_GO: Any,
    values_KO: Any,
    product_RO: Any,
    *,
    digits: int,
    groups: int,
) -> None:
    """Traced. The kernel: the product with some outputs of the expert's weights."""
    count, columns = product_RO.shape
    rows = _JOINED * count

    def add_round(
        number: Any, total_JRO: jax.Array, size: int = _ROUND, *, is_last: bool = False
    ) -> jax.Array:
        first = number * _ROUND
        scale_bytes = scale_GO[pl.ds(first * _JOINED, _ROUND * _JOINED), :]
        scale_words = pltpu.bitcast(scale_bytes, jnp.uint32)
        unit_NC = unit_BNC[number]
        for position in range(size):
            words_WO = pltpu.bitcast(
                values_KO[pl.ds((first + position) * _CHUNK, _CHUNK), :], jnp.uint32
            )
            sums_NO = lax.dot_general(
                digits_CNP[first + position],
                decode_words(words_WO),
                (((1,), (0,)), ((), ())),
                preferred_element_type=jnp.int32,
            )
            products_NO = (
                sums_NO.astype(jnp.float32) * unit_NC[:, position : position + 1]
            )
            products_JRO = products_NO[:rows]
            for digit in range(1, digits):
                products_JRO += products_NO[digit * rows : (digit + 1) * rows]
            scale_JRO = _read_scales(scale_words[position : position + 1], count)
            if is_last:
                scale_JRO = _hide_scales(
                    scale_JRO, count, groups - (first + position) * _JOINED
                )
            total_JRO += products_JRO * scale_JRO
        return total_JRO

    total_JRO = jnp.zeros((rows, columns), jnp.float32)
    # Rounds without a chunk that is not full.
    full = groups // (_ROUND * _JOINED)
    total_JRO = lax.fori_loop(0, full, add_round, total_JRO)
    rest = digits_CNP.shape[0] - full * _ROUND
    if rest:
        total_JRO = add_round(full, total_JRO, rest, is_last=True)
    total_RO = total_JRO[:count]
    for group in range(1, _JOINED):
        total_RO += total_JRO[group * count : (group + 1) * count]
    # Values were doubled.
    product_RO[...] = total_RO * 0.5


def _read_scales(words_1O: jax.Array, count: int) -> jax.Array:
    """Traced. The scales [J * R, O] of four groups, whose exponents are the bytes of
    words.
    """
    shape = (_JOINED * count, words_1O.shape[1])
    exponents = jnp.broadcast_to(words_1O, shape) >> (
        8 * _group_of_row(shape, count)
    ).astype(jnp.uint32)
    return pltpu.bitcast((exponents & jnp.uint32(0xFF)) << jnp.uint32(23), jnp.float32)


def _hide_scales(scale_JRO: jax.Array, count: int, groups: int) -> jax.Array:
    """Traced. Zeros for what is read beyond the last group, which may be no numbers."""
    if groups >= _JOINED:
        return scale_JRO
    return jnp.where(_group_of_row(scale_JRO.shape, count) < groups, scale_JRO, 0)


def _group_of_row(shape: tuple[int, ...], count: int) -> jax.Array:
    return lax.div(lax.broadcasted_iota(jnp.int32, shape, 0), jnp.int32(count))


def decode_words(words_WO: jax.Array) -> jax.Array:
    """Traced. Twice the floats in words [W, O] as int8 [8 W, O], those at even
    positions first.

    A four-bit float is a sign, two bits of exponent and one of mantissa. Twice its
    magnitude is `bits`, and from four on `bits` plus its lower two bits, and two more
    if both of these are set: 0, 1, 2, 3, 4, 6, 8, 12.
    """
    exponent = words_WO & _nibbles(0b0100)
    lower = words_WO & ((exponent >> _ONE) | (exponent >> _TWO))
    both = lower & (lower >> _ONE) & _nibbles(0b0001)
    # At most 12, so that no float carries into the next.
    magnitudes = (words_WO & _nibbles(0b0111)) + lower + (both << _ONE)
    even = _with_sign(magnitudes & _bytes(0x0F), (words_WO << _FOUR) & _bytes(0x80))
    odd = _with_sign((magnitudes >> _FOUR) & _bytes(0x0F), words_WO & _bytes(0x80))
    return jnp.concatenate(
        [pltpu.bitcast(even, jnp.int8), pltpu.bitcast(odd, jnp.int8)]
    )


def _with_sign(magnitudes: jax.Array, signs: jax.Array) -> jax.Array:
    """Traced. Four bytes of a word each, negative where the byte's highest bit is set
    in `signs`.
    """
    ones = signs >> jnp.uint32(7)
    # The lower seven bits are inverted and incremented, without a carry into the next
    # byte even for zero.
    return ((magnitudes ^ (signs - ones)) + ones) ^ signs


def _nibbles(bits: int) -> np.uint32:
    """The same four bits eight times."""
    return np.uint32(bits * 0x11111111)


def _bytes(bits: int) -> np.uint32:
    return np.uint32(bits * 0x01010101)
