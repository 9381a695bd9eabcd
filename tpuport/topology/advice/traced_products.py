"""Products with weights in a traced program, and which of those are taken apart into
several (fused projections).

The result of a product with a weight is followed through what only moves it, or works
on it element by element, to the slices that take it apart.
"""

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from math import prod
from typing import Any, Final, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr

from tpuport.compat.jaxprs import (
    Equation,
    SubJaxpr,
    argument_names,
    callee,
    lookup,
    sub_jaxprs,
)
from tpuport.topology.hlo.array_types import search_group
from tpuport.topology.kernels import product_flops

_QUOTED: Final = re.compile(r"\['(.+?)'\]")
# They leave dimensions where they are, if the result has the operand's shape.
_KEEPS_DIMENSIONS: Final = frozenset(
    "add convert_element_type copy copy_p div mul name optimization_barrier sharding_constraint sub".split()
)
# What a weight goes through on its way to its product, also in blocks in a loop.
_PREPARES_WEIGHTS: Final = frozenset(
    "convert_element_type copy copy_p dynamic_slice name optimization_barrier reshape sharding_constraint squeeze "
    "transpose".split()
)


class _Tracked(NamedTuple):
    """A weight, or what a product makes with it.

    Attributes:
        weight: its name.
        dim: of a product, the dimension of the weight's outputs, or the slowest of
            those that they are reshaped to; None for the weight itself.
    """

    weight: str
    dim: int | None = None


_Known = dict[Any, _Tracked | None]


class Product(NamedTuple):
    """A product of matrices, or a convolution, with a weight.

    Attributes:
        weight: its name.
        output: shape and dtype of the result, of all devices together.
        flops: of all devices, each time that it runs.
    """

    weight: str
    output: Any
    flops: float


@dataclasses.dataclass(frozen=True)
class Products:
    """The products of a program with weights.

    Attributes:
        all: in its order.
        parts: by weight, the parts (start, length) of its outputs that slices take.
    """

    all: list[Product] = dataclasses.field(default_factory=list)
    parts: dict[str, set[tuple[int, int]]] = dataclasses.field(default_factory=dict)

    @property
    def fused(self) -> dict[str, int]:
        """The weights of whose outputs several parts are taken, and how many."""
        return {
            name: len(parts) for name, parts in self.parts.items() if len(parts) > 1
        }


def find_products(program: ClosedJaxpr, weights: Collection[str]) -> Products:
    """The products of a traced program, whose arguments' names say which of them are
    these weights.
    """
    products = Products()
    tracked = {name: _Tracked(name) for name in weights}
    # The weights are one mapping: the name of such an argument is "weights['embed']".
    names = [search_group(_QUOTED, argument) for argument in argument_names(program)]
    _Tracker(products, 1).run(program.jaxpr, list(map(tracked.get, names)))
    return products


class _Tracker:
    """Follows weights and their products forward, through equations that run `times`
    times.
    """

    def __init__(self, products: Products, times: int) -> None:
        self._products = products
        self._times = times

    def run(
        self, jaxpr: Jaxpr, arguments: Sequence[_Tracked | None]
    ) -> list[_Tracked | None]:
        """What a jaxpr's results are, given what its arguments are."""
        known: _Known = dict(zip(jaxpr.invars, arguments, strict=False))
        for equation in jaxpr.eqns:
            known.update(
                zip(equation.outvars, self._results(equation, known), strict=False)
            )
        return [lookup(known, variable) for variable in jaxpr.outvars]

    def _results(self, equation: Equation, known: _Known) -> list[_Tracked | None]:
        """What an equation's first results are; nothing is known of the others."""
        operands = [lookup(known, variable) for variable in equation.invars]
        tracked = [
            (position, value)
            for position, value in enumerate(operands)
            if value is not None
        ]
        if not tracked:
            return []
        position, first = tracked[0]
        match equation.primitive.name:
            case "dot_general" | "conv_general_dilated":
                return [self._product(equation, tracked)]
            case "split":
                self._split(equation, first, enumerate(equation.params["sizes"]))
                return []
            case "unstack":
                count = len(equation.outvars)
                self._split(equation, first, zip(range(count), itertools.repeat(1)))
                return []
            case _ if sub_jaxprs(equation):
                return self._nested(equation, known)
            case _ if first.dim is not None:
                return [
                    self._moved(
                        equation, first, first.dim, equation.invars[position].aval.shape
                    )
                ]
            case name if name in _PREPARES_WEIGHTS:
                return [first]
        return []

    def _product(
        self, equation: Equation, tracked: list[tuple[int, _Tracked]]
    ) -> _Tracked | None:
        """The product with one weight; None if it is not known where the weight's
        outputs are in it.
        """
        weights = [
            (position, value) for position, value in tracked if value.dim is None
        ]
        # The product of two weights, as in a low-rank adapter, is a weight; that of
        # none is one of activations.
        if len(weights) != 1:
            return None
        [(position, value)] = weights
        flops = product_flops(equation) * self._times
        self._products.all.append(
            Product(value.weight, equation.outvars[0].aval, flops)
        )
        if equation.primitive.name != "dot_general" or not _has_single_output(
            equation, position
        ):
            return None
        # A product has the batch, then what remains of the left operand, then of the
        # right one.
        _, (batched, _) = equation.params["dimension_numbers"]
        dims = len(batched), len(equation.outvars[0].aval.shape) - 1
        return value._replace(dim=dims[position])

    def _moved(
        self, equation: Equation, value: _Tracked, dim: int, before: tuple[int, ...]
    ) -> _Tracked | None:
        """A product after an equation with one result; None if it is no longer known
        where its outputs are.
        """
        after = equation.outvars[0].aval.shape
        match equation.primitive.name:
            case "slice" | "dynamic_slice" | "gather":
                return self._sliced(equation, value, dim, before)
            case "reshape" | "squeeze" | "expand_dims":
                new_dim = _dimension_after_reshape(before, dim, after)
            case "transpose":
                new_dim = tuple(equation.params["permutation"]).index(dim)
            case name if name in _KEEPS_DIMENSIONS and before == after:
                new_dim = dim
            case _:
                new_dim = None
        return None if new_dim is None else value._replace(dim=new_dim)

    def _sliced(
        self, equation: Equation, value: _Tracked, dim: int, before: tuple[int, ...]
    ) -> _Tracked | None:
        """A slice: still the product if it takes all of its outputs."""
        params = equation.params
        if equation.primitive.name == "slice":
            start = params["start_indices"][dim]
            length = params["limit_indices"][dim] - start
        else:
            # The start is computed, so that two such slices are told apart by their
            # equations.
            start, length = id(equation), params["slice_sizes"][dim]
        # A slice of another dimension, such as of the sequence, has all outputs.
        is_part = length < before[dim]
        if is_part:
            self._products.parts.setdefault(value.weight, set()).add((start, length))
        # A gather puts dimensions in another order.
        if is_part or equation.primitive.name == "gather":
            return None
        return value

    def _split(
        self, equation: Equation, value: _Tracked, parts: Iterable[tuple[int, int]]
    ) -> None:
        if value.dim == equation.params["axis"]:
            self._products.parts.setdefault(value.weight, set()).update(parts)

    def _nested(self, equation: Equation, known: _Known) -> list[_Tracked | None]:
        """Through a call, the body of a loop or branches. What a loop carries changes,
        and is not followed.
        """
        called = callee(equation)
        if called is not None:
            return self.run(called.jaxpr, _arguments(called, known))
        for part in sub_jaxprs(equation):
            # The arguments of a kernel are blocks, and the condition of a loop has no
            # results to follow.
            if part.kind not in ("kernel", "while condition"):
                _Tracker(self._products, self._times * part.times).run(
                    part.jaxpr, _arguments(part, known)
                )
        return []


def _arguments(part: SubJaxpr, known: _Known) -> list[_Tracked | None]:
    """What the arguments of a nested jaxpr are in its first round and in all others."""
    operands = [lookup(known, operand) for operand in part.operands]
    carries = part.carries
    operands[carries.start : carries.stop] = [None] * len(carries)
    return operands


def _has_single_output(equation: Equation, position: int) -> bool:
    """Whether a product keeps just one dimension of its operand at `position`."""
    contracted, batched = equation.params["dimension_numbers"]
    others = len(contracted[position]) + len(batched[position])
    return len(equation.invars[position].aval.shape) == others + 1


def _dimension_after_reshape(
    before: tuple[int, ...], dim: int, after: tuple[int, ...]
) -> int | None:
    """Where a dimension begins after a reshape: itself, or the slowest of those that it
    has become.
    """
    slower = prod(before[:dim])
    for position, length in enumerate(after):
        if (
            length > 1
            and prod(after[:position]) == slower
            and before[dim] % length == 0
        ):
            return position
    return None
