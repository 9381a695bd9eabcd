"""How a single weight is divided: a rule's PartitionSpec, and how much of it a mesh can
satisfy.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jax.sharding import Mesh, PartitionSpec

from tpuport.errors import PortError


@runtime_checkable
class Parameter(Protocol):
    """What a rule needs to know about a weight: torch tensors, jax arrays and their
    descriptions all fit.
    """

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


@dataclass(frozen=True)
class Rule:
    """One line of `ShardingRules`.

    Args:
        pattern: regex that must match the whole parameter name.
        spec: mesh axes of each dimension; dimensions past its end are replicated.
        heads: how many whole attention heads the sharded dimension holds, if that
            matters. An axis that would cut through a head costs collectives inside the
            attention, so the weight is replicated then.
        optional: whether a weight that the mesh does not divide is replicated with a
            warning instead of being an error. True for a vocabulary in a plan that no
            user wrote.
        reason: why the rule is as it is, if it was inferred. Two rules that differ in
            it alone are equal.
    """

    pattern: str
    spec: PartitionSpec
    heads: int | None = None
    optional: bool = False
    reason: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise PortError(
                f"the sharding rule's pattern is not a regular expression: {error}",
                where=repr(self.pattern),
                fix="a pattern is a Python regex for the whole parameter name; escape dots as '\\.'",
            ) from error
        axes = spec_axes(self.spec, self.pattern)
        # Checked here, because jax reports it without naming the rule.
        if len(axes) != len(set(axes)):
            raise PortError(
                f"the spec {format_spec(self.spec)} names an axis twice",
                where=f"sharding rule {self.pattern!r}",
                fix="a mesh axis can divide only one dimension of a weight",
            )

    def matches(self, name: str) -> bool:
        """Whether this rule's pattern matches the whole parameter name."""
        return re.fullmatch(self.pattern, name) is not None


class Misfit(NamedTuple):
    """Why a mesh cannot satisfy a spec. `kind` is "rank", "axis", "divide" or
    "heads".
    """

    kind: str
    text: str

    def is_tolerated(self, rule: Rule) -> bool:
        """Whether the weight is replicated because of it without the user's
        permission.
        """
        return self.kind == "heads" or (self.kind == "divide" and rule.optional)


def axis_names(entry: Any, pattern: str = "") -> tuple[str, ...]:
    """The mesh axes in one entry of a PartitionSpec: None, a name, or a tuple of names.

    PortError, with the pattern of the rule, for anything else, such as
    `PartitionSpec.UNCONSTRAINED`.
    """
    match entry:
        case None:
            return ()
        case str():
            return (entry,)
        # Several axes divide one dimension together.
        case tuple() if all(isinstance(name, str) for name in entry):
            return entry
    raise PortError(
        f"{entry!r} is not an entry a weight's PartitionSpec can have",
        where=f"sharding rule {pattern!r}" if pattern else None,
        fix="each entry is None, an axis name, or a tuple of axis names",
    )


def spec_axes(spec: PartitionSpec, pattern: str = "") -> list[str]:
    """The mesh axes of all entries, with the errors of `axis_names`."""
    return list(
        itertools.chain.from_iterable(axis_names(entry, pattern) for entry in spec)
    )


def count_parts(mesh: Mesh, axes: Iterable[str]) -> int:
    """Into how many parts these axes of the mesh divide a dimension together."""
    return prod(mesh.shape[axis] for axis in axes)


REPLICATED = Rule("", PartitionSpec())
"""The rule of a parameter that no pattern matches."""


def format_spec(spec: PartitionSpec) -> str:
    """The short form that users write: ``P('tp', None)``."""
    return f"P({', '.join(map(repr, spec))})"


def pad(spec: PartitionSpec, rank: int) -> PartitionSpec:
    """`spec` with exactly `rank` entries: missing ones are None, entries past the rank
    are dropped.
    """
    entries = tuple(spec)[:rank]
    return PartitionSpec(*entries, *(None,) * (rank - len(entries)))


def fit(
    rule: Rule, shape: tuple[int, ...], mesh: Mesh
) -> tuple[PartitionSpec, list[Misfit]]:
    """The part of a rule's spec that `mesh` can satisfy for a weight of `shape`, and
    why the rest was dropped.

    The resulting spec has one entry for each dimension. A dimension is replicated if
    one of its axes is missing from the mesh or its axes do not divide it.
    """
    misfits: list[Misfit] = []
    if len(rule.spec) > len(shape):
        text = f"{format_spec(rule.spec)} has {len(rule.spec)} entries, the shape is {shape}"
        misfits.append(Misfit("rank", text))
    entries: list[Any] = [None] * len(shape)
    # A spec that is too long is an error of the audit; here its beginning is used as
    # far as it goes.
    for dimension, entry in enumerate(pad(rule.spec, len(shape))):
        misfit = _find_misfit(
            rule, dimension, shape[dimension], axis_names(entry), mesh
        )
        if misfit is None:
            entries[dimension] = entry
        else:
            misfits.append(misfit)
    return PartitionSpec(*entries), misfits


def _find_misfit(
    rule: Rule, dimension: int, size: int, axes: tuple[str, ...], mesh: Mesh
) -> Misfit | None:
    """Why `axes` cannot divide this dimension, or None if they can."""
    # First, because an axis that the mesh lacks has no size.
    missing = [repr(axis) for axis in axes if axis not in mesh.shape]
    if missing:
        text = f"the mesh has no axis {', '.join(missing)}; it has {', '.join(mesh.axis_names)}"
        return Misfit("axis", text)
    parts = count_parts(mesh, axes)
    label = f"{'+'.join(axes)}={parts}"
    # Before the size: 16 features divide over four devices, but of two heads each would
    # hold a half.
    if rule.heads and rule.heads % parts:
        return Misfit("heads", f"{rule.heads} heads do not divide evenly over {label}")
    if size % parts:
        return Misfit(
            "divide", f"dimension {dimension} is {size}, which {label} does not divide"
        )
    return None


def dtype_bytes(dtype: Any) -> int:
    """Bytes of one element of a torch, NumPy or JAX dtype."""
    size = getattr(dtype, "itemsize", None)
    # On a scalar class such as np.float16, `itemsize` is a descriptor.
    return size if isinstance(size, int) else np.dtype(dtype).itemsize


def format_bytes(count: int) -> str:
    """A number of bytes in decimal units."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count} B"
