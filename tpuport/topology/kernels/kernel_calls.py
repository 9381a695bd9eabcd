"""Calls of Pallas kernels as they were traced: what they state that they cost, and what
was counted.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from tpuport.compat.jaxprs import Equation

# The compiler for TPUs makes a kernel of this name of each product by groups
# (`jax.lax.ragged_dot`).
RAGGED: Final = "ragged-dot"


class KernelCost(NamedTuple):
    """What one call does on one device.

    Attributes:
        flops: two for each multiplication of its products.
        nbytes: all bytes of HBM that it reads and writes.
        source: "kernel" if the kernel states it, "counted" if it was counted where the
            kernel was traced. FLOPs may be stated even so, see `KernelCall.cost`.
        bound: of a count that depends on data: "at most", "at least" or, if both,
            "about"; else None.
        read: bytes that its blocks read of each operand; empty for a cost that the
            kernel states, which is a total.
        written: bytes that they write of each result; empty likewise.
        copied: bytes in HBM, at either end, of the copies that it starts by itself.
    """

    flops: float
    nbytes: float
    source: str
    bound: str | None = None
    read: tuple[float, ...] = ()
    written: tuple[float, ...] = ()
    copied: float = 0.0


ArrayType = tuple[str, tuple[int, ...]]


class CallSignature(NamedTuple):
    """What a call has in common with its kernel in the compiled program, where dtypes
    may differ.

    Attributes:
        operands, results: their dimensions.
        stated: "flops" and "bytes_accessed" of the kernel's own estimate, zeros if it
            has none.
    """

    operands: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    stated: tuple[float, float]


class KernelCall(NamedTuple):
    """A traced call.

    Attributes:
        name: of the kernel; empty if it has none.
        operands: dtype and dimensions of each, ("bfloat16", (8, 128)).
        results: likewise.
        times: how often a step makes this call on a device.
        stated: "flops" and "bytes_accessed" of the kernel's own estimate; None if it
            has none.
        counted: over its grid.
    """

    name: str
    operands: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]
    times: float
    stated: tuple[float, float] | None
    counted: KernelCost

    @property
    def signature(self) -> CallSignature:
        """What identifies its kernel in the compiled program."""
        operands = tuple(dims for _, dims in self.operands)
        results = tuple(dims for _, dims in self.results)
        return CallSignature(operands, results, self.stated or (0.0, 0.0))

    @property
    def cost(self) -> KernelCost:
        """What the kernel states if the count depends on data; otherwise what was
        counted.

        Of FLOPs that are both stated and counted the smaller number is taken: what is
        stated may be of steps that the kernel skips, and what is counted may have
        products in it that only sum or move. FLOPs of a kernel without products are
        elementwise, and known only where they are stated.
        """
        if self.stated is None:
            return self.counted
        flops, nbytes = self.stated
        # The author of a kernel may know what only data decides.
        if self.counted.bound is not None:
            return KernelCost(flops, nbytes, "kernel")
        # A kernel without products has none that were counted.
        if self.counted.flops:
            flops = min(flops, self.counted.flops)
        return self.counted._replace(flops=flops)


def pallas_kernel_call(
    equation: Equation, times: float, counted: KernelCost
) -> KernelCall:
    """The call that a `pallas_call` makes."""
    name, estimate, stated = (
        equation.params["name"] or "",
        equation.params["cost_estimate"],
        None,
    )
    if estimate is not None:
        stated = float(estimate.flops), float(estimate.bytes_accessed)
    return KernelCall(
        str(name),
        _array_types(equation.invars),
        _array_types(equation.outvars),
        times,
        stated,
        counted,
    )


def ragged_call(
    equation: Equation, times: float, flops: float, ways: int
) -> KernelCall:
    """A product by groups, with the `flops` that a device does on average.

    A device has one in `ways` of the rows, as it has one in `ways` of the groups. Which
    rows is known only at run time.
    """
    bound = None
    if ways > 1:
        bound = "about"
    cost = KernelCost(flops, 0.0, "counted", bound)
    return KernelCall(
        RAGGED,
        _array_types(equation.invars),
        _array_types(equation.outvars),
        times,
        None,
        cost,
    )


def _array_types(variables: Iterable[Any]) -> tuple[ArrayType, ...]:
    return tuple(
        (str(variable.aval.dtype), tuple(map(int, variable.aval.shape)))
        for variable in variables
    )


def array_bytes(aval: Any) -> float:
    """Bytes of an array without the padding of tiles."""
    return math.prod(aval.shape) * item_bytes(aval)


def item_bytes(aval: Any) -> float:
    """Bytes of an element, half of one in four bits; 0 for semaphores and random keys,
    whose dtypes are not numpy's.
    """
    if not isinstance(aval.dtype, np.dtype):
        return 0
    return jax.dtypes.itemsize_bits(aval.dtype) / 8


def product_flops(equation: Equation) -> float:
    """Two for each multiplication of a matrix product or a convolution; 0 for any other
    equation.
    """
    if equation.primitive.name not in _MULTIPLICATIONS:
        return 0.0
    return 2.0 * _MULTIPLICATIONS[equation.primitive.name](equation)


def _matrix_multiplications(equation: Equation) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    return _contractions(equation, contracted)


def _contractions(equation: Equation, contracted: Iterable[int]) -> int:
    """One for each element of the result and each element of the left operand that is
    contracted for it.
    """
    left = equation.invars[0].aval.shape
    return math.prod(equation.outvars[0].aval.shape) * math.prod(
        _extents(left, contracted)
    )


def _extents(shape: Sequence[int], axes: Iterable[int]) -> list[int]:
    return [shape[axis] for axis in axes]


def _ragged_multiplications(equation: Equation) -> int:
    """Of a product by groups. Each row, or each element that is contracted, is in one
    group.
    """
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    products = _contractions(equation, contracted)
    if set(numbers.lhs_ragged_dimensions).isdisjoint(contracted):
        return products
    # With groups of contracted elements the result has a dimension of groups, each with
    # its own elements.
    return products // equation.invars[2].aval.shape[-1]


def _convolution_multiplications(equation: Equation) -> int:
    """As torch's FLOP counter has it: padding counts, the zeros between the elements of
    a transposed one do not.
    """
    images, kernel = equation.invars
    numbers = equation.params["dimension_numbers"]
    batch, features, *positions = _extents(
        equation.outvars[0].aval.shape, numbers.out_spec
    )
    # A dilation of the images is how jax writes a transposed convolution.
    if max(equation.params["lhs_dilation"], default=1) > 1:
        positions = _extents(images.aval.shape, numbers.lhs_spec[2:])
    # The channels of a feature group, and the taps.
    taps = math.prod(_extents(kernel.aval.shape, numbers.rhs_spec[1:]))
    return batch * features * math.prod(positions) * taps


_MULTIPLICATIONS: Final[dict[str, Callable[[Equation], int]]] = {
    "conv_general_dilated": _convolution_multiplications,
    "dot_general": _matrix_multiplications,
    "ragged_dot_general": _ragged_multiplications,
}
