"""What each operation of a traced program does to the dimensions of its arrays.

A function here takes an equation and its inputs, makes classes of the dimensions that have to be alike, and returns the
operation: its outputs, whose dimensions are those of the inputs where they go on, and the dimensions that it sums up
(`reduced`) or of which it takes or joins parts (`dealt`). An input's dimension that is none of these is needed whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, Final, NamedTuple

from tpuport.sharding.inference.factors import (
    Dimensions,
    new_dimension,
    new_dimensions,
    reshape,
    unify,
    unify_each,
)


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """An array of the program. Values are compared by identity.

    Attributes:
        weight: the name of the weight that it is, or None.
    """

    shape: tuple[int, ...]
    dimensions: Dimensions
    weight: str | None = None

    @property
    def elements(self) -> int:
        """How many the whole array has."""
        return prod(self.shape)


class Axis(NamedTuple):
    """A dimension of one of an operation's inputs."""

    input: int
    dimension: int


@dataclasses.dataclass(eq=False, slots=True)
class Operation:
    """One equation of the program.

    Attributes:
        equation: as it was traced.
        reduced: the dimensions that it sums up, such as those that a product contracts.
        dealt: the dimensions of which it takes a part, or that become a part of one, each with the output's dimension.
    """

    equation: Any
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    reduced: frozenset[Axis] = frozenset()
    dealt: dict[Axis, int] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the primitive."""
        return self.equation.primitive.name

    @property
    def batch(self) -> tuple[Axis, ...]:
        """The dimensions of a product's first input along which it is many products."""
        if self.name != "dot_general":
            return ()
        _, (dimensions, _) = self.equation.params["dimension_numbers"]
        return tuple(Axis(0, dimension) for dimension in dimensions)


def new_value(variable: Any) -> Value:
    """A value with the shape of a variable of the jaxpr, and dimensions of its own."""
    shape = tuple(getattr(variable.aval, "shape", ()))
    return Value(shape, new_dimensions(shape))


def describe(equation: Any, inputs: Sequence[Value]) -> Operation:
    """The operation of an equation that runs no jaxpr of its own."""
    rule = _RULES.get(equation.primitive.name, _elementwise)
    return rule(equation, inputs)


def _single(equation: Any, inputs: Sequence[Value], dimensions: Iterable[Any], **facts: Any) -> Operation:
    """An operation with one output, whose dimensions are these."""
    shape = tuple(equation.outvars[0].aval.shape)
    return Operation(equation, inputs, [Value(shape, tuple(dimensions))], **facts)


def _fresh(equation: Any, inputs: Sequence[Value]) -> Operation:
    return Operation(equation, inputs, [new_value(variable) for variable in equation.outvars])


def _elementwise(equation: Any, inputs: Sequence[Value]) -> Operation:
    """Also of operations that are not known, if their arrays have the shapes of an elementwise one."""
    shape = tuple(equation.outvars[0].aval.shape)
    arrays = [value for value in inputs if value.shape]
    fits = all(
        len(value.shape) == len(shape)
        and all(size in (1, whole) for size, whole in zip(value.shape, shape, strict=True))
        for value in arrays
    )
    same_outputs = all(tuple(variable.aval.shape) == shape for variable in equation.outvars)
    if not (fits and same_outputs):
        return _fresh(equation, inputs)
    dimensions = []
    for index, size in enumerate(shape):
        alike = [value.dimensions[index] for value in arrays if value.shape[index] == size]
        for other in alike[1:]:
            unify(alike[0], other)
        dimensions.append(alike[0] if alike else new_dimension(size))
    outputs = [Value(shape, tuple(dimensions)) for _ in equation.outvars]
    return Operation(equation, inputs, outputs)


def _pairwise(equation: Any, inputs: Sequence[Value]) -> Operation:
    """Each output is the input at its place."""
    outputs = [Value(value.shape, value.dimensions) for value in inputs]
    return Operation(equation, inputs, outputs)


def _product(equation: Any, inputs: Sequence[Value]) -> Operation:
    (left_contracted, right_contracted), (left_batch, right_batch) = equation.params["dimension_numbers"]
    left, right = inputs
    pairs = zip((*left_contracted, *left_batch), (*right_contracted, *right_batch), strict=True)
    for left_index, right_index in pairs:
        unify(left.dimensions[left_index], right.dimensions[right_index])
    free_left = _others(left, (*left_contracted, *left_batch))
    free_right = _others(right, (*right_contracted, *right_batch))
    batch = [left.dimensions[index] for index in left_batch]
    reduced = {Axis(0, index) for index in left_contracted} | {Axis(1, index) for index in right_contracted}
    return _single(equation, inputs, (*batch, *free_left, *free_right), reduced=frozenset(reduced))


def _others(value: Value, excluded: Iterable[int]) -> list[Any]:
    return [dimension for index, dimension in enumerate(value.dimensions) if index not in excluded]


def _reduction(equation: Any, inputs: Sequence[Value]) -> Operation:
    axes = equation.params["axes"]
    reduced = frozenset(Axis(index, axis) for index in range(len(inputs)) for axis in axes)
    dimensions = tuple(_others(inputs[0], axes))
    outputs = [Value(tuple(variable.aval.shape), dimensions) for variable in equation.outvars]
    return Operation(equation, inputs, outputs, reduced)


def _position_of_extreme(equation: Any, inputs: Sequence[Value]) -> Operation:
    """argmax and argmin: positions of different devices cannot simply be added up."""
    return _single(equation, inputs, _others(inputs[0], equation.params["axes"]))


def _broadcast(equation: Any, inputs: Sequence[Value]) -> Operation:
    source = inputs[0]
    shape = tuple(equation.params["shape"])
    dimensions = list(new_dimensions(shape))
    for index, target in enumerate(equation.params["broadcast_dimensions"]):
        if source.shape[index] == shape[target]:
            dimensions[target] = source.dimensions[index]
    return _single(equation, inputs, dimensions)


def _reshape(equation: Any, inputs: Sequence[Value]) -> Operation:
    return _single(equation, inputs, reshape(inputs[0].dimensions, equation.outvars[0].aval.shape))


def _transpose(equation: Any, inputs: Sequence[Value]) -> Operation:
    return _single(
        equation, inputs, [inputs[0].dimensions[index] for index in equation.params["permutation"]]
    )


def _squeeze(equation: Any, inputs: Sequence[Value]) -> Operation:
    return _single(equation, inputs, _others(inputs[0], equation.params["dimensions"]))


def _slice(equation: Any, inputs: Sequence[Value]) -> Operation:
    source = inputs[0]
    dimensions, dealt = [], {}
    for index, size in enumerate(equation.outvars[0].aval.shape):
        whole = size == source.shape[index]
        dimensions.append(source.dimensions[index] if whole else new_dimension(size))
        if not whole and size > 1:
            dealt[Axis(0, index)] = index
    return _single(equation, inputs, dimensions, dealt=dealt)


def _split(equation: Any, inputs: Sequence[Value]) -> Operation:
    axis = equation.params["axis"]
    outputs = []
    for variable in equation.outvars:
        value = Value(tuple(variable.aval.shape), inputs[0].dimensions)
        dimensions = list(value.dimensions)
        dimensions[axis] = new_dimension(value.shape[axis])
        value.dimensions = tuple(dimensions)
        outputs.append(value)
    return Operation(equation, inputs, outputs, dealt={Axis(0, axis): axis})


def _concatenate(equation: Any, inputs: Sequence[Value]) -> Operation:
    axis = equation.params["dimension"]
    shape = tuple(equation.outvars[0].aval.shape)
    dimensions = list(new_dimensions(shape))
    for index in range(len(shape)):
        if index == axis:
            continue
        dimensions[index] = inputs[0].dimensions[index]
        for value in inputs[1:]:
            unify(dimensions[index], value.dimensions[index])
    dealt = {Axis(index, axis): axis for index, value in enumerate(inputs) if value.shape[axis] > 1}
    return _single(equation, inputs, dimensions, dealt=dealt)


def _stack(equation: Any, inputs: Sequence[Value]) -> Operation:
    axis = equation.params["axis"]
    for value in inputs[1:]:
        unify_each(inputs[0].dimensions, value.dimensions)
    dimensions = list(inputs[0].dimensions)
    dimensions.insert(axis, new_dimension(len(inputs)))
    return _single(equation, inputs, dimensions)


def _unstack(equation: Any, inputs: Sequence[Value]) -> Operation:
    dimensions = tuple(_others(inputs[0], [equation.params["axis"]]))
    outputs = [Value(tuple(variable.aval.shape), dimensions) for variable in equation.outvars]
    return Operation(equation, inputs, outputs)


def _whole_along(equation: Any, inputs: Sequence[Value], axes: Iterable[int]) -> Operation:
    """All goes on but along these axes, where every position matters to every other."""
    outputs = []
    for variable in equation.outvars:
        shape = tuple(variable.aval.shape)
        dimensions = [
            new_dimension(size)
            if index in axes or size != inputs[0].shape[index]
            else inputs[0].dimensions[index]
            for index, size in enumerate(shape)
        ]
        outputs.append(Value(shape, tuple(dimensions)))
    for value in inputs[1:]:
        if value.shape == inputs[0].shape:
            for index in set(range(len(value.shape))).difference(axes):
                unify(inputs[0].dimensions[index], value.dimensions[index])
    return Operation(equation, inputs, outputs)


def _cumulative(equation: Any, inputs: Sequence[Value]) -> Operation:
    return _whole_along(equation, inputs, [equation.params["axis"]])


def _sort(equation: Any, inputs: Sequence[Value]) -> Operation:
    return _whole_along(equation, inputs, [equation.params["dimension"]])


def _top_k(equation: Any, inputs: Sequence[Value]) -> Operation:
    return _whole_along(equation, inputs, [len(inputs[0].shape) - 1])


def _reverse(equation: Any, inputs: Sequence[Value]) -> Operation:
    return _whole_along(equation, inputs, equation.params["dimensions"])


def _pad(equation: Any, inputs: Sequence[Value]) -> Operation:
    return _whole_along(equation, inputs, ())


def _update_slice(equation: Any, inputs: Sequence[Value]) -> Operation:
    target, update = inputs[:2]
    for index, size in enumerate(update.shape):
        if size == target.shape[index]:
            unify(target.dimensions[index], update.dimensions[index])
    return _single(equation, inputs, target.dimensions)


def _gather(equation: Any, inputs: Sequence[Value]) -> Operation:
    """Rows of a table, for one: the table's indexed dimension is summed up, since each device has some of the rows."""
    table, indices = inputs
    numbers = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    shape = tuple(equation.outvars[0].aval.shape)
    dimensions = list(new_dimensions(shape))
    removed = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [index for index in range(len(table.shape)) if index not in removed]
    for index, target in zip(kept, numbers.offset_dims, strict=True):
        if sizes[index] == table.shape[index]:
            dimensions[target] = table.dimensions[index]
    batch = [index for index in range(len(shape)) if index not in numbers.offset_dims]
    # The last dimension of the indices is the position in the table.
    for index, target in enumerate(batch):
        dimensions[target] = indices.dimensions[index]
    for index, batched in zip(
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
    ):
        unify(table.dimensions[index], indices.dimensions[batched])
    reduced = frozenset(Axis(0, index) for index in numbers.collapsed_slice_dims)
    return _single(equation, inputs, dimensions, reduced=reduced)


def _scatter(equation: Any, inputs: Sequence[Value]) -> Operation:
    target, _, updates = inputs
    numbers = equation.params["dimension_numbers"]
    removed = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [index for index in range(len(target.shape)) if index not in removed]
    for index, window in zip(kept, numbers.update_window_dims, strict=True):
        if target.shape[index] == updates.shape[window]:
            unify(target.dimensions[index], updates.dimensions[window])
    return _single(equation, inputs, target.dimensions)


def _convolution(equation: Any, inputs: Sequence[Value]) -> Operation:
    image, kernel = inputs
    numbers = equation.params["dimension_numbers"]
    (batch, features, *_), (outputs, in_features, *_), (out_batch, out_features, *_) = numbers
    groups = equation.params["feature_group_count"]
    dimensions = list(new_dimensions(equation.outvars[0].aval.shape))
    dimensions[out_batch] = image.dimensions[batch]
    dimensions[out_features] = kernel.dimensions[outputs]
    reduced = {Axis(1, in_features)}
    if groups == 1:
        unify(image.dimensions[features], kernel.dimensions[in_features])
        reduced.add(Axis(0, features))
        return _single(equation, inputs, dimensions, reduced=frozenset(reduced))
    # Each group of input features makes a group of outputs: the groups go on, as heads do.
    if image.shape[features] == kernel.shape[outputs] == groups:
        unify(image.dimensions[features], kernel.dimensions[outputs])
    else:
        group, inside = reshape((image.dimensions[features],), (groups, image.shape[features] // groups))
        group_out, _ = reshape((kernel.dimensions[outputs],), (groups, kernel.shape[outputs] // groups))
        unify(group, group_out)
        unify(inside, kernel.dimensions[in_features])
    return _single(equation, inputs, dimensions, reduced=frozenset(reduced))


_RULES: Final[dict[str, Callable[[Any, Sequence[Value]], Operation]]] = {
    "dot_general": _product,
    **dict.fromkeys(
        ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor"), _reduction
    ),
    **dict.fromkeys(("argmax", "argmin"), _position_of_extreme),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _cumulative),
    **dict.fromkeys(("slice", "dynamic_slice"), _slice),
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter-min", "scatter-max"), _scatter),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "split": _split,
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "pad": _pad,
    "rev": _reverse,
    "sort": _sort,
    "top_k": _top_k,
    "dynamic_update_slice": _update_slice,
    "gather": _gather,
    "conv_general_dilated": _convolution,
    "optimization_barrier": _pairwise,
    "ragged_dot_general": _fresh,
    "pallas_call": _fresh,
}  # fmt: skip
