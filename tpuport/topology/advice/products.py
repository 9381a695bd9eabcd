"""Products with weights in a traced program, and which of those are taken apart into several (fused projections).

The result of a product with a weight is followed through what only moves it, or works on it element by element, to the
slices that take it apart.
"""

import dataclasses
import re
from collections.abc import Collection, Sequence
from math import prod
from typing import Any, Final, NamedTuple

_QUOTED: Final = re.compile(r"\['(.+?)'\]")
# What gives back its operand in another dtype or place; its shape is compared.
_SAME: Final = frozenset(
    "add convert_element_type copy copy_p div mul name optimization_barrier sharding_constraint sub".split()
)
# What a weight goes through on its way to its product, in blocks in a loop too.
_OF_WEIGHTS: Final = frozenset(
    "convert_element_type copy copy_p dynamic_slice name optimization_barrier reshape sharding_constraint squeeze "
    "transpose".split()
)


class _Value(NamedTuple):
    """A weight, or what a product makes with it.

    Attributes:
        weight: its name.
        dim: of a product: the dimension of the weight's outputs, or of the first of those that they are seen as.
    """

    weight: str
    dim: int | None = None


_Known = dict[Any, _Value]


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
    """Those of a program: `made`, and by weight the parts (start, length) that are taken of its outputs."""

    made: list[Product] = dataclasses.field(default_factory=list)
    parts: dict[str, set[tuple[int, int]]] = dataclasses.field(default_factory=dict)

    @property
    def fused(self) -> dict[str, int]:
        """Weights of whose outputs several parts are taken, and how many."""
        return {name: len(parts) for name, parts in self.parts.items() if len(parts) > 1}


def products(closed: Any, weights: Collection[str]) -> Products:
    """Of a traced program, whose arguments' names say which of them are these weights."""
    found = Products()
    told = getattr(closed.jaxpr.debug_info, "arg_names", None) or ()
    names = ([one for one in _QUOTED.findall(str(argument)) if one in weights] for argument in told)
    _Flow(found, 1).run(closed.jaxpr, [_Value(name[0]) if name else None for name in names])
    return found


class _Flow:
    """Follows weights and their products forward, through equations that run so many times."""

    def __init__(self, found: Products, times: int) -> None:
        self._found, self._times = found, times

    def run(self, jaxpr: Any, given: Sequence[_Value | None]) -> list[_Value | None]:
        """What a jaxpr's outputs are, given what its arguments are."""
        known: _Known = {
            variable: value for variable, value in zip(jaxpr.invars, given, strict=False) if value is not None
        }
        for equation in jaxpr.eqns:
            for variable, value in zip(equation.outvars, self._made(equation, known), strict=False):
                if value is not None:
                    known[variable] = value
        return [_get(known, one) for one in jaxpr.outvars]

    def _made(self, equation: Any, known: _Known) -> list[_Value | None]:
        name, operands = equation.primitive.name, [_get(known, one) for one in equation.invars]
        if not any(operands) or name == "pallas_call":
            return []
        if name in ("dot_general", "conv_general_dilated"):
            return [self._product(equation, operands)]
        if name == "split":
            self._split(equation, operands[0])
            return []
        if name in ("scan", "while", "cond") or _inner(equation):
            return self._nested(equation, operands)
        first = next(one for one in operands if one)
        if first.dim is None:
            return [first] if name in _OF_WEIGHTS else []
        return [self._moved(equation, first, first.dim, equation.invars[operands.index(first)])]

    def _product(self, equation: Any, operands: list[_Value | None]) -> _Value | None:
        """Of one with one weight; where the weight's outputs are is told of those that have one dimension of them."""
        which = [place for place, one in enumerate(operands[:2]) if one is not None and one.dim is None]
        value = operands[which[0]] if len(which) == 1 else None
        if value is None:
            return None
        flops = _flops(equation, equation.invars) * self._times
        self._found.made.append(Product(value.weight, equation.outvars[0].aval, flops))
        dim = _free(equation, which[0]) if equation.primitive.name == "dot_general" else None
        return None if dim is None else value._replace(dim=dim)

    def _moved(self, equation: Any, value: _Value, dim: int, operand: Any) -> _Value | None:
        """A product after an equation of one result; None where its outputs are no longer told."""
        name, before, after = equation.primitive.name, operand.aval.shape, equation.outvars[0].aval.shape
        if name in ("slice", "dynamic_slice", "gather"):
            return self._part(equation, value, dim, before)
        if name in ("reshape", "squeeze", "expand_dims"):
            place = _first_of(before, dim, after)
        elif name == "transpose":
            place = tuple(equation.params["permutation"]).index(dim)
        else:
            place = dim if name in _SAME and before == after else None
        return None if place is None else value._replace(dim=place)

    def _part(self, equation: Any, value: _Value, dim: int, shape: tuple[int, ...]) -> _Value | None:
        """Of a slice: the product still, where all of its outputs are taken."""
        params = equation.params
        if equation.primitive.name == "slice":
            start, length = params["start_indices"][dim], params["limit_indices"][dim]
            length -= start
        else:  # where it starts is computed, and one such is told from another by its result
            start, length = id(equation), params["slice_sizes"][dim]
        if length < shape[dim]:
            self._found.parts.setdefault(value.weight, set()).add((start, length))
            return None
        return value if equation.primitive.name != "gather" else None

    def _split(self, equation: Any, value: _Value | None) -> None:
        if value is not None and value.dim == equation.params["axis"]:
            parts = self._found.parts.setdefault(value.weight, set())
            parts.update(enumerate(equation.params["sizes"]))

    def _nested(self, equation: Any, operands: list[_Value | None]) -> list[_Value | None]:
        """Through a call, a loop's body or branches; what a loop carries is not followed."""
        name, params = equation.primitive.name, equation.params
        if name == "cond":
            for branch in params["branches"]:
                self.run(branch.jaxpr, operands[1:])
            return []
        if name == "scan":
            first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
            inner = _Flow(self._found, self._times * int(params["length"]))
            inner.run(params["jaxpr"].jaxpr, [*operands[:first], *[None] * (last - first), *operands[last:]])
            return []
        if name == "while":
            first = params["cond_nconsts"]
            self.run(params["body_jaxpr"].jaxpr, operands[first : first + params["body_nconsts"]])
            return []
        return self.run(_inner(equation), operands)


def _get(known: _Known, variable: Any) -> _Value | None:
    return None if hasattr(variable, "val") else known.get(variable)  # literals cannot be hashed


def _inner(equation: Any) -> Any:
    """The jaxpr of a nested call, whose arguments are the operands."""
    for value in equation.params.values():
        jaxpr = getattr(value, "jaxpr", value)
        if hasattr(jaxpr, "eqns") and len(jaxpr.invars) == len(equation.invars):
            return jaxpr
    return None


def _flops(equation: Any, operands: Sequence[Any]) -> float:
    """Of one execution: two for each multiplication."""
    made, second = prod(equation.outvars[0].aval.shape), operands[1].aval.shape
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2.0 * made * prod(operands[0].aval.shape[dim] for dim in contracted)
    outputs = second[equation.params["dimension_numbers"].rhs_spec[0]]
    return 2.0 * made * prod(second) / max(outputs, 1)


def _free(equation: Any, place: int) -> int | None:
    """Where in the result of a product the outputs of the weight are that is this operand; None for several."""
    contracted, batched = equation.params["dimension_numbers"]
    ends = (*contracted[place], *batched[place])
    if len(equation.invars[place].aval.shape) != len(ends) + 1:
        return None
    return len(batched[0]) if place == 0 else len(equation.outvars[0].aval.shape) - 1


def _first_of(before: tuple[int, ...], dim: int, after: tuple[int, ...]) -> int | None:
    """Where a dimension begins after a reshape: itself, or the slowest of those that it has become."""
    ahead, extent = prod(before[:dim]), before[dim]
    for place, size in enumerate(after):
        if size > 1 and prod(after[:place]) == ahead:
            return place if extent % size == 0 else None
    return None
