"""An ordered map from regexes over parameter names to PartitionSpecs.

A pattern must match the whole parameter name (``re.fullmatch``), and the first pattern that does decides.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuport.errors import PortError

logger = logging.getLogger("tpuport")


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
        named = [axis for entry in self.spec for axis in axes_of(entry, self.pattern)]
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


def axes_of(entry: Any, where: str = "") -> tuple[str, ...]:
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
        axes = axes_of(entry)
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


class ShardingRules(Mapping[str, PartitionSpec]):
    r"""An immutable, ordered map of regex to PartitionSpec; the first pattern that matches a whole name wins.

    >>> rules = ShardingRules({r".*\.q_proj\.weight": PartitionSpec("tp", None)})
    >>> rules.spec("layers.0.q_proj.weight", (64, 64))
    PartitionSpec('tp', None)

    Linear weights are `[out, in]` as torch has them. A parameter that no pattern matches is replicated.
    """

    __slots__ = ("_rules",)
    _rules: tuple[Rule, ...]

    def __init__(self, mapping: Mapping[str, Any] | Iterable[Rule]) -> None:
        object.__setattr__(self, "_rules", tuple(_rules_of(mapping)))

    @classmethod
    def from_model(cls, model: Any) -> ShardingRules:
        """Rules from the model's own tensor-parallel plan, as `tpuport.sharding.plans` reads it."""
        from tpuport.sharding.plans import rules_from_model

        return cls(rules_from_model(model))

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules in the order they are tried."""
        return self._rules

    def override(self, rules: Mapping[str, Any] | Iterable[Rule]) -> ShardingRules:
        """New rules in which the given ones are tried first; an equal pattern is replaced."""
        first = tuple(_rules_of(rules))
        patterns = {rule.pattern for rule in first}
        return ShardingRules((*first, *(rule for rule in self._rules if rule.pattern not in patterns)))

    def rule(self, name: str) -> Rule | None:
        """The rule that decides for the parameter called `name`, or None."""
        return next((rule for rule in self._rules if rule.matches(name)), None)

    def spec(self, name: str, shape: Iterable[int]) -> PartitionSpec:
        """The spec for one parameter, one entry a dimension; replicated when no rule matches.

        Raises:
            PortError: the matching spec has more entries than the shape has dimensions.
        """
        shape, rule = tuple(shape), self.rule(name)
        if rule is None:
            return pad(PartitionSpec(), len(shape))
        if len(rule.spec) > len(shape):
            raise PortError(
                f"the spec {show(rule.spec)} has more entries than {shape} has dimensions",
                where=f"{name}, sharding rule {rule.pattern!r}",
                fix="shorten the spec, or narrow the pattern so that it leaves this parameter out",
            )
        return pad(rule.spec, len(shape))

    def shardings(self, parameters: Mapping[str, Any], mesh: Mesh) -> dict[str, NamedSharding]:
        """A sharding for every parameter, in the order given, never failing: `audit` finds the errors.

        What the mesh cannot hold is replicated along that dimension, and logged with the reason.
        """
        placed, reasons = {}, {}
        for name, value in parameters.items():
            rule, shape = self.rule(name) or Rule("", PartitionSpec()), tuple(value.shape)
            spec, misfits = fit(rule, shape, mesh)
            placed[name] = NamedSharding(mesh, spec)
            for misfit in misfits:
                reasons.setdefault((rule.pattern, misfit.text, show(spec)), {})[name] = value
        for (pattern, text, spec), weights in reasons.items():
            first, own = (
                next(iter(weights)),
                {id(value): name for name, value in weights.items()},
            )  # tied ones once
            held = sum(
                itemsize(weights[name].dtype) * prod(placed[name].shard_shape(tuple(weights[name].shape)))
                for name in own.values()
            )
            logger.warning(
                "rule %r places %d weights as %s (%s%s), %s on each device: %s",
                pattern, len(weights), spec, first, ", ..." if len(weights) > 1 else "", size_text(held), text,
            )  # fmt: skip
        return placed

    def __getitem__(self, pattern: str) -> PartitionSpec:
        for rule in self._rules:
            if rule.pattern == pattern:
                return rule.spec
        raise KeyError(pattern)

    def __iter__(self) -> Iterator[str]:
        return (rule.pattern for rule in self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardingRules) and self._rules == other._rules

    def __hash__(self) -> int:
        return hash(self._rules)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"ShardingRules cannot be changed; use override() for new ones (setting {name!r})"
        )

    def __repr__(self) -> str:
        width = max((len(repr(rule.pattern)) for rule in self._rules), default=0)
        lines = [f"    {rule.pattern!r:<{width}}: {show(rule.spec)}," for rule in self._rules]
        return "\n".join(["ShardingRules({", *lines, "})"]) if lines else "ShardingRules({})"


def _rules_of(given: Mapping[str, Any] | Iterable[Rule]) -> Iterator[Rule]:
    if isinstance(given, ShardingRules):
        yield from given.rules
    elif isinstance(given, Mapping):
        for pattern, spec in given.items():
            if not isinstance(spec, PartitionSpec):
                raise PortError(
                    f"the rule's value is {type(spec).__name__}, not a PartitionSpec",
                    where=f"sharding rule {pattern!r}",
                    fix="write PartitionSpec('tp', None), or PartitionSpec() to replicate",
                )
            yield Rule(str(pattern), spec)
    else:
        yield from given
