"""An ordered map from regexes over parameter names to PartitionSpecs.

A pattern must match the whole parameter name (``re.fullmatch``), and the first pattern that does decides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuport.errors import PortError
from tpuport.sharding.plans import rules_from_model
from tpuport.sharding.specs import Rule, fit, itemsize, pad, show, size_text

logger = logging.getLogger("tpuport")


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
