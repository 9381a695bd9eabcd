"""Rotary embeddings in the form that a TPU computes fastest, found by what they do and
not by who wrote them.

A rotary embedding exchanges features in pairs: neighbours,
`stack([-x[..., 1::2], x[..., ::2]], -1)`, or halves,
`cat([-x[..., half:], x[..., :half]], -1)`. The last dimension of an array lies in the
128 lanes of the vector unit, and taking every second of them, or writing arrays whose
last dimension is 2, makes XLA copy the array in several layouts: for 4,608 tokens and
24 heads of 128 on v6e, neighbours cost 263 us by the compiled program's schedules. The
same exchange as a product with a matrix of zeros, ones and minus ones costs 14 us, and
is exact: each sum has one term that is not zero. (The sign of a zero may differ, and a
value that is not finite makes its whole row NaN.)

Halves cost 31 us, and stay as they are written. As products they would make a prompt of
Llama-2-7B no faster, in whose program XLA then prefers to fetch weights early, and
leaves the results of 49 of 64 all-reduces in HBM: three times the traffic.

`with_matrix_products` looks at the operations that made a traced query or key. Each
array whose features are features of another one, in another order and with other signs,
becomes such a product; what is computed from them is computed again; and what is not
needed any more, the compiler drops. Pairs that are multiplied before they are joined,
and complex numbers, are brought into the same form: `stack([a * c, b * s], -1)` is
`stack([a, b], -1) * stack([c, s], -1)`.

Shapes: L any leading axes, D features of the source, E features of the result.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from tpuport.attention.feature_lanes import Lanes, find_lanes
from tpuport.attention.provenance.graph import MAX_DEPTH, Graph, Node, UnknownError
from tpuport.attention.provenance.primitives import (
    IDENTITIES,
    is_elementwise,
    run_operation,
)

# What is computed again if one of its operands is; along other axes than that of
# features.
_RERUN: Final = {
    "broadcast_in_dim", "concatenate", "cond", "dynamic_update_slice", "expand_dims", "imag", "pad", "real", "reshape",
    "slice", "squeeze", "transpose", *IDENTITIES,
}  # fmt: skip
# Arrays that are joined feature by feature are at most this part of the query or key:
# tables of angles, for four heads.
_SMALL: Final = 1 / 2
# Features that follow each other in as many pieces are moved cheaply: halves, and the
# rest of a partial rotation.
_FEW_RUNS: Final = 3


def with_matrix_products(array: jax.Array) -> jax.Array:
    """Traced. The same query or key [B, H, Q, D], whose features are exchanged by
    matrix products on a TPU.

    The array itself if it is not traced, or if nothing in its origin exchanges
    features.
    """
    rebuilt = rebuild_with_products(array)
    if rebuilt is array:
        return array
    # Elsewhere, a product of so many zeros costs more than the copies.
    return lax.platform_dependent(
        array,
        rebuilt,
        tpu=lambda before, after: after,
        default=lambda before, after: before,
    )


def rebuild_with_products(array: jax.Array) -> jax.Array:
    """Traced. As `with_matrix_products`, for any device."""
    if not isinstance(array, Tracer) or not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    try:
        return _Rebuilder(math.prod(array.shape)).rebuild(Graph().node(array))
    except UnknownError:
        return array


class _Rebuilder:
    """Computes arrays again, with exchanges of features as products.

    Args:
        size: elements of the array that is wanted: parts of it are not joined in any
            other way than by products.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rebuilt: dict[Node, Any] = {}
        self._depth = 0

    def rebuild(self, node: Node) -> Any:
        """Traced. The array of a node; the one that is there if nothing in it changes.

        Raises:
            UnknownError: an operation cannot be run again.
        """
        if node not in self._rebuilt:
            if self._depth > MAX_DEPTH:
                raise UnknownError(node.name)
            self._depth += 1
            try:
                self._rebuilt[node] = self._rebuild(node)
            except UnknownError:
                # What cannot be computed again stays as it is, and what is computed
                # from it may still change.
                self._rebuilt[node] = _existing(node)
            finally:
                self._depth -= 1
        return self._rebuilt[node]

    def _rebuild(self, node: Node) -> Any:
        if node.name == "" or node.known is not None:
            return _existing(node)
        if node.rank and _moves_features(node):
            try:
                lanes = find_lanes(node, 1)
                if not lanes.is_identity and _is_worth_a_product(lanes):
                    return self._emit(lanes)
            except UnknownError:
                # It may be a move of other axes.
                pass
        if not (is_elementwise(node) or node.name in _RERUN) or not _may_rerun(node):
            return _existing(node)
        operands = list(map(self.rebuild, node.operands))
        unchanged = all(
            operand.known is not None or array is operand.array
            for array, operand in zip(operands, node.operands, strict=True)
        )
        if unchanged and node.array is not None:
            return node.array
        return run_operation(node, operands)

    def _emit(self, lanes: Lanes) -> Any:
        """Traced. The array [L, E] that these lanes [E] describe."""
        lanes = _without_unused_parts(lanes)
        if lanes.is_identity:
            return self.rebuild(lanes.parts[0])
        if len(lanes.parts) == 1:
            return _select(self.rebuild(lanes.parts[0]), lanes)
        try:
            return self._emit_operation(lanes)
        except UnknownError:
            return self._join(lanes)

    def _emit_operation(self, lanes: Lanes) -> Any:
        """Traced. Parts that are results of the same operation: the operation on joined
        operands.
        """
        parts = list(map(_as_real, lanes.parts))
        names = {_NAMES.get(part.name, part.name) for part in parts}
        if (
            len(names) != 1
            or not all(map(is_elementwise, parts))
            or len({part.dtype for part in parts}) != 1
        ):
            raise UnknownError(parts[0].name)
        [name] = names
        first = parts[0]
        operands = []
        signs = lanes.sign
        for index in range(len(first.operands)):
            # The sign of a product is that of one factor, the sign of a sum that of all
            # terms.
            operand_signs = np.ones_like(signs)
            if name == "add" or (
                index == 0 and name in ("mul", "convert_element_type")
            ):
                operand_signs = signs
            if name == "add" and index == 1:
                subtracted = np.array([part.name == "sub" for part in parts])
                operand_signs = np.where(
                    subtracted[lanes.part], -operand_signs, operand_signs
                )
            operands.append(
                self._emit_operands(
                    [part.operands[index] for part in parts], lanes, operand_signs
                )
            )
        if name == "add":
            return operands[0] + operands[1]
        if name not in ("mul", "convert_element_type") and (signs != 1).any():
            raise UnknownError(name)
        return run_operation(first, operands)

    def _emit_operands(
        self, operands: Sequence[Node], lanes: Lanes, signs: np.ndarray
    ) -> Any:
        """Traced. The same operand of all parts, joined as the parts are."""
        if all(not operand.shape or operand.shape[-1] == 1 for operand in operands):
            if len(set(map(_identity, operands))) > 1 or (signs != 1).any():
                raise UnknownError(operands[0].name)
            return self.rebuild(operands[0])
        if len({operand.shape[:-1] for operand in operands}) > 1:
            raise UnknownError(operands[0].name)
        views = [find_lanes(operand, 1) for operand in operands]
        offsets = np.cumsum([0, *(len(view.parts) for view in views)])
        pairs = list(zip(lanes.part, lanes.lane, strict=True))
        joined = Lanes(
            tuple(part for view in views for part in view.parts),
            np.array([views[part].part[lane] + offsets[part] for part, lane in pairs]),
            np.array([views[part].lane[lane] for part, lane in pairs]),
            signs * np.array([views[part].sign[lane] for part, lane in pairs]),
        )
        return self._emit(joined)

    def _join(self, lanes: Lanes) -> Any:
        """Traced. Small arrays, such as tables of cosines and sines, feature by
        feature.
        """
        arrays = list(map(self.rebuild, lanes.parts))
        if sum(array.size for array in arrays) > _SMALL * self._size:
            raise UnknownError("join")
        starts = np.cumsum([0, *(array.shape[-1] for array in arrays)])
        joined = jnp.concatenate(arrays, axis=-1)[..., starts[lanes.part] + lanes.lane]
        return joined * lanes.sign.astype(joined.dtype)


def _select(array: jax.Array, lanes: Lanes) -> jax.Array:
    """Traced. Features of an array [L, D] in another order, with other signs: a product
    with [D, E].
    """
    matrix = np.zeros((array.shape[-1], lanes.lane.size), np.float32)
    matrix[lanes.lane, np.arange(lanes.lane.size)] = lanes.sign
    # bfloat16 is what the matrix units multiply; of anything wider they take all parts.
    precision = (
        lax.Precision.DEFAULT if array.dtype == jnp.bfloat16 else lax.Precision.HIGHEST
    )
    dimensions = (((array.ndim - 1,), (0,)), ((), ()))
    return lax.dot_general(
        array,
        jnp.asarray(matrix, array.dtype),
        dimensions,
        precision=precision,
        preferred_element_type=array.dtype,
    )


def _is_worth_a_product(lanes: Lanes) -> bool:
    """Whether the features are in so many pieces that a product is faster."""
    runs = 1 + int(np.count_nonzero(np.diff(lanes.lane) != 1))
    return runs > _FEW_RUNS


def _existing(node: Node) -> Any:
    if node.array is None:
        raise UnknownError(node.name)
    return node.array if isinstance(node.array, Tracer) else jnp.asarray(node.array)


def _may_rerun(node: Node) -> bool:
    """Whether to run an operation again: not one that writes into an argument of the
    program, such as a cache.
    """
    if node.name == "dynamic_update_slice" and node.operands[0].name == "":
        return False
    # A choice between devices has the same operands for all of them.
    if node.name == "cond" and node.operands[0].name != "platform_index":
        return False
    return node.can_rerun


def _moves_features(node: Node) -> bool:
    """Whether it may put features elsewhere; a mere reshape or slice of other axes does
    not matter.
    """
    return node.name in (
        "stack",
        "concatenate",
        "slice",
        "squeeze",
        "reshape",
        "scatter",
    )


def _without_unused_parts(lanes: Lanes) -> Lanes:
    """The lanes with each part once, and only those that are used."""
    used = list(dict.fromkeys(lanes.parts[index] for index in lanes.part))
    numbers = np.array(
        [used.index(part) if part in used else -1 for part in lanes.parts]
    )
    return lanes._replace(parts=tuple(used), part=numbers[lanes.part])


def _identity(node: Node) -> Any:
    """Equal for nodes that are the same array, or the same number."""
    return float(node.known) if node.known is not None and not node.shape else node


# A difference is a sum whose second term is negated.
_NAMES: Final = {"sub": "add"}


def _as_real(node: Node) -> Node:
    """The real or the imaginary part of a product of complex numbers, as products of
    real ones.
    """
    if node.name not in ("real", "imag") or node.operands[0].name != "mul":
        return node
    [left, right] = node.operands[0].operands
    if left.name != "complex":
        left, right = right, left
    if left.name != "complex":
        return node
    graph, (real, imaginary) = node.graph, left.operands

    def apply(
        primitive: Any, *operands: Node, shape: tuple[int, ...] = node.shape
    ) -> Node:
        return graph.apply(primitive, operands, shape, node.dtype, {})

    # Both parts of the product take the same two.
    if _as_real not in right.memo:
        right.memo[_as_real] = tuple(
            apply(part, right, shape=right.shape) for part in (lax.real_p, lax.imag_p)
        )
    other_real, other_imaginary = right.memo[_as_real]
    if node.name == "real":
        return apply(
            lax.sub_p,
            apply(lax.mul_p, real, other_real),
            apply(lax.mul_p, imaginary, other_imaginary),
        )
    return apply(
        lax.add_p,
        apply(lax.mul_p, real, other_imaginary),
        apply(lax.mul_p, imaginary, other_real),
    )
