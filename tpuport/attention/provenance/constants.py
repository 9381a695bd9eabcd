"""Arrays that depend on nothing traced, computed while tracing; and elements chosen by such indices."""

import jax
import jax.numpy as jnp
import numpy as np

from tpuport.attention.provenance.graph import Node, Unknown, analysis

_MOST_INDICES = 1 << 16
_MOST_OPERATIONS = 500


@analysis(lambda node: False)
def is_constant(node: Node) -> bool:
    """Whether nothing traced takes part in the node's value."""
    return in_order(node) is not None


def in_order(node: Node) -> list[Node] | None:
    """What a node is computed of, each after its operands, the node last; None where something traced is among it."""
    pending, done, order = [node], set(), []
    while pending:
        at = pending.pop()
        if at in done:
            continue
        operands = () if at.known is not None else at.operands
        if at.known is None and (at.equation is None or at.equation.effects):
            return None
        waiting = [operand for operand in operands if operand not in done]
        if waiting:
            pending += [at, *waiting]
        else:
            done.add(at)
            order.append(at)
        if len(pending) + len(done) > _MOST_OPERATIONS:
            return None
    return order


def run(node: Node, operands: list[jax.Array]) -> jax.Array:
    """The node's operation on other operands of the same kind. Raises Unknown where it has none to run again."""
    if node.equation is None or node.equation.effects:
        raise Unknown(node.name)
    found = node.equation.primitive.bind(*operands, **node.params)
    return found[node.output] if node.equation.primitive.multiple_results else found


def chosen_axis(node: Node) -> int | None:
    """The axis along which a gather takes whole slices at a list of places; None for another gather."""
    if node.name != "gather":
        return None
    numbers, source = node.params["dimension_numbers"], node.operands[0]
    if len(numbers.collapsed_slice_dims) != 1 or numbers.start_index_map != numbers.collapsed_slice_dims:
        return None
    (axis,) = numbers.collapsed_slice_dims
    others = tuple(at for at in range(len(source.shape)) if at != axis)
    whole = tuple(1 if at == axis else size for at, size in enumerate(source.shape))
    plain = (
        numbers.offset_dims == others
        and len(node.operands[1].shape) == 2
        and not numbers.operand_batching_dims
    )
    return axis if plain and tuple(node.params["slice_sizes"]) == whole else None


@analysis(lambda node: None)
def chosen(node: Node) -> np.ndarray | None:
    """The places that a gather takes along `chosen_axis`, where they are known and all there are."""
    axis = chosen_axis(node)
    if axis is None or node.shape[axis] > _MOST_INDICES or not is_constant(node.operands[1]):
        return None
    with jax.ensure_compile_time_eval():
        places = np.asarray(_computed(node.operands[1]))[:, 0]
    inside = places.size and places.min() >= 0 and places.max() < node.operands[0].shape[axis]
    return places if inside else None


def _computed(node: Node) -> jax.Array:
    made: dict[Node, jax.Array] = {}
    for at in in_order(node) or ():
        known = at.known
        made[at] = jnp.asarray(known) if known is not None else run(at, [made[o] for o in at.operands])
    return made[node]
