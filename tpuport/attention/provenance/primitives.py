"""What primitives mean: which are elementwise, which only move elements, what they give
for known operands.

From that: arrays that depend on nothing traced, and the few values that the elements of
an array can have.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tpuport.attention.mask import broadcasts_to
from tpuport.attention.provenance.graph import Node, UnknownError, analysis


def _select(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    # The condition may be boolean, which NumPy does not take as an index.
    return np.choose(which.astype(np.int64), cases)


# The result is converted to the dtype of the node.
_NUMPY_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "add": np.add, "add_any": np.add, "and": np.bitwise_and, "convert_element_type": np.asarray,
    "eq": np.equal, "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal, "lt": np.less, "max": np.maximum,
    "min": np.minimum, "mul": np.multiply, "ne": np.not_equal, "neg": np.negative, "not": np.invert,
    "or": np.bitwise_or, "select_n": _select, "sign": np.sign, "sub": np.subtract, "xor": np.bitwise_xor,
}  # fmt: skip
# Elementwise too, but NumPy may round otherwise than the device does.
_OTHER_ELEMENTWISE = frozenset(
    "cbrt ceil clamp cos div erf exp exp2 expm1 floor integer_pow is_finite log log1p logistic "
    "nextafter pow reduce_precision rem round rsqrt shift_left shift_right_arithmetic shift_right_logical "
    "sin sqrt square tanh".split()
)
_ELEMENTWISE = _NUMPY_FUNCTIONS.keys() | _OTHER_ELEMENTWISE
_MOVES = frozenset({"broadcast_in_dim", "reshape", "rev", "slice", "transpose"})
# What returns its operands, perhaps elsewhere or in another order of execution.
IDENTITIES = frozenset(
    {
        "copy",
        "copy_p",
        "optimization_barrier",
        "reshard",
        "sharding_constraint",
        "name",
        "device_put",
    }
)
# What gives nothing but elements of its first operand.
_SELECTIONS = _MOVES | frozenset(
    "squeeze expand_dims tile dynamic_slice reduce_max reduce_min cummax cummin split unstack".split()
)
_MAX_GATHER_INDICES = 1 << 16
_MAX_OPERATIONS = 500
_MAX_VALUES = 4
_MAX_COMBINATIONS = 64
# Of a larger constant the values are not looked at.
_MAX_ELEMENTS = 1 << 16


class AxisGroup(NamedTuple):
    """Axes that a reshape turns into others, with the same number of elements."""

    before: list[int]
    after: list[int]


class Combination(NamedTuple):
    """Values of the different operands of an operation, and what it gives for them."""

    operands: tuple[Any, ...]
    result: Any


# Of the elements of an array; empty if they are not known.
Values = tuple[Any, ...]


def pick_axes(values: Sequence[Any], axes: Iterable[int]) -> tuple[Any, ...]:
    """The values of these axes, in their order."""
    return tuple(values[axis] for axis in axes)


def place_axes(
    values: Iterable[Any], axes: Iterable[int], rank: int, default: Any
) -> tuple[Any, ...]:
    """The values at these axes of an array of this rank, and `default` at the
    others.
    """
    by_axis = dict(zip(axes, values, strict=True))
    return tuple(by_axis.get(axis, default) for axis in range(rank))


def is_elementwise(node: Node) -> bool:
    """Whether each element comes from the elements at the same index.

    An operand without axes counts everywhere, and so does one of size 1 along its axis.
    """
    if node.name not in _ELEMENTWISE:
        return False
    return all(
        not operand.shape or broadcasts_to(operand.shape, node.shape)
        for operand in node.operands
    )


def is_move(node: Node) -> bool:
    """Whether each element is an element of the operand, whose index depends on its own
    index alone.
    """
    return node.name in _MOVES


def reshape_groups(before: tuple[int, ...], after: tuple[int, ...]) -> list[AxisGroup]:
    """How a reshape joins and splits axes: the smallest groups with equal products,
    axes of size 1 left out.
    """
    # Products of 0 are equal too early.
    if 0 in before:
        return [AxisGroup(list(range(len(before))), list(range(len(after))))]
    # An axis of size 1 fits anywhere, and would make groups that are not the smallest.
    old_axes, new_axes = (
        np.flatnonzero(np.not_equal(before, 1)),
        np.flatnonzero(np.not_equal(after, 1)),
    )
    old_products = np.cumprod(before, dtype=np.int64)[old_axes]
    new_products = np.cumprod(after, dtype=np.int64)[new_axes]
    # A group ends wherever both sides have reached the same product.
    ends = np.intersect1d(old_products, new_products)
    old_groups = np.split(old_axes, np.searchsorted(old_products, ends, side="right"))
    new_groups = np.split(new_axes, np.searchsorted(new_products, ends, side="right"))
    # Nothing is left behind the last end.
    pairs = zip(old_groups[:-1], new_groups[:-1], strict=True)
    return [AxisGroup(old.tolist(), new.tolist()) for old, new in pairs]


def axis_before_reshape(node: Node, axis: int) -> int | None:
    """The axis of the operand that a reshape leaves as it is, as this one; None if the
    reshape joins or splits it.
    """
    for group in reshape_groups(node.operands[0].shape, node.shape):
        if group.after == [axis] and len(group.before) == 1:
            return group.before[0]
    return None


@analysis(lambda node: False)
def is_constant(node: Node) -> bool:
    """Whether nothing traced takes part in the node's value."""
    return order_operations(node) is not None


def order_operations(node: Node) -> list[Node] | None:
    """What a node is computed of, each after its operands, the node last; None if
    something traced is among it.
    """
    # Not recursive: a chain of operations may be longer than Python's stack.
    pending = [node]
    order: dict[Node, None] = {}
    while pending:
        current = pending.pop()
        if current in order:
            continue
        if current.known is None and not current.can_rerun:
            return None
        waiting = [
            operand for operand in needed_operands(current) if operand not in order
        ]
        if waiting:
            # Once more after its operands.
            pending += [current, *waiting]
        else:
            order[current] = None
        if len(pending) + len(order) > _MAX_OPERATIONS:
            return None
    return list(order)


def needed_operands(node: Node) -> tuple[Node, ...]:
    """What has to be computed before a node: nothing if its values are known."""
    return node.operands if node.known is None else ()


def run_operation(node: Node, operands: list[jax.Array]) -> jax.Array:
    """The node's operation on other operands of the same kind.

    Raises:
        UnknownError: the node is a leaf, or its operation has side effects.
    """
    if not node.can_rerun:
        raise UnknownError(node.name)
    primitive = node.equation.primitive
    results = primitive.bind(*operands, **node.params)
    return results[node.output] if primitive.multiple_results else results


def gather_axis(node: Node) -> int | None:
    """The axis along which a gather takes whole slices at a list of indices; None for
    another operation.
    """
    if node.name != "gather":
        return None
    numbers = node.params["dimension_numbers"]
    source, indices = node.operands
    axis = min(numbers.collapsed_slice_dims, default=0)
    form = (
        numbers.collapsed_slice_dims, numbers.start_index_map, numbers.offset_dims,
        tuple(node.params["slice_sizes"]), indices.rank, numbers.operand_batching_dims,
    )  # fmt: skip
    # Everything about the gather has to be as `array[:, indices]` makes it.
    other_axes = (*range(axis), *range(axis + 1, source.rank))
    whole_slice = (*source.shape[:axis], 1, *source.shape[axis + 1 :])
    if form != ((axis,), (axis,), other_axes, whole_slice, 2, ()):
        return None
    return axis


@analysis(lambda node: None)
def gather_indices(node: Node) -> np.ndarray | None:
    """The indices that a gather takes along `gather_axis`, if they are known and inside
    of the array.
    """
    axis = gather_axis(node)
    if (
        axis is None
        or node.shape[axis] > _MAX_GATHER_INDICES
        or not is_constant(node.operands[1])
    ):
        return None
    # Inside of a trace jax would make the constant a tracer.
    with jax.ensure_compile_time_eval():
        indices = np.asarray(_compute(node.operands[1]))[:, 0]
    if (
        not indices.size
        or indices.min() < 0
        or indices.max() >= node.operands[0].shape[axis]
    ):
        return None
    return indices


def _compute(node: Node) -> jax.Array:
    """The value of a node for which `is_constant` holds."""
    arrays: dict[Node, jax.Array] = {}
    for current in order_operations(node) or ():
        if current.known is not None:
            arrays[current] = jnp.asarray(current.known)
        else:
            arrays[current] = run_operation(
                current, [arrays[operand] for operand in current.operands]
            )
    return arrays[node]


def _any_value(node: Node) -> Values:
    return (np.False_, np.True_) if node.dtype == np.bool_ else ()


@analysis(_any_value)
def possible_values(node: Node) -> Values:
    """Every value that an element can have, each once and none NaN; empty if they are
    not known, or too many.
    """
    return _find_values(node) or _any_value(node)


def _find_values(node: Node) -> Values:
    if node.known is not None:
        return _array_values(np.asarray(node.known))
    if is_elementwise(node):
        return _few_values(
            combination.result for combination in operand_combinations(node)
        )
    return _VALUE_RULES.get(node.name, _no_values)(node)


def _no_values(node: Node) -> Values:
    return ()


def _values_of_source(node: Node) -> Values:
    return possible_values(node.operands[0])


def _values_of_identity(node: Node) -> Values:
    # An operation that only orders others has results without operands.
    if node.output >= len(node.operands):
        return ()
    return possible_values(node.operands[node.output])


def _values_of_gather(node: Node) -> Values:
    # Beyond the end of the array, a gather gives another value.
    if gather_indices(node) is None:
        return ()
    return possible_values(node.operands[0])


def _values_of_parts(node: Node) -> Values:
    parts = list(map(possible_values, node.operands))
    # Of one part nothing is known, so neither of the whole.
    if () in parts:
        return ()
    return _few_values(itertools.chain.from_iterable(parts))


def _values_of_product(node: Node) -> Values:
    if not is_outer_product(node):
        return ()
    products = itertools.product(*map(possible_values, node.operands))
    return tuple({node.dtype.type(left * right) for left, right in products})


_VALUE_RULES: dict[str, Callable[[Node], Values]] = (
    dict.fromkeys(_SELECTIONS, _values_of_source)
    | dict.fromkeys(IDENTITIES, _values_of_identity)
    | dict.fromkeys(("concatenate", "pad"), _values_of_parts)
    | {"gather": _values_of_gather, "dot_general": _values_of_product}
)


def is_outer_product(node: Node) -> bool:
    """Whether a matrix product is one of zeros and ones over an axis of size 1: a
    matrix unit keeps those exactly.
    """
    contracted, _ = node.params["dimension_numbers"][0]
    has_own_dtype = {operand.dtype for operand in node.operands} == {node.dtype}
    are_numbers = all(
        has_only(operand, {0, 1}.__contains__) for operand in node.operands
    )
    return (
        are_numbers
        and has_own_dtype
        and all(node.operands[0].shape[axis] == 1 for axis in contracted)
    )


def has_only(node: Node, predicate: Callable[[Any], bool]) -> bool:
    """Whether all elements are known to satisfy a predicate."""
    values = possible_values(node)
    return bool(values) and all(map(predicate, values))


def _few_values(values: Iterable[Any]) -> Values:
    unique = tuple(dict.fromkeys(values))
    # NaN, which is not equal to itself, would be equal to none of the values that
    # conditions compare with.
    if len(unique) > _MAX_VALUES or any(value != value for value in unique):
        return ()
    return unique


def _array_values(array: np.ndarray) -> Values:
    if array.dtype == np.bool_ and array.size:
        return _few_values([array.min(), array.max()])
    if array.size > _MAX_ELEMENTS:
        return ()
    # One more than allowed is enough to know that there are too many.
    return _few_values(np.unique(array)[: _MAX_VALUES + 1])


def operand_combinations(node: Node) -> list[Combination]:
    """What an operation gives for each choice of values of its `distinct_operands`.

    Empty if the values are not known, or there are many, or the operation is not
    elementwise.
    """
    # Of other elementwise operations, NumPy's results may not be the device's.
    function = _NUMPY_FUNCTIONS.get(node.name)
    if function is None or not is_elementwise(node):
        return []
    operands = distinct_operands(node)
    # An operand of unknown values leaves no combination.
    values = list(map(possible_values, operands))
    if not 0 < math.prod(map(len, values)) <= _MAX_COMBINATIONS:
        return []
    choices = list(itertools.product(*values))
    columns = dict(zip(operands, zip(*choices, strict=True), strict=True))
    arrays = [np.asarray(columns[operand], operand.dtype) for operand in node.operands]
    results = np.asarray(function(*arrays), node.dtype)
    return list(map(Combination, choices, results))


def distinct_operands(node: Node) -> list[Node]:
    """The operands, each once."""
    return list(dict.fromkeys(node.operands))
