"""Weights in few bits: the numbers that they stand for, and products with them that
never write these numbers down.

Letters: E experts (any leading dimensions, or none), G groups of inputs, I inputs in a
group, O outputs, B blocks of outputs. A weight of torch is [..., O, G * I]. Its values
are kept as [..., G, I, O]: XLA's TPU compiler then computes the wide numbers inside the
product, where those of a weight that has to be reshaped first are written to memory.
"""

import dataclasses
import functools
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.experimental.layout import Layout, with_layout_constraint

from tpuport.compat.convert import wrap
from tpuport.compat.declarations import Lowering, on_arrays
from tpuport.compat.digit_products import multiply_groups
from tpuport.compat.few_bits import (
    MXFP4_GROUP,
    look_up,
    multiply_by_groups,
    round_rows,
    without_gradient,
)
from tpuport.compat.operators.convolution import mesh_of
from tpuport.compat.operators.linear_algebra import linear
from tpuport.compat.recording import as_one_node, is_recorded
from tpuport.hardware import target_generation
from tpuport.internals.torch_internals import without_subclass_functions

# Integers up to 2**8 are exact in bfloat16; differences of bytes are not.
_EXACT_BITS = 4
# More rows are multiplied faster by weights that are made wide once for all of them.
_MOST_DIGIT_ROWS = 8
# The depth of a matrix unit. With less than half of it, products in integers are no
# faster.
_UNIT_INPUTS = 128
# By the bits of a product's type: the digits of an activation that leave no more than
# the rounding of float32.
_DIGITS = {16: 3, 32: 4, 64: 4}
# Of values [G, I, O], without experts.
_MATRIX_RANK = 3


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "values",
        "scale",
        "zero_point",
        "order",
        "outer_scale",
        "minimum",
        "outer_minimum",
    ],
    meta_fields=[
        "levels",
        "output_block",
        "columns",
        "dtype",
        "transposed",
        "rounds_activations",
        "segments",
    ],
)
@dataclass(frozen=True, eq=False)
class QuantizedArray:
    """A weight [..., O, K], or transposed, in few bits:
    `(values - zero_point) * scale - minimum`, rounded to `dtype`.

    Scales and minima may be in few bits themselves; then some neighbouring groups share
    a factor on theirs.

    Attributes:
        values: [..., G, I, O], an integer or small floating type, G * I at least K.
            What is beyond K is not used. See `segments`.
        scale: [..., G, B], each for `output_block` neighbouring outputs; the last block
            may be shorter. What is beyond G is not used.
        zero_point: as `scale`, an integer type; None for zero.
        order: int32 [K], None for the weight's own: which input of the weight each of
            the stored ones is.
        outer_scale: [..., S, B], a factor on the scales of G / S neighbouring groups;
            None for 1.
        minimum: as `scale`; None for zero.
        outer_minimum: as `outer_scale`, for `minimum`.
        levels: the numbers that unsigned values are the indices of; None if values are
            numbers themselves.
        output_block: outputs in a block.
        columns: K.
        dtype: of the weight.
        transposed: whether the weight is [..., K, O].
        rounds_activations: whether products round activations to int8 too. Values are
            int8 then, in a single group, with neither zero points nor levels nor an
            order.
        segments: equal parts of the inputs, each of which is filled up to whole groups,
            so that as many devices can have groups of their own.
    """

    values: jax.Array
    scale: jax.Array
    zero_point: jax.Array | None
    order: jax.Array | None
    levels: tuple[float, ...] | None
    output_block: int
    columns: int
    dtype: np.dtype
    transposed: bool = False
    rounds_activations: bool = False
    outer_scale: jax.Array | None = None
    minimum: jax.Array | None = None
    outer_minimum: jax.Array | None = None
    segments: int = 1

    def dequantize(self) -> jax.Array:
        """Traced. The weight, [..., O, K] or transposed."""
        grouped = self._grouped_weight()
        *leading, _, _, outputs = grouped.shape
        segments = grouped.reshape(*leading, self.segments, -1, outputs)[
            ..., : self.columns // self.segments, :
        ]
        weight = segments.reshape(*leading, self.columns, outputs)
        if self.order is not None:
            weight = weight[..., jnp.argsort(self.order), :]
        return weight if self.transposed else jnp.swapaxes(weight, -1, -2)

    def expert(self, index: jax.Array) -> "QuantizedArray":
        """Traced. The weight of a single expert, of several [E, ...]."""
        weight = jax.tree.map(
            lambda part: jax.lax.dynamic_index_in_dim(part, index, 0, keepdims=False),
            self,
        )
        if weight.values.shape[0] == 1:
            return weight
        # XLA would choose another layout for the product, and copy the values of all
        # experts into it.
        values = with_layout_constraint(
            weight.values, Layout(tuple(range(_MATRIX_RANK)))
        )
        return dataclasses.replace(weight, values=values)

    @property
    def is_mxfp4(self) -> bool:
        """Whether it is several weights in MXFP4, of which `expert_linear` has a kernel
        for a few rows.
        """
        others = (
            self.zero_point,
            self.order,
            self.outer_scale,
            self.minimum,
            self.levels,
        )
        return (
            self.values.dtype == jnp.float4_e2m1fn
            and self.scale.dtype == jnp.float8_e8m0fnu
            and self.values.shape[1:-1] == (self.columns // MXFP4_GROUP, MXFP4_GROUP)
            and self.scale.shape[-1] == self.values.shape[-1]
            and all(other is None for other in others)
            # Its matrix units have no products of integers.
            and target_generation() != "v4"
        )

    def expert_linear(self, index: jax.Array, activations: jax.Array) -> jax.Array:
        """Traced. The product [R, O] of activations [R, K] and the weight of a single
        expert, as a matrix [K, O].
        """
        if self.is_mxfp4 and 1 <= activations.shape[0] <= _MOST_DIGIT_ROWS:
            return _multiply_expert(activations, self, index)
        return self.expert(index).linear(activations)

    def multiply_expert_digits(
        self, index: jax.Array, activations: jax.Array
    ) -> jax.Array:
        """Traced. The same in MXFP4 for few rows: sums of integers are scaled, in
        float32, and not weights.
        """
        # Its kernel imports Pallas, which takes a tenth of a second.
        from tpuport.compat import float4_products

        dtype = jnp.promote_types(activations.dtype, self.dtype)
        digits = _DIGITS[jnp.finfo(dtype).bits]
        product = float4_products.multiply_float4(
            activations, self.values, self.scale, index, digits
        )
        return product.astype(dtype)

    def linear(self, activations: jax.Array) -> jax.Array:
        """Traced. The product [..., O] of activations [..., K] and this weight as a
        matrix [K, O].

        It is computed as that of an ordinary weight of this dtype would be, promotion
        included; where each output has a single scale, the product is scaled and not
        the weight, which is not rounded to its dtype then.
        """
        if self.rounds_activations:
            return self._integer_product(activations)
        if self._has_scales_of_outputs():
            return self._scaled_product(activations)
        if self.order is not None:
            activations = activations[..., self.order]
        grouped = self._group_activations(activations)
        *leading, _, inputs = grouped.shape
        joined = self._joined_groups()
        if self._suits_digits(prod(leading), joined * inputs):
            return _multiply_few_rows(grouped, self, joined)
        return self.multiply_wide(grouped)

    def _group_activations(self, activations: jax.Array) -> jax.Array:
        """Traced. Activations [..., K] as [..., G, I], with zeros where groups are
        filled up.
        """
        *leading, columns = activations.shape
        groups, inputs, _ = self.values.shape
        padding = (groups * inputs - columns) // self.segments
        if padding:
            activations = activations.reshape(*leading, self.segments, -1)
            activations = jnp.pad(
                activations, [(0, 0)] * (len(leading) + 1) + [(0, padding)]
            )
        if groups > 1:
            # XLA would move the reshape to what made the activations. If that is a
            # product with quantised weights, it would write them to memory in the
            # reshaped form, and wide.
            activations = jax.lax.optimization_barrier(activations)
        return activations.reshape(*leading, groups, inputs)

    def multiply_wide(self, grouped: jax.Array) -> jax.Array:
        """Traced. The product [..., O] of activations [..., G, I] and the weight made
        wide.
        """
        return jnp.einsum("...gi,gio->...o", grouped, self._grouped_weight())

    def _joined_groups(self) -> int:
        """How many neighbouring groups fill a matrix unit, and are on the same
        device.
        """
        groups, inputs, _ = self.values.shape
        mesh = mesh_of(self.values)
        devices = 1 if mesh is None else mesh.size
        joined = 1
        while (
            2 * joined * inputs <= _UNIT_INPUTS and groups % (2 * joined * devices) == 0
        ):
            joined *= 2
        return joined

    def _suits_digits(self, rows: int, inputs: int) -> bool:
        """Whether a TPU multiplies so many rows faster in integers, with so many inputs
        in a matrix unit at once.

        A mesh divides groups and not what is in one, so that the largest number of a
        group takes no collective.
        """
        groups, group_inputs, _ = self.values.shape
        dtype = self.values.dtype
        fits_int8 = (
            jnp.issubdtype(dtype, jnp.integer)
            and jnp.iinfo(dtype).max <= jnp.iinfo(jnp.int8).max
        )
        is_plain = self.levels is None and fits_int8
        # Each row takes work for each group.
        most_rows = min(_MOST_DIGIT_ROWS, group_inputs // 8)
        return (
            is_plain
            and groups > 1
            and 2 * inputs >= _UNIT_INPUTS
            and 1 <= rows <= most_rows
        )

    def multiply_digits(self, grouped: jax.Array, joined: int) -> jax.Array:
        """Traced. The same for few rows: sums of integers are scaled, in float32, and
        not weights.
        """
        *leading, groups, inputs = grouped.shape
        dtype = jnp.promote_types(grouped.dtype, self.dtype)
        zero_point = minimum = None
        if self.zero_point is not None:
            zero_point = self._per_output(self.zero_point.astype(jnp.int32))[:, 0]
        if self.minimum is not None:
            minimum = self._wide_numbers(self.minimum, self.outer_minimum)
        product = multiply_groups(
            grouped.reshape(-1, groups, inputs), self.values, self._wide_numbers(self.scale, self.outer_scale),
            zero_point, _DIGITS[jnp.finfo(dtype).bits], joined, minimum,
        )  # fmt: skip
        return product.astype(dtype).reshape(*leading, -1)

    def _wide_numbers(self, inner: jax.Array, outer: jax.Array | None) -> jax.Array:
        """Traced. A scale or a minimum [G, B] of each output, [G, O] or [G, 1]."""
        if outer is not None:
            inner = multiply_by_groups(inner, outer, np.dtype(np.float32))
        return self._per_output(inner)[:, 0]

    def _has_scales_of_outputs(self) -> bool:
        """Whether a weight is values that its dtype holds exactly, times a scale that
        all inputs share.
        """
        others = (
            self.zero_point,
            self.order,
            self.outer_scale,
            self.minimum,
            self.levels,
        )
        # Sums of unscaled values could leave the range of float16.
        is_wide = jnp.finfo(self.dtype).maxexp == jnp.finfo(jnp.float32).maxexp
        has_one_group = self.values.shape[-_MATRIX_RANK:-1] == (1, self.columns)
        return has_one_group and is_wide and all(other is None for other in others)

    def _scaled_product(self, activations: jax.Array) -> jax.Array:
        """Traced. The product with the values, scaled: a multiplication for each
        output, and not for each weight.
        """
        sums = jnp.einsum(
            "...i,io->...o", activations, self.values[0].astype(self.dtype)
        )
        scale = self._per_output(self.scale.astype(jnp.float32))[0, 0]
        return (sums.astype(jnp.float32) * scale).astype(sums.dtype)

    def _integer_product(self, activations: jax.Array) -> jax.Array:
        """Traced. The product of activations [..., K], each row rounded to 255 levels,
        and int8 values.

        Integers are multiplied and summed exactly, in int32.
        """
        rows, scale = round_rows(without_gradient(activations), jnp.float32)
        values = self.values[0]
        contraction = (((rows.ndim - 1,), (0,)), ((), ()))
        sums = jax.lax.dot_general(
            rows, values, contraction, preferred_element_type=jnp.int32
        )
        wide = (
            sums.astype(jnp.float32)
            * scale
            * self._per_output(self.scale.astype(jnp.float32))[0, 0]
        )
        return wide.astype(jnp.promote_types(activations.dtype, self.dtype))

    def _grouped_weight(self) -> jax.Array:
        """Traced. The weight as its values are kept, [..., G, I, O]."""
        dtype = self._compute_dtype()
        values = self.values
        numbers = (
            values.astype(dtype)
            if self.levels is None
            else look_up(values, self.levels, dtype)
        )
        if self.zero_point is not None:
            numbers -= self._per_output(self.zero_point.astype(dtype))
        scale = self.scale[..., : self.values.shape[-_MATRIX_RANK], :]
        numbers *= self._per_output(multiply_by_groups(scale, self.outer_scale, dtype))
        if self.minimum is not None:
            numbers -= self._per_output(
                multiply_by_groups(self.minimum, self.outer_minimum, dtype)
            )
        return numbers.astype(self.dtype)

    def _per_output(self, blocks: jax.Array) -> jax.Array:
        """Traced. [..., G, B] as [..., G, 1, O]: each block's number for all of its
        outputs, or [..., G, 1, 1].
        """
        count, outputs = blocks.shape[-1], self.values.shape[-1]
        if count not in (1, outputs):
            blocks = jnp.repeat(blocks, self.output_block, axis=-1)[..., :outputs]
        return blocks[..., None, :]

    def _compute_dtype(self) -> np.dtype:
        """The weight's own dtype where that gives what float32 does, and otherwise
        float32.

        A product that is rounded once is the same in both. The TPU compiler would
        convert all scales to float32 and write them to memory.
        """
        if self.outer_scale is not None or self.minimum is not None:
            return jnp.promote_types(self.dtype, jnp.float32)
        is_power_of_two = self.scale.dtype == jnp.float8_e8m0fnu
        if (
            is_power_of_two
            and jnp.finfo(self.dtype).maxexp == jnp.finfo(jnp.float32).maxexp
        ):
            return self.dtype
        is_exact = (
            self.zero_point is None or jnp.iinfo(self.values.dtype).bits <= _EXACT_BITS
        )
        if is_exact and self.levels is None and self.scale.dtype == self.dtype:
            return self.dtype
        return jnp.promote_types(self.dtype, jnp.float32)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _multiply_few_rows(
    grouped: jax.Array, weight: QuantizedArray, joined: int
) -> jax.Array:
    """Traced. The product of activations [..., G, I] and a weight, as is fastest where
    it runs.
    """
    return jax.lax.platform_dependent(
        grouped, weight,
        tpu=lambda rows, array: array.multiply_digits(rows, joined),
        default=lambda rows, array: array.multiply_wide(rows),
    )  # fmt: skip


@_multiply_few_rows.defjvp
def _differentiate_product(
    joined: int, primals: tuple[Any, Any], tangents: tuple[Any, Any]
) -> tuple[jax.Array, jax.Array]:
    # The derivative of rounding to digits would be zero.
    _, tangent = jax.jvp(
        lambda rows, array: array.multiply_wide(rows), primals, tangents
    )
    return _multiply_few_rows(*primals, joined), tangent


@jax.custom_jvp
def _multiply_expert(
    activations: jax.Array, weight: QuantizedArray, index: jax.Array
) -> jax.Array:
    """Traced. The product of activations [R, K] and the weight of one expert, as is
    fastest where it runs.
    """
    return jax.lax.platform_dependent(
        activations, weight, index,
        tpu=lambda rows, array, number: array.multiply_expert_digits(number, rows),
        default=lambda rows, array, number: array.expert(number).linear(rows),
    )  # fmt: skip


@_multiply_expert.defjvp
def _differentiate_expert(
    primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    *numbers, index = primals
    _, tangent = jax.jvp(
        lambda rows, array: array.expert(index).linear(rows),
        tuple(numbers),
        tangents[:-1],
    )
    return _multiply_expert(*primals), tangent


# One equation for each weight in a program, which is dropped from it if only products
# read the weight.
dequantize = jax.jit(QuantizedArray.dequantize)
_on_arrays = on_arrays(linear)


def mark_quantized(array: QuantizedArray) -> torch.Tensor:
    """The weight as a torchax tensor; products with this very tensor use the values as
    they are stored.
    """
    tensor: Any = wrap(dequantize(array))
    tensor.quantized = array
    return tensor


def linear_of_any(input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002
    """Traced. `torch.nn.functional.linear`; a quantised weight is multiplied as it is
    stored.
    """
    quantized: QuantizedArray | None = getattr(weight, "quantized", None)
    if (
        quantized is None
        or quantized.transposed
        or quantized.values.ndim != _MATRIX_RANK
    ):
        if is_recorded((input, weight, bias), {}):
            with without_subclass_functions():
                return torch.nn.functional.linear(input, weight, bias)
        return _on_arrays(input, weight, bias)
    result = as_one_node(on_arrays(quantized.linear))(input)
    return result if bias is None else result + bias


# Autograd records the product with a quantised weight as a whole.
linear_of_any.is_one_node = True  # type: ignore[attr-defined]
LOWERINGS = (
    Lowering(
        torch.nn.functional.linear,
        linear_of_any,
        "has other names for its arguments, and takes no vector",
    ),
)
METHODS = ()
