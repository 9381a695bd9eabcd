"""How one weight is divided: a rule's PartitionSpec, and what of it a mesh can hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from jax.sharding import Mesh, PartitionSpec

from tpuport.errors import PortError


class Parameter(Protocol):
    """What a rule needs to know of a weight: torch tensors, jax arrays and their descriptions all fit."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


@dataclass(frozen=True)
class Rule:
    """One line of the map.

    Args:
        pattern: regex that must match the whole parameter name.
        spec: mesh axes for each dimension; shorter than the weight's rank means replicated in the rest.
        heads: how many whole attention heads the sharded dimension holds, where that matters. An axis that
            would cut through a head costs collectives inside the attention, so the weight is replicated then.
        optional: whether a weight that the mesh does not divide is replicated with a warning; it is an error
            otherwise. So is a vocabulary's rule in a plan that no user wrote.
    """

    pattern: str
    spec: PartitionSpec
    heads: int | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise PortError(
                f"the sharding rule's pattern is not a regular expression: {error}",
                where=repr(self.pattern),
                fix="a pattern is a Python regex for the whole parameter name; escape dots as '\\.'",
            ) from error
        named = [axis for entry in self.spec for axis in axis_names(entry, self.pattern)]
        if len(named) != len(set(named)):
            raise PortError(
                f"the spec {show(self.spec)} names an axis twice",
                where=f"sharding rule {self.pattern!r}",
                fix="a mesh axis can divide only one dimension of a weight",
            )

    def matches(self, name: str) -> bool:
        return re.fullmatch(self.pattern, name) is not None


class Misfit(NamedTuple):
    """Why a spec cannot be taken as it stands. `kind` is one of rank, axis, divide, heads."""

    kind: str
    text: str

    def is_let_pass(self, rule: Rule) -> bool:
        """Whether the weight is replicated for it without anyone's leave."""
        return self.kind == "heads" or (self.kind == "divide" and rule.optional)


def axis_names(entry: Any, where: str = "") -> tuple[str, ...]:
    """The mesh axes in one entry of a PartitionSpec: None, a name, or a tuple of names."""
    names = () if entry is None else (entry,) if isinstance(entry, str) else entry
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise PortError(
            f"{entry!r} is not an entry a weight's PartitionSpec can have",
            where=f"sharding rule {where!r}" if where else None,
            fix="each entry is None, an axis name, or a tuple of axis names",
        )
    return names


def show(spec: PartitionSpec) -> str:
    """The short form that users write: ``P('tp', None)``."""
    return f"P({', '.join(repr(entry) for entry in spec)})"


def fit(rule: Rule, shape: tuple[int, ...], mesh: Mesh) -> tuple[PartitionSpec, list[Misfit]]:
    """The rule's spec as `mesh` can hold a weight of `shape`, and what had to be given up for it.

    The result has one entry a dimension. A dimension whose axes are missing, or do not divide it, is
    replicated.
    """
    misfits = []
    if len(rule.spec) > len(shape):
        misfits.append(
            Misfit("rank", f"{show(rule.spec)} has {len(rule.spec)} entries, the shape is {shape}")
        )
    entries: list[Any] = []
    for dim, (size, entry) in enumerate(zip(shape, pad(rule.spec, len(shape)), strict=True)):
        axes = axis_names(entry)
        problem = _misfit(rule, dim, size, axes, mesh)
        misfits += [problem] if problem else []
        entries.append(entry if axes and problem is None else None)
    return PartitionSpec(*entries), misfits


def _misfit(rule: Rule, dim: int, size: int, axes: tuple[str, ...], mesh: Mesh) -> Misfit | None:
    if missing := [axis for axis in axes if axis not in mesh.shape]:
        have = ", ".join(mesh.axis_names)
        return Misfit("axis", f"the mesh has no axis {', '.join(map(repr, missing))}; it has {have}")
    parts = prod(mesh.shape[axis] for axis in axes)
    label = "+".join(axes)
    if axes and rule.heads and rule.heads % parts:
        return Misfit("heads", f"{rule.heads} heads cannot be shared out whole over {label}={parts}")
    if size % parts:
        return Misfit("divide", f"dimension {dim} is {size}, which {label}={parts} does not divide")
    return None


def itemsize(dtype: Any) -> int:
    """Bytes of one element of a torch, NumPy or JAX dtype."""
    return (
        int(dtype.itemsize) if isinstance(getattr(dtype, "itemsize", None), int) else np.dtype(dtype).itemsize
    )


def size_text(count: int) -> str:
    """A number of bytes in decimal units."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count} B"


def pad(spec: PartitionSpec, rank: int) -> PartitionSpec:
    """`spec` with exactly `rank` entries: None for what it does not name, entries past the rank dropped."""
    entries = tuple(spec)[:rank]
    return PartitionSpec(*entries, *(None,) * (rank - len(entries)))
