"""What each operation of a traced program does to the dimensions of its arrays.

A function here takes an equation and its inputs, makes classes of the dimensions that
have to be alike, and returns the operation: its outputs, whose dimensions are those of
the inputs where they go on, and the dimensions that it sums up (`reduced`) or of which
it takes or joins parts (`dealt`). An input's dimension that is none of these is needed
whole.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, Final, NamedTuple

from tpuport.attention.mask import broadcasts_to
from tpuport.sharding.inference.factors import (
    Dimension,
    Dimensions,
    new_dimension,
    new_dimensions,
    reshape,
    unify,
    unify_each,
)

Shape = tuple[int, ...]


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """An array of the program. Values are compared by identity: two arrays of one shape
    are two values.

    Attributes:
        shape: of the whole array.
        dimensions: the factors of each entry of the shape.
    """

    shape: Shape
    dimensions: Dimensions

    @property
    def elements(self) -> int:
        """The number of elements of the whole array."""
        return prod(self.shape)

    def without(self, indices: Iterable[int]) -> list[Dimension]:
        """Its dimensions but for these, in order."""
        return [self.dimensions[index] for index in _remaining(self, indices)]


class Axis(NamedTuple):
    """A dimension of one of an operation's inputs."""

    input: int
    dimension: int


@dataclasses.dataclass(eq=False, slots=True)
class Operation:
    """One equation of the program.

    Attributes:
        equation: the JaxprEqn, as it was traced.
        enclosing: the equations whose jaxprs it is in, the innermost first.
        inputs: one value for each operand.
        outputs: one value for each result.
        reduced: the dimensions that it sums up, such as those that a product contracts.
        dealt: the dimensions of which it takes a part, or that become a part of one,
            each with the output's dimension.
        is_unused: whether no result of the program depends on it.
    """

    equation: Any
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    reduced: frozenset[Axis] = frozenset()
    dealt: dict[Axis, int] = dataclasses.field(default_factory=dict)
    enclosing: tuple[Any, ...] = ()
    is_unused: bool = False

    @property
    def name(self) -> str:
        """The name of the primitive, such as "dot_general"."""
        return self.equation.primitive.name

    def dimension(self, axis: Axis) -> Dimension:
        """The dimension of an input that an axis names."""
        return self.inputs[axis.input].dimensions[axis.dimension]

    @property
    def batch(self) -> tuple[Axis, ...]:
        """The dimensions of a product's first input along which it is many products."""
        if self.name != "dot_general":
            return ()
        # ((left contracted, right contracted), (left batch, right batch))
        _, (dimensions, _) = self.equation.params["dimension_numbers"]
        return tuple(Axis(0, dimension) for dimension in dimensions)


def new_value(variable: Any) -> Value:
    """A value with the shape of a variable of the jaxpr, and dimensions of its own."""
    shape = _shape(variable)
    return Value(shape, new_dimensions(shape))


def describe(equation: Any, inputs: Sequence[Value]) -> Operation:
    """The operation of an equation that runs no jaxpr of its own."""
    rule = _RULES.get(equation.primitive.name, _elementwise)
    return rule(equation, inputs)


def _shape(variable: Any) -> Shape:
    # Tokens, which order side effects, have no shape.
    return tuple(getattr(variable.aval, "shape", ()))


def _operation(
    equation: Any,
    inputs: Sequence[Value],
    dimensions: Iterable[Dimension],
    **facts: Any,
) -> Operation:
    """An operation whose outputs all have these dimensions. `facts` are `reduced` and
    `dealt`.
    """
    dimensions = tuple(dimensions)
    outputs = [Value(_shape(variable), dimensions) for variable in equation.outvars]
    return Operation(equation, inputs, outputs, **facts)


def _fresh(equation: Any, inputs: Sequence[Value]) -> Operation:
    """No dimension of an input goes on, so that each is needed whole."""
    return Operation(equation, inputs, list(map(new_value, equation.outvars)))


def _remaining(value: Value, excluded: Iterable[int]) -> list[int]:
    """The indices of a value's dimensions but for these, in order."""
    return sorted(set(range(len(value.shape))).difference(excluded))


def _carried(
    source: Value, shape: Shape, pairs: Iterable[tuple[int, int]]
) -> list[Dimension]:
    """Dimensions for an output of this shape: the source's where the output has all of
    their positions, else new ones.

    Args:
        pairs: (index of the source's dimension, index of the output's).
    """
    dimensions = list(new_dimensions(shape))
    for index, target in pairs:
        if source.shape[index] == shape[target]:
            dimensions[target] = source.dimensions[index]
    return dimensions


def _unify_along(first: Value, second: Value, pairs: Iterable[tuple[int, int]]) -> None:
    """Make pairs of dimensions the same where they have one size.

    Args:
        pairs: (index of the first value's dimension, index of the second's).
    """
    for left, right in pairs:
        if first.shape[left] == second.shape[right]:
            unify(first.dimensions[left], second.dimensions[right])


def _axes(position: int, dimensions: Iterable[int]) -> frozenset[Axis]:
    """Dimensions of the input at this position."""
    return frozenset(Axis(position, dimension) for dimension in dimensions)


def _elementwise(equation: Any, inputs: Sequence[Value]) -> Operation:
    """Also of operations that have no rule, if their arrays have the shapes of an
    elementwise one.
    """
    output_shapes = set(map(_shape, equation.outvars))
    # Scalars fit any shape, and have no dimension that could be divided.
    arrays = [value for value in inputs if value.shape]
    if len(output_shapes) != 1:
        return _fresh(equation, inputs)
    [shape] = output_shapes
    if not all(broadcasts_to(value.shape, shape) for value in arrays):
        return _fresh(equation, inputs)
    dimensions = [
        _common_dimension(arrays, index, size) for index, size in enumerate(shape)
    ]
    return _operation(equation, inputs, dimensions)


def _common_dimension(arrays: Sequence[Value], index: int, size: int) -> Dimension:
    """The dimension that these arrays share at an index; those that have size 1 there
    are repeated, and have none.
    """
    alike = [value.dimensions[index] for value in arrays if value.shape[index] == size]
    if not alike:
        return new_dimension(size)
    first, *others = alike
    for other in others:
        unify(first, other)
    return first


def _pairwise(equation: Any, inputs: Sequence[Value]) -> Operation:
    """Each output is the input at its place."""
    outputs = [Value(value.shape, value.dimensions) for value in inputs]
    return Operation(equation, inputs, outputs)


def _product(equation: Any, inputs: Sequence[Value]) -> Operation:
    (left_contracted, right_contracted), (left_batch, right_batch) = equation.params[
        "dimension_numbers"
    ]
    left, right = inputs
    left_paired = (*left_contracted, *left_batch)
    right_paired = (*right_contracted, *right_batch)
    _unify_along(left, right, zip(left_paired, right_paired, strict=True))
    # The order of a dot_general's result: batch, then what is left of each side.
    batch = [left.dimensions[index] for index in left_batch]
    dimensions = [*batch, *left.without(left_paired), *right.without(right_paired)]
    reduced = _axes(0, left_contracted) | _axes(1, right_contracted)
    return _operation(equation, inputs, dimensions, reduced=reduced)


def _reduction(equation: Any, inputs: Sequence[Value]) -> Operation:
    axes = equation.params["axes"]
    reduced = frozenset(
        itertools.starmap(Axis, itertools.product(range(len(inputs)), axes))
    )
    return _operation(equation, inputs, inputs[0].without(axes), reduced=reduced)


def _position_of_extreme(equation: Any, inputs: Sequence[Value]) -> Operation:
    """argmax and argmin: positions of different devices cannot simply be added up, so
    `reduced` is empty.
    """
    return _operation(equation, inputs, inputs[0].without(equation.params["axes"]))


def _broadcast(equation: Any, inputs: Sequence[Value]) -> Operation:
    pairs = enumerate(equation.params["broadcast_dimensions"])
    # The other inputs are dynamic sizes, which are not used here.
    return _operation(
        equation, inputs, _carried(inputs[0], tuple(equation.params["shape"]), pairs)
    )


def _reshape(equation: Any, inputs: Sequence[Value]) -> Operation:
    return _operation(
        equation, inputs, reshape(inputs[0].dimensions, _shape(equation.outvars[0]))
    )


def _transpose(equation: Any, inputs: Sequence[Value]) -> Operation:
    order = equation.params["permutation"]
    return _operation(
        equation, inputs, [inputs[0].dimensions[index] for index in order]
    )


def _squeeze(equation: Any, inputs: Sequence[Value]) -> Operation:
    return _operation(
        equation, inputs, inputs[0].without(equation.params["dimensions"])
    )


def _slice(equation: Any, inputs: Sequence[Value]) -> Operation:
    source = inputs[0]
    shape = _shape(equation.outvars[0])
    # A single position is on one device: nothing of it could be dealt to the others.
    dealt = {
        Axis(0, index): index
        for index, size in enumerate(shape)
        if 1 < size < source.shape[index]
    }
    return _operation(
        equation, inputs, _carried(source, shape, _in_place(shape)), dealt=dealt
    )


def _in_place(shape: Shape) -> list[tuple[int, int]]:
    """Pairs of indices for an output whose dimensions are in the order of the
    input's.
    """
    return [(index, index) for index in range(len(shape))]


def _replaced(dimensions: Dimensions, index: int, size: int) -> Dimensions:
    """The dimensions with a new one of this size at an index."""
    return (*dimensions[:index], new_dimension(size), *dimensions[index + 1 :])


def _split(equation: Any, inputs: Sequence[Value]) -> Operation:
    axis = equation.params["axis"]
    outputs = list(map(new_value, equation.outvars))
    for output in outputs:
        # Each output has a dimension of its own: the parts of a fused projection need
        # not be alike.
        output.dimensions = _replaced(inputs[0].dimensions, axis, output.shape[axis])
    return Operation(equation, inputs, outputs, dealt={Axis(0, axis): axis})


def _concatenate(equation: Any, inputs: Sequence[Value]) -> Operation:
    axis = equation.params["dimension"]
    first, *others = inputs
    beside = _remaining(first, [axis])
    for value in others:
        _unify_along(first, value, zip(beside, beside, strict=True))
    dimensions = _replaced(first.dimensions, axis, _shape(equation.outvars[0])[axis])
    dealt = {
        Axis(index, axis): axis
        for index, value in enumerate(inputs)
        if value.shape[axis] > 1
    }
    return _operation(equation, inputs, dimensions, dealt=dealt)


def _stack(equation: Any, inputs: Sequence[Value]) -> Operation:
    first, *others = inputs
    for value in others:
        unify_each(first.dimensions, value.dimensions)
    dimensions = list(first.dimensions)
    dimensions.insert(equation.params["axis"], new_dimension(len(inputs)))
    return _operation(equation, inputs, dimensions)


def _unstack(equation: Any, inputs: Sequence[Value]) -> Operation:
    return _operation(equation, inputs, inputs[0].without([equation.params["axis"]]))


def _whole_along(
    equation: Any, inputs: Sequence[Value], axes: Iterable[int]
) -> Operation:
    """All goes on but along these axes, where every position matters to every other."""
    source, *others = inputs
    beside = _remaining(source, axes)
    pairs = list(zip(beside, beside, strict=True))
    outputs = list(map(new_value, equation.outvars))
    for output in outputs:
        output.dimensions = tuple(_carried(source, output.shape, pairs))
    for value in others:
        # Of one shape are the arrays that are sorted by the first; scalars are what a
        # pad is filled with.
        if value.shape == source.shape:
            _unify_along(source, value, pairs)
    return Operation(equation, inputs, outputs)


def _cumulative(equation: Any, inputs: Sequence[Value]) -> Operation:
    return _whole_along(equation, inputs, [equation.params["axis"]])


def _sort(equation: Any, inputs: Sequence[Value]) -> Operation:
    return _whole_along(equation, inputs, [equation.params["dimension"]])


def _top_k(equation: Any, inputs: Sequence[Value]) -> Operation:
    # Releases of jax that name no axis always take the last.
    axis = equation.params.get("axis", len(inputs[0].shape) - 1)
    return _whole_along(equation, inputs, [axis])


def _reverse(equation: Any, inputs: Sequence[Value]) -> Operation:
    return _whole_along(equation, inputs, equation.params["dimensions"])


def _pad(equation: Any, inputs: Sequence[Value]) -> Operation:
    # No axis is named: those that are padded have another size afterwards.
    return _whole_along(equation, inputs, ())


def _fourier(equation: Any, inputs: Sequence[Value]) -> Operation:
    # A transform of n dimensions is along the last n.
    rank = len(inputs[0].shape)
    return _whole_along(
        equation, inputs, range(rank - len(equation.params["fft_lengths"]), rank)
    )


def _update_slice(equation: Any, inputs: Sequence[Value]) -> Operation:
    target, update = inputs[:2]
    _unify_along(target, update, _in_place(target.shape))
    return _operation(equation, inputs, target.dimensions)


def _gather(equation: Any, inputs: Sequence[Value]) -> Operation:
    """Such as a look-up of rows: the table's indexed dimension is summed up, as each
    device has some of the rows.
    """
    table, indices = inputs
    numbers = equation.params["dimension_numbers"]
    shape = _shape(equation.outvars[0])
    removed = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    # What is left of the table's dimensions goes to `offset_dims`, whose sizes are
    # those of the slices.
    window = zip(_remaining(table, removed), numbers.offset_dims, strict=True)
    dimensions = _carried(table, shape, window)
    looked_up = [
        index for index in range(len(shape)) if index not in numbers.offset_dims
    ]
    # The last dimension of the indices is the position in the table, and has no place
    # in the output.
    for index, target in enumerate(looked_up):
        dimensions[target] = indices.dimensions[index]
    batching = zip(
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
    )
    _unify_along(table, indices, batching)
    return _operation(
        equation, inputs, dimensions, reduced=_axes(0, numbers.collapsed_slice_dims)
    )


def _scatter(equation: Any, inputs: Sequence[Value]) -> Operation:
    target, _, updates = inputs
    numbers = equation.params["dimension_numbers"]
    removed = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = zip(_remaining(target, removed), numbers.update_window_dims, strict=True)
    _unify_along(target, updates, window)
    return _operation(equation, inputs, target.dimensions)


def _convolution(equation: Any, inputs: Sequence[Value]) -> Operation:
    image, kernel = inputs
    # Which dimension is which, of the image, the kernel and the output; what follows
    # are the spatial ones.
    numbers = equation.params["dimension_numbers"]
    (batch, features, *_), (outputs, in_features, *_), (out_batch, out_features, *_) = (
        numbers
    )
    groups = equation.params["feature_group_count"]
    dimensions = list(new_dimensions(_shape(equation.outvars[0])))
    dimensions[out_batch] = image.dimensions[batch]
    dimensions[out_features] = kernel.dimensions[outputs]
    if groups == 1:
        unify(image.dimensions[features], kernel.dimensions[in_features])
        reduced = frozenset([Axis(0, features), Axis(1, in_features)])
        return _operation(equation, inputs, dimensions, reduced=reduced)
    if not image.shape[features] == kernel.shape[outputs] == groups:
        # compat computes it on each device: XLA divides the channels of groups wrongly.
        return _fresh(equation, inputs)
    # Depthwise: each input feature makes one output.
    unify(image.dimensions[features], kernel.dimensions[outputs])
    # The image's features are not summed up, as each of them goes on.
    return _operation(
        equation, inputs, dimensions, reduced=frozenset([Axis(1, in_features)])
    )


_RULES: Final[dict[str, Callable[[Any, Sequence[Value]], Operation]]] = {
    "dot_general": _product,
    **dict.fromkeys(
        ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor"), _reduction
    ),
    **dict.fromkeys(("argmax", "argmin"), _position_of_extreme),
    # Each running total of a device needs those of the devices before it.
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
    "fft": _fourier,
    # Their outputs may have the shapes of elementwise ones, but a position depends on
    # its neighbours.
    **dict.fromkeys(("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"), _fresh),
    **dict.fromkeys(("cholesky", "triangular_solve"), _fresh),
    # Kernels and ragged products name no dimension that could be followed.
    "ragged_dot_general": _fresh,
    "pallas_call": _fresh,
}  # fmt: skip
