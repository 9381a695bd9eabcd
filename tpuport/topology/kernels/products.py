"""Multiplications of one traced equation: of matrix products and convolutions."""

import math
from collections.abc import Callable
from typing import Any, Final


def flops(equation: Any) -> float:
    """Two for each multiplication and the addition that follows it; 0 for any other equation."""
    found = _PRODUCTS.get(equation.primitive.name)
    return 2.0 * found(equation) if found else 0.0


def _dot(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)


def _ragged_dot(equation: Any) -> int:
    """Of products by groups: each row, or each column, is in one of them."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    left = equation.invars[0].aval.shape
    size = math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
    split = set(numbers.lhs_ragged_dimensions) & set(contracted)
    return size // equation.invars[2].aval.shape[-1] if split else size


def _convolution(equation: Any) -> int:
    """As torch's FLOP counter has it: padding counts, the zeros between the numbers of a transposed one do not."""
    given, kernel = (one.aval.shape for one in equation.invars)
    out = equation.outvars[0].aval.shape
    numbers = equation.params["dimension_numbers"]
    transposed = any(size > 1 for size in equation.params["lhs_dilation"])
    spatial = (
        math.prod(given[axis] for axis in numbers.lhs_spec[2:])
        if transposed
        else math.prod(out[axis] for axis in numbers.out_spec[2:])
    )
    taps = math.prod(kernel[axis] for axis in numbers.rhs_spec[1:])  # channels of a group, and places
    return out[numbers.out_spec[0]] * out[numbers.out_spec[1]] * spatial * taps


_PRODUCTS: Final[dict[str, Callable[[Any], int]]] = {
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "ragged_dot_general": _ragged_dot,
}
