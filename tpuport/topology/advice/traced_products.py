"""Products with weights in a traced program, and which of those are taken apart into several (fused projections).

The result of a product with a weight is followed through what only moves it, or works on it element by element, to the
slices that take it apart.
"""

import dataclasses
import re
from collections.abc import Collection, Sequence
from math import prod
from typing import Any, Final, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from tpuport.jaxprs import Equation, argument_names, callee, sub_jaxprs
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
        dim: of a product, the dimension of the weight's outputs, or the slowest of those that they are reshaped to;
            None for the weight itself.
    """

    weight: str
    dim: int | None = None


_Known = dict[Any, _Tracked]


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
        return {name: len(parts) for name, parts in self.parts.items() if len(parts) > 1}


def find_products(program: ClosedJaxpr, weights: Collection[str]) -> Products:
    """The products of a traced program, whose arguments' names say which of them are these weights."""
    products = Products()
    arguments = []
    for argument in argument_names(program):
        names = [name for name in _QUOTED.findall(argument) if name in weights]
        arguments.append(_Tracked(names[0]) if names else None)
    _Tracker(products, 1).run(program.jaxpr, arguments)
    return products


class _Tracker:
    """Follows weights and their products forward, through equations that run `times` times."""

    def __init__(self, products: Products, times: int) -> None:
        self._products = products
        self._times = times

    def run(self, jaxpr: Jaxpr, arguments: Sequence[_Tracked | None]) -> list[_Tracked | None]:
        """What a jaxpr's results are, given what its arguments are."""
        known: _Known = {
            variable: value
            for variable, value in zip(jaxpr.invars, arguments, strict=False)
            if value is not None
        }
        for equation in jaxpr.eqns:
            for variable, value in zip(equation.outvars, self._results(equation, known), strict=False):
                if value is not None:
                    known[variable] = value
        return [_lookup(known, variable) for variable in jaxpr.outvars]

    def _results(self, equation: Equation, known: _Known) -> list[_Tracked | None]:
        operands = [_lookup(known, variable) for variable in equation.invars]
        tracked = [operand for operand in operands if operand is not None]
        name = equation.primitive.name
        if not tracked:
            return []
        if name in ("dot_general", "conv_general_dilated"):
            return [self._product(equation, operands)]
        if name == "split":
            self._split(equation, tracked[0])
            return []
        if sub_jaxprs(equation):
            return self._nested(equation, known)
        if tracked[0].dim is None:
            return [tracked[0]] if name in _PREPARES_WEIGHTS else []
        before = equation.invars[operands.index(tracked[0])].aval.shape
        return [self._moved(equation, tracked[0], tracked[0].dim, before)]

    def _product(self, equation: Equation, operands: list[_Tracked | None]) -> _Tracked | None:
        """The product with one weight; None if it is not known where the weight's outputs are in it."""
        weights = [
            (position, operand)
            for position, operand in enumerate(operands[:2])
            if operand is not None and operand.dim is None
        ]
        # The product of two weights, as in a low-rank adapter, is a weight; that of none is one of activations.
        if len(weights) != 1:
            return None
        [(position, value)] = weights
        flops = product_flops(equation) * self._times
        self._products.all.append(Product(value.weight, equation.outvars[0].aval, flops))
        if equation.primitive.name != "dot_general":
            return None
        dim = _output_dimension(equation, position)
        return None if dim is None else value._replace(dim=dim)

    def _moved(
        self, equation: Equation, value: _Tracked, dim: int, before: tuple[int, ...]
    ) -> _Tracked | None:
        """A product after an equation with one result; None if it is no longer known where its outputs are."""
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
                return None
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
            # The start is computed, so that two such slices are told apart by their equations.
            start, length = id(equation), params["slice_sizes"][dim]
        # A slice of another dimension, such as of the sequence, has all outputs.
        if length < before[dim]:
            self._products.parts.setdefault(value.weight, set()).add((start, length))
            return None
        return value if equation.primitive.name != "gather" else None

    def _split(self, equation: Equation, value: _Tracked) -> None:
        if value.dim == equation.params["axis"]:
            parts = self._products.parts.setdefault(value.weight, set())
            parts.update(enumerate(equation.params["sizes"]))

    def _nested(self, equation: Equation, known: _Known) -> list[_Tracked | None]:
        """Through a call, the body of a loop or branches. What a loop carries changes, and is not followed."""
        called = callee(equation)
        if called is not None:
            return self.run(called.jaxpr, [_lookup(known, operand) for operand in called.operands])
        for part in sub_jaxprs(equation):
            if part.kind in ("kernel", "while condition"):
                continue
            arguments = [_lookup(known, operand) for operand in part.operands]
            for carry in part.carries:
                arguments[carry] = None
            _Tracker(self._products, self._times * part.times).run(part.jaxpr, arguments)
        return []


def _lookup(known: _Known, variable: Any) -> _Tracked | None:
    return None if isinstance(variable, Literal) else known.get(variable)  # literals cannot be hashed


def _output_dimension(equation: Equation, position: int) -> int | None:
    """Where in a product the outputs of the weight are that is its operand at `position`; None for several."""
    contracted, batched = equation.params["dimension_numbers"]
    others = len(contracted[position]) + len(batched[position])
    if len(equation.invars[position].aval.shape) != others + 1:
        return None
    # A product has the batch, then what remains of the left operand, then of the right one.
    return len(batched[0]) if position == 0 else len(equation.outvars[0].aval.shape) - 1


def _dimension_after_reshape(before: tuple[int, ...], dim: int, after: tuple[int, ...]) -> int | None:
    """Where a dimension begins after a reshape: itself, or the slowest of those that it has become."""
    slower = prod(before[:dim])
    for position, length in enumerate(after):
        if length > 1 and prod(after[:position]) == slower:
            return position if before[dim] % length == 0 else None
    return None
