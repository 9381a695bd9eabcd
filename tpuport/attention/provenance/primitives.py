"""What primitives mean: which are elementwise, which only move elements, what they give for known operands.

From that: arrays that depend on nothing traced, and the few values that the elements of an array can have.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tpuport.attention.provenance.graph import Node, UnknownError, analysis

_NUMPY_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "add": np.add, "add_any": np.add, "and": np.bitwise_and, "eq": np.equal, "ge": np.greater_equal,
    "gt": np.greater, "le": np.less_equal, "lt": np.less, "max": np.maximum, "min": np.minimum, "mul": np.multiply,
    "ne": np.not_equal, "neg": np.negative, "not": np.invert, "or": np.bitwise_or, "sign": np.sign,
    "sub": np.subtract, "xor": np.bitwise_xor,
}  # fmt: skip
# Elementwise too, but NumPy may round otherwise than the device does.
_OTHER_ELEMENTWISE = frozenset(
    "cbrt ceil clamp convert_element_type cos div erf exp exp2 expm1 floor integer_pow is_finite log log1p logistic "
    "nextafter pow reduce_precision rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical "
    "sin sqrt square tanh".split()
)
_ELEMENTWISE = _NUMPY_FUNCTIONS.keys() | _OTHER_ELEMENTWISE
_MOVES = frozenset({"broadcast_in_dim", "reshape", "rev", "slice", "transpose"})
# What returns its operands, perhaps elsewhere or in another order of execution.
IDENTITIES = frozenset(
    {"copy", "copy_p", "optimization_barrier", "reshard", "sharding_constraint", "name", "device_put"}
)
# What gives nothing but elements of its first operand.
_SELECTIONS = _MOVES | frozenset(
    "squeeze expand_dims tile dynamic_slice reduce_max reduce_min cummax cummin split".split()
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


Values = tuple[Any, ...] | None


def pick_axes(values: Sequence[Any], axes: Iterable[int]) -> tuple[Any, ...]:
    """The values of these axes, in their order."""
    return tuple(values[axis] for axis in axes)


def place_axes(values: Iterable[Any], axes: Iterable[int], rank: int, default: Any) -> tuple[Any, ...]:
    """The values at these axes of an array of this rank, and `default` at the others."""
    by_axis = dict(zip(axes, values, strict=True))
    return tuple(by_axis.get(axis, default) for axis in range(rank))


def is_elementwise(node: Node) -> bool:
    """Whether each element comes from the elements at the same index.

    An operand without axes counts everywhere, and so does one of size 1 along its axis.
    """
    return node.name in _ELEMENTWISE and all(_broadcasts(operand, node) for operand in node.operands)


def _broadcasts(operand: Node, node: Node) -> bool:
    if not operand.shape:
        return True
    sizes = zip(operand.shape, node.shape, strict=False)
    return operand.rank == node.rank and all(own in (1, size) for own, size in sizes)


def is_move(node: Node) -> bool:
    """Whether each element is an element of the operand, whose index depends on its own index alone."""
    return node.name in _MOVES


def apply_numpy(node: Node, *operands: np.ndarray) -> np.ndarray | None:
    """The elementwise operation done by NumPy; None if that may not be what the device does."""
    if node.name in _NUMPY_FUNCTIONS:
        return np.asarray(_NUMPY_FUNCTIONS[node.name](*operands), node.dtype)
    if node.name == "convert_element_type":
        return operands[0].astype(node.dtype)
    if node.name == "select_n":
        return np.choose(operands[0].astype(np.int64), operands[1:])
    return None


def reshape_groups(before: tuple[int, ...], after: tuple[int, ...]) -> list[AxisGroup]:
    """How a reshape joins and splits axes: the smallest groups with equal products, axes of size 1 left out."""
    # Products of 0 are equal too early.
    if 0 in before:
        return [AxisGroup(list(range(len(before))), list(range(len(after))))]
    # An axis of size 1 fits anywhere, and would make groups that are not the smallest.
    old_axes = [axis for axis, size in enumerate(before) if size != 1]
    new_axes = [axis for axis, size in enumerate(after) if size != 1]
    groups: list[AxisGroup] = []
    while old_axes:
        group = AxisGroup([old_axes.pop(0)], [new_axes.pop(0)])
        groups.append(group)
        old_size, new_size = before[group.before[0]], after[group.after[0]]
        # The smaller side takes its next axis until both are equal.
        while old_size != new_size:
            if old_size < new_size:
                group.before.append(old_axes.pop(0))
                old_size *= before[group.before[-1]]
            else:
                group.after.append(new_axes.pop(0))
                new_size *= after[group.after[-1]]
    return groups


@analysis(lambda node: False)
def is_constant(node: Node) -> bool:
    """Whether nothing traced takes part in the node's value."""
    return order_operations(node) is not None


def order_operations(node: Node) -> list[Node] | None:
    """What a node is computed of, each after its operands, the node last; None if something traced is among it."""
    pending = [node]
    done: set[Node] = set()
    order: list[Node] = []
    while pending:
        current = pending.pop()
        if current in done:
            continue
        is_known = current.known is not None
        if not is_known and (current.equation is None or current.equation.effects):
            return None
        operands = () if is_known else current.operands
        waiting = [operand for operand in operands if operand not in done]
        if waiting:
            # Once more after its operands.
            pending += [current, *waiting]
        else:
            done.add(current)
            order.append(current)
        if len(pending) + len(done) > _MAX_OPERATIONS:
            return None
    return order


def run_operation(node: Node, operands: list[jax.Array]) -> jax.Array:
    """The node's operation on other operands of the same kind.

    Raises:
        UnknownError: the node is a leaf, or its operation has side effects.
    """
    if node.equation is None or node.equation.effects:
        raise UnknownError(node.name)
    primitive = node.equation.primitive
    results = primitive.bind(*operands, **node.params)
    return results[node.output] if primitive.multiple_results else results


def gather_axis(node: Node) -> int | None:
    """The axis along which a gather takes whole slices at a list of indices; None for another operation."""
    if node.name != "gather":
        return None
    numbers = node.params["dimension_numbers"]
    source, indices = node.operands
    if len(numbers.collapsed_slice_dims) != 1 or numbers.start_index_map != numbers.collapsed_slice_dims:
        return None
    (axis,) = numbers.collapsed_slice_dims
    # Everything else about the gather has to be as `array[:, indices]` makes it.
    other_axes = tuple(other for other in range(source.rank) if other != axis)
    whole_slice = (*source.shape[:axis], 1, *source.shape[axis + 1 :])
    form = (
        numbers.offset_dims,
        tuple(node.params["slice_sizes"]),
        indices.rank,
        numbers.operand_batching_dims,
    )
    if form != (other_axes, whole_slice, 2, ()):
        return None
    return axis


@analysis(lambda node: None)
def gather_indices(node: Node) -> np.ndarray | None:
    """The indices that a gather takes along `gather_axis`, if they are known and inside of the array."""
    axis = gather_axis(node)
    if axis is None or node.shape[axis] > _MAX_GATHER_INDICES or not is_constant(node.operands[1]):
        return None
    # Inside of a trace jax would make the constant a tracer.
    with jax.ensure_compile_time_eval():
        indices = np.asarray(_compute(node.operands[1]))[:, 0]
    if not indices.size or indices.min() < 0 or indices.max() >= node.operands[0].shape[axis]:
        return None
    return indices


def _compute(node: Node) -> jax.Array:
    """The value of a node for which `is_constant` holds."""
    arrays: dict[Node, jax.Array] = {}
    for current in order_operations(node) or ():
        if current.known is not None:
            arrays[current] = jnp.asarray(current.known)
        else:
            arrays[current] = run_operation(current, [arrays[operand] for operand in current.operands])
    return arrays[node]


def _any_value(node: Node) -> Values:
    return (np.False_, np.True_) if node.dtype == np.bool_ else None


@analysis(_any_value)
def possible_values(node: Node) -> Values:
    """Every value that an element can have, each once and none NaN; None if they are not known, or too many."""
    values = _find_values(node)
    return _any_value(node) if values is None else values


def _find_values(node: Node) -> Values:
    if node.known is not None:
        return _array_values(np.asarray(node.known))
    if is_elementwise(node):
        return _few_values(combination.result for combination in operand_combinations(node))
    if node.name in IDENTITIES and node.output < len(node.operands):
        return possible_values(node.operands[node.output])
    if node.name in _SELECTIONS or gather_indices(node) is not None:
        return possible_values(node.operands[0])
    if node.name in ("concatenate", "pad"):
        parts = [possible_values(operand) for operand in node.operands]
        return None if None in parts else _few_values(itertools.chain.from_iterable(parts))
    if is_outer_product(node):
        products = itertools.product(*map(possible_values, node.operands))
        return tuple({node.dtype.type(left * right) for left, right in products})
    return None


def is_outer_product(node: Node) -> bool:
    """Whether it is a matrix product of zeros and ones over an axis of size 1: a matrix unit keeps those exactly."""
    if node.name != "dot_general":
        return False
    contracted, _ = node.params["dimension_numbers"][0]
    has_own_dtype = {operand.dtype for operand in node.operands} == {node.dtype}
    are_numbers = all(has_only(operand, {0, 1}.__contains__) for operand in node.operands)
    return are_numbers and has_own_dtype and all(node.operands[0].shape[axis] == 1 for axis in contracted)


def has_only(node: Node, predicate: Callable[[Any], bool]) -> bool:
    """Whether all elements are known to satisfy a predicate."""
    values = possible_values(node)
    return values is not None and all(map(predicate, values))


def _few_values(values: Iterable[Any]) -> Values:
    unique = tuple(dict.fromkeys(values))
    # NaN would be equal to none of the values that conditions compare with.
    has_nan = any(value != value for value in unique)
    return unique if 0 < len(unique) <= _MAX_VALUES and not has_nan else None


def _array_values(array: np.ndarray) -> Values:
    if array.size == 0:
        return None
    if array.dtype == np.bool_:
        return _few_values([array.min(), array.max()])
    if array.size > _MAX_ELEMENTS:
        return None
    # One more than allowed is enough to know that there are too many.
    return _few_values(np.unique(array)[: _MAX_VALUES + 1])


def operand_combinations(node: Node) -> list[Combination]:
    """What an operation gives for each choice of values of its `distinct_operands`.

    Empty if the values are not known, or there are many, or the operation is not elementwise.
    """
    operands = distinct_operands(node)
    if not is_elementwise(node):
        return []
    # An operand of unknown values leaves no combination.
    values = [possible_values(operand) or () for operand in operands]
    if not 0 < math.prod(map(len, values)) <= _MAX_COMBINATIONS:
        return []
    choices = list(itertools.product(*values))
    columns = dict(zip(operands, zip(*choices, strict=True), strict=True))
    arrays = [np.asarray(columns[operand], operand.dtype) for operand in node.operands]
    results = apply_numpy(node, *arrays)
    if results is None:
        return []
    return list(map(Combination, choices, results))


def distinct_operands(node: Node) -> list[Node]:
    """The operands, each once."""
    return list(dict.fromkeys(node.operands))
