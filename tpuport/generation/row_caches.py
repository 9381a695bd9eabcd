"""A user's own cache as the carry of the decoding loop: arrays with a dimension for
rows, and a fixed structure.
"""

import dataclasses
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from tpuport import compat
from tpuport.errors import PortError
from tpuport.objects import object_graph
from tpuport.objects.static_values import StaticValue


class CacheLayout(NamedTuple):
    """A cache without its arrays.

    Attributes:
        structure: of its objects.
        leaves: for each leaf the shape and dtype of an array, or a static value.
        names: of the leaves.
    """

    structure: object_graph.Structure
    leaves: tuple[Hashable, ...]
    names: tuple[str, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class RowCaches:
    """The caches of all rows, which differ in nothing but the values of their arrays:
    [B, ...] each.
    """

    arrays: list[jax.Array]
    layout: CacheLayout = dataclasses.field(metadata={"static": True})


def take_apart(cache: Any) -> tuple[list[jax.Array], CacheLayout]:
    """Traced. The arrays of one row's cache, and the rest."""
    flattener = object_graph.Flattener(caches_are_leaves=False)
    flattener.add_root("cache", cache)
    graph = flattener.graph()
    arrays: list[jax.Array] = []
    leaves: list[Hashable] = []
    for leaf in graph.leaves:
        if not object_graph.is_array(leaf):
            leaves.append(StaticValue(leaf))
            continue
        array = (
            compat.to_jax(leaf) if isinstance(leaf, torch.Tensor) else jnp.asarray(leaf)
        )
        # Without jax's weak types, which a loop would tell apart.
        arrays.append(jax.lax.convert_element_type(array, array.dtype))
        leaves.append((array.shape, array.dtype))
    return arrays, CacheLayout(graph.structure, tuple(leaves), tuple(graph.names))


def named_arrays(arrays: list[jax.Array], layout: CacheLayout) -> dict[str, jax.Array]:
    """Traced. The arrays of a cache by their names."""
    leaves = zip(layout.names, layout.leaves, strict=True)
    names = [name for name, leaf in leaves if not isinstance(leaf, StaticValue)]
    return dict(zip(names, arrays, strict=True))


def put_together(arrays: list[jax.Array], layout: CacheLayout) -> Any:
    """Traced. A cache of this layout with other arrays."""
    remaining = iter(compat.as_torch(arrays))
    leaves = [
        leaf.value if isinstance(leaf, StaticValue) else next(remaining)
        for leaf in layout.leaves
    ]
    roots, _ = object_graph.unflatten(layout.structure, leaves)
    return roots[0]


_WRITE_AT_POSITION = (
    "let make_cache(length) allocate all columns, write with index_copy_ at the position that forward gets, and set a "
    "counter to that position (cache.pos = position)"
)


def check_unchanged(
    before: CacheLayout, after: CacheLayout, fix: str = _WRITE_AT_POSITION
) -> None:
    """PortError unless a token leaves the cache as it is but for the values of its
    tensors, as a loop needs it.

    Args:
        fix: what the user can do, a user's own cache by default.
    """
    if before == after:
        return
    was = dict(zip(before.names, before.leaves, strict=True))
    is_now = dict(zip(after.names, after.leaves, strict=True))
    different = [name for name in was | is_now if was.get(name) != is_now.get(name)]
    name = next(iter(different), "cache")
    raise PortError(
        f"a token changes {name} from {_describe(was.get(name))} to {_describe(is_now.get(name))}, and the loop on the "
        "device needs a cache that keeps its structure, shapes and plain values",
        where=name,
        fix=fix,
    )


def _describe(leaf: Hashable) -> str:
    match leaf:
        case None:
            return "nothing"
        case (shape, dtype):
            return f"{dtype}{tuple(shape)}"  # type: ignore[arg-type]
    return repr(leaf)
