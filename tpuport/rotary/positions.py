"""Tables over positions, for rotary modules that are given positions as values: rows are taken by position.

transformers' modules take `position_ids` of any shape. diffusers' image models (Flux and its kin) take ids with a last
dimension of one position an axis, and give each axis some of the columns. What a module does is found from what it
returns, and a table is kept only if it gives, bit for bit, what the module gives for positions drawn at random.
"""

import dataclasses
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import Mesh

from tpuport import compat
from tpuport.rotary.finding import Arguments, Shape
from tpuport.rotary.hosting import Host, ValuesRead
from tpuport.rotary.tables import put

# Positions drawn for the comparison with the module itself.
_DRAWN = 64


@dataclasses.dataclass(frozen=True)
class Plan:
    """How calls of one module are served from its table.

    Attributes:
        place: of the positions among the leaves of the call's arguments.
        others: of the leaves that must be the same in each call, with their signatures.
        axes: positions that one row of ids has; None for positions that stand for themselves.
        rank: dimensions of the positions.
        columns: for each output, runs of columns (first, end, axis that decides on them).
        trailing: for each output, its dimensions behind those of the positions.
        like: place of the tensor whose dtype the output has; None where it has the table's.
    """

    tree: Any
    place: int
    others: tuple[tuple[int, Hashable], ...]
    axes: int | None
    rank: int
    columns: tuple[tuple[tuple[int, int, int], ...], ...]
    trailing: tuple[tuple[int, ...], ...]
    like: int | None
    output: Any


@dataclasses.dataclass(frozen=True)
class Positions:
    """A table over positions. A pytree; each array is [positions, columns]."""

    arrays: tuple[Any, ...]
    plan: Plan

    @property
    def nbytes(self) -> int:
        """Bytes on each device."""
        return sum(array.nbytes for array in self.arrays)

    def serves(self, arguments: Arguments) -> bool:
        """Whether this is a call that the table was made for, whatever its positions and their number are."""
        return arguments.tree == self.plan.tree and _matches(arguments, self.plan)

    def output(self, arguments: Arguments) -> Any:
        """Traced. The rows of the positions in these arguments; NaN where a position is outside of the table."""
        ids = compat.as_jax(arguments.leaves[self.plan.place]).astype(jnp.int32)
        dtype = None if self.plan.like is None else arguments.leaves[self.plan.like].dtype
        leaves = []
        for array, columns, trailing in zip(self.arrays, self.plan.columns, self.plan.trailing, strict=True):
            rows = _rows(array, ids, columns, self.plan.axes)
            rows = rows.reshape(*rows.shape[:-1], *trailing)
            leaves.append(compat.wrap(rows if dtype is None else rows.astype(compat.jax_dtype(dtype))))
        return jax.tree_util.tree_unflatten(self.plan.output, leaves)


jax.tree_util.register_dataclass(Positions, data_fields=["arrays"], meta_fields=["plan"])


def _matches(arguments: Arguments, plan: Plan) -> bool:
    ids = arguments.leaves[plan.place]
    if not isinstance(ids, torch.Tensor) or ids.ndim != plan.rank:
        return False
    return _others(arguments, plan.place) == plan.others and plan.axes in (None, ids.shape[-1])


def _others(arguments: Arguments, place: int) -> tuple[tuple[int, Hashable], ...]:
    """The leaves beside the positions that decide on the table: all but tensors, whose dtype alone counts."""
    return tuple(
        (number, "tensor" if isinstance(leaf, torch.Tensor | Shape) else (type(leaf), repr(leaf)))
        for number, leaf in enumerate(arguments.leaves)
        if number != place
    )


def _rows(
    array: jax.Array, ids: jax.Array, columns: tuple[tuple[int, int, int], ...], axes: int | None
) -> jax.Array:
    """Traced. array [N, C], ids [...] or [..., axes] -> [..., C]."""
    # A negative index would count from the end.
    ids = jnp.where(ids < 0, array.shape[0], ids)
    if axes is None:
        return jnp.take(array, ids, axis=0, mode="fill")
    runs = [jnp.take(array[:, a:b], ids[..., axis], axis=0, mode="fill") for a, b, axis in columns]
    return jnp.concatenate(runs, axis=-1)


def make(
    host: Host, arguments: Arguments, place: int, like: int | None, length: int, mesh: Mesh
) -> Positions | None:
    """The table of a module over positions 0 to `length` - 1; None for a module that it would not serve.

    Args:
        arguments: of an example call, `Shape`s for tensors.
        place: of the positions among the arguments' leaves.
        like: of the tensor whose dtype the module's output takes; None for a module that has ids with axes.
    """
    example = arguments.leaves[place]
    axes = None if like is not None else int(example.shape[-1])
    lead = len(example.shape) - (axes is not None)
    if like is not None:  # float32 here; cast to the dtype of each call when it is looked up
        arguments = arguments.replaced({like: Shape(arguments.leaves[like].shape, torch.float32)})
    try:
        tables, structure, columns = _computed(host, arguments, place, axes, lead, length)
        plan = Plan(
            arguments.tree, place, _others(arguments, place), axes, len(example.shape), columns,
            tuple(tuple(table.shape[1:]) for table in tables), like, structure,
        )  # fmt: skip
        made = Positions(tuple(put(table.reshape(length, -1), mesh) for table in tables), plan)
        return made if _agrees(host, arguments, made, length) else None
    except (ValuesRead, _NotByPosition):
        return None


class _NotByPosition(Exception):
    """The output of a module does not have the form that a table over positions gives."""


def _call(host: Host, arguments: Arguments, place: int, ids: torch.Tensor) -> tuple[list[torch.Tensor], Any]:
    leaves, structure = jax.tree_util.tree_flatten(host(arguments.replaced({place: ids})))
    if not all(isinstance(leaf, torch.Tensor) and leaf.is_floating_point() for leaf in leaves):
        raise _NotByPosition
    return leaves, structure


def _computed(
    host: Host, arguments: Arguments, place: int, axes: int | None, lead: int, length: int
) -> tuple[list[torch.Tensor], Any, tuple]:
    """(a table [length, ...] for each output, structure of the outputs, columns of each by axis)."""
    dtype = arguments.leaves[place].dtype
    every = torch.arange(length).to(dtype)
    shape = (*(1,) * (lead - 1), length)
    if axes is None:
        tables, structure = _call(host, arguments, place, every.reshape(shape))
        tables = [_by_row(table, shape, length) for table in tables]
        return tables, structure, ((),) * len(tables)
    all_at_once = every[:, None].expand(length, axes).reshape(*shape, axes)
    tables, structure = _call(host, arguments, place, all_at_once)
    tables = [_by_row(table, shape, length) for table in tables]
    varied = []
    for axis in range(axes):
        ids = torch.zeros(*shape, axes, dtype=dtype)
        ids[..., axis] = every.reshape(shape)
        alone, _ = _call(host, arguments, place, ids)
        flat = [_by_row(table, shape, length).reshape(length, -1) for table in alone]
        varied.append([(table != table[:1]).any(dim=0) for table in flat])
    return tables, structure, tuple(_runs([v[n] for v in varied]) for n in range(len(tables)))


def _by_row(table: torch.Tensor, shape: tuple[int, ...], length: int) -> torch.Tensor:
    if tuple(table.shape[: len(shape)]) != shape:
        raise _NotByPosition
    return table.reshape(length, *table.shape[len(shape) :])


def _runs(varied: list[torch.Tensor]) -> tuple[tuple[int, int, int], ...]:
    """For each axis, which columns it changes -> runs of columns that one axis decides on."""
    changed = torch.stack(varied)
    if (changed.sum(dim=0) > 1).any():
        raise _NotByPosition
    owner = changed.int().argmax(dim=0).tolist()
    starts = [n for n in range(len(owner)) if n == 0 or owner[n] != owner[n - 1]]
    return tuple((a, b, owner[a]) for a, b in zip(starts, [*starts[1:], len(owner)], strict=True))


def _agrees(host: Host, arguments: Arguments, made: Positions, length: int) -> bool:
    """Whether the table gives what the module gives, for random positions."""
    example = arguments.leaves[made.plan.place]
    axes = () if made.plan.axes is None else (made.plan.axes,)
    shape = (*example.shape[: len(example.shape) - len(axes) - 1], _DRAWN, *axes)
    ids = torch.randint(0, length, shape, generator=torch.Generator().manual_seed(0))
    expected, _ = _call(host, arguments, made.plan.place, ids.to(example.dtype))
    given = arguments.replaced({made.plan.place: compat.wrap(compat.to_jax(ids))})
    got = jax.tree_util.tree_leaves(compat.as_jax(made.output(given)))
    return all(torch.equal(compat.to_torch(a), b.float()) for a, b in zip(got, expected, strict=True))
