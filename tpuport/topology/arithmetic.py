"""What has to be computed, by a traced function: two FLOPs for each multiplication of its products and convolutions."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from jax.extend.core import ClosedJaxpr, Jaxpr


def model_flops(jaxpr: ClosedJaxpr) -> float:
    """FLOPs of a traced function, on all devices together: of matrix products, convolutions and Pallas kernels.

    A product of [M, K] and [K, N] has 2 * M * N * K, and so has a convolution, with K the channels of a group times
    the kernel's size. A scan counts as often as it runs, the body of another loop once, and of branches the costliest.
    A Pallas kernel has what it estimates, or else its body's products for each step of its grid. A shard_map has its
    body's for each device along the axes that its arguments or results are split over; along others all do the same.
    """
    return _Counting().of(jaxpr)


class _Counting:
    """FLOPs of jaxprs, each counted once however many equations share it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, float]] = {}  # with the jaxpr: its id stays its own

    def of(self, given: Any) -> float:
        jaxpr = given.jaxpr if isinstance(given, ClosedJaxpr) else given
        if id(jaxpr) not in self._known:
            self._known[id(jaxpr)] = jaxpr, float(sum(self._equation(one) for one in jaxpr.eqns))
        return self._known[id(jaxpr)][1]

    def _equation(self, equation: Any) -> float:
        name, params = equation.primitive.name, equation.params
        if name in _PRODUCTS:
            return 2.0 * _PRODUCTS[name](equation)
        if name == "pallas_call":
            return self._kernel(params)
        inner = [self.of(one) for one in _jaxprs(params)]
        if name == "cond":
            return max(inner, default=0.0)
        if name == "scan":
            return params["length"] * sum(inner, 0.0)
        return sum(inner, 0.0) * (_ways(params) if name == "shard_map" else 1)

    def _kernel(self, params: dict[str, Any]) -> float:
        estimate = params.get("cost_estimate")
        if estimate is not None:
            return float(estimate.flops)
        grid = [size for size in params["grid_mapping"].grid if isinstance(size, int)]
        return math.prod(grid) * self.of(params["jaxpr"])


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """Those that an equation runs."""
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr | Jaxpr):
                yield one


def _ways(params: dict[str, Any]) -> int:
    """Among how many devices a shard_map splits its work."""
    named = {
        axis
        for spec in (*params["in_specs"], *params["out_specs"])
        for entry in spec
        for axis in (entry if isinstance(entry, tuple) else (entry,))
    }
    manual = (
        params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"]
    )  # older jax
    return math.prod(size for axis, size in params["mesh"].shape.items() if axis in named and axis in manual)


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
