"""Along which axes the elements of an array may differ."""

from collections.abc import Callable

import numpy as np

from tpuport.attention.provenance.graph import Node, analysis
from tpuport.attention.provenance.operations import groups, is_elementwise
from tpuport.attention.provenance.rewriting import simplify

Axes = tuple[bool, ...]
MOST_ELEMENTS = 4096 * 4096


def _anywhere(node: Node) -> Axes:
    return tuple(size > 1 for size in node.shape)


@analysis(_anywhere)
def varies(node: Node) -> Axes:
    """For each axis, whether two elements that differ in their place along it alone may differ in value.

    False is certain; True may be a lack of knowledge.
    """
    node = simplify(node)
    if node.known is not None:
        found = _of_values(np.asarray(node.known)) if node.known.size <= MOST_ELEMENTS else _anywhere(node)
    elif is_elementwise(node):
        found = _either(node.operands, len(node.shape))
    else:
        found = _RULES.get(node.name, _anywhere)(node)
    return tuple(may and size > 1 for may, size in zip(found, node.shape, strict=True))


def _of_values(values: np.ndarray) -> Axes:
    return tuple(
        bool(size > 1 and (values != np.take(values, [0], axis)).any())
        for axis, size in enumerate(values.shape)
    )


def _either(operands: tuple[Node, ...], rank: int) -> Axes:
    found = [varies(operand) for operand in operands if operand.shape]
    return tuple(any(may[axis] for may in found) for axis in range(rank))


def _broadcast(node: Node) -> Axes:
    source = varies(node.operands[0])
    at = dict(zip(node.params["broadcast_dimensions"], source, strict=True))
    return tuple(at.get(axis, False) for axis in range(len(node.shape)))


def _reshape(node: Node) -> Axes:
    if node.params.get("dimensions") is not None:
        return _anywhere(node)
    source = varies(node.operands[0])
    found = [False] * len(node.shape)
    for old, new in groups(node.operands[0].shape, node.shape):
        for axis in new:
            found[axis] = any(source[axis] for axis in old)
    return tuple(found)


def _transpose(node: Node) -> Axes:
    source = varies(node.operands[0])
    return tuple(source[axis] for axis in node.params["permutation"])


def _same(node: Node) -> Axes:
    return varies(node.operands[0])


def _along(node: Node) -> Axes:
    """An operation along one axis, which may make the elements along it differ."""
    axis: int = node.params["axis" if "axis" in node.params else "dimension"]
    found = list(_either(node.operands, len(node.shape)))
    found[axis] = True
    return tuple(found)


def _pad(node: Node) -> Axes:
    source = varies(node.operands[0])
    return tuple(
        may or any(config) for may, config in zip(source, node.params["padding_config"], strict=True)
    )


def _reduction(node: Node) -> Axes:
    source = varies(node.operands[0])
    return tuple(may for axis, may in enumerate(source) if axis not in node.params["axes"])


def _iota(node: Node) -> Axes:
    return tuple(axis == node.params["dimension"] for axis in range(len(node.shape)))


def _gather(node: Node) -> Axes:
    """Along an axis of its indices as they differ, along an axis of the slices as the operand differs."""
    numbers, (source, indices) = node.params["dimension_numbers"], node.operands
    if numbers.operand_batching_dims:
        return _anywhere(node)
    of_source = iter(may for at, may in enumerate(varies(source)) if at not in numbers.collapsed_slice_dims)
    of_indices = iter(varies(indices)[:-1])
    return tuple(
        next(of_source if at in numbers.offset_dims else of_indices) for at in range(len(node.shape))
    )


_RULES: dict[str, Callable[[Node], Axes]] = {
    "broadcast_in_dim": _broadcast, "reshape": _reshape, "transpose": _transpose, "slice": _same, "rev": _same,
    "dynamic_slice": _same, "concatenate": _along, "pad": _pad, "iota": _iota, "sort": _along, "cumsum": _along,
    "cummax": _along, "cummin": _along, "cumprod": _along, "gather": _gather,
} | {
    f"reduce_{name}": _reduction for name in ("and", "max", "min", "or", "prod", "sum", "xor")
}  # fmt: skip
