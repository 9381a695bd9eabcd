"""An ordered map from regexes over parameter names to PartitionSpecs.

A pattern must match the whole parameter name (``re.fullmatch``), and the first pattern
that does decides.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import starmap
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuport.base.plurals import count_noun
from tpuport.errors import PortError
from tpuport.lint.paths import write_atomically
from tpuport.sharding.plans import rules_from_model
from tpuport.sharding.rules_format import format_rules, plain_entry, read_rules
from tpuport.sharding.specs import (
    REPLICATED,
    Rule,
    dtype_bytes,
    fit,
    format_bytes,
    format_spec,
    pad,
)

logger = logging.getLogger("tpuport")


class _Fallback(NamedTuple):
    """A rule that some weights could not follow: the reason, and the spec they got
    instead.
    """

    pattern: str
    reason: str
    spec: str


class ShardingRules(Mapping[str, PartitionSpec]):
    r"""An immutable, ordered map of regex to PartitionSpec; the first pattern that
    matches a whole name wins.

    >>> rules = ShardingRules({r".*\.q_proj\.weight": PartitionSpec("tp", None)})
    >>> rules.spec("layers.0.q_proj.weight", (64, 64))
    PartitionSpec('tp', None)

    Linear weights are `[out, in]` as torch has them. A parameter that no pattern
    matches is replicated.
    """

    __slots__ = ("_rules",)
    _rules: tuple[Rule, ...]

    def __init__(self, mapping: Mapping[str, Any] | Iterable[Rule]) -> None:
        # Past this class's own __setattr__, which refuses every assignment.
        object.__setattr__(self, "_rules", _as_rules(mapping))

    @classmethod
    def from_model(cls, model: Any) -> ShardingRules:
        """Rules from the model's own tensor-parallel plan, as `tpuport.sharding.plans`
        reads it.

        Raises:
            PortError: `model` is not a torch module, or its plan has a style that
                tpuport does not know.
        """
        return cls(rules_from_model(model))

    @classmethod
    def infer(cls, model: Any, inputs: Any, mesh: Mesh | None = None) -> ShardingRules:
        """Rules from the structure of the model's forward pass, for a model without a
        plan; each has its reason.

        Nothing is allocated: weights and inputs may be on the meta device.
        `tpuport.sharding.infer_plan` tells about each weight.

        Args:
            inputs: of one call: arguments by name, a tuple of them, or the only one. A
                sequence should be longer than one token; other sizes matter little.
            mesh: that the rules are for: they leave whole what its `tp` does not
                divide. None leaves whole what no power of two divides, such as a
                vocabulary of 50257 tokens.

        Raises:
            PortError: `model` is not a torch module, or the mesh has no axis `tp`.
            CannotTrace: its code cannot be traced.
        """
        # Imported late: tracing needs torchax, which rules do not.
        from tpuport.sharding.inference import infer_plan

        return cls(infer_plan(model, inputs, mesh).rules)

    @classmethod
    def of_entries(cls, rules: Mapping[str, Iterable[Any]]) -> ShardingRules:
        """From plain values, as a file has them: for each dimension None, an axis or a
        list of axes.
        """
        return cls(
            {
                pattern: PartitionSpec(*map(_as_entry, entries))
                for pattern, entries in rules.items()
            }
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> ShardingRules:
        """Rules from a file of JSON, or of TOML if its name ends in .toml: what `write`
        and `--write-rules` write.

        Raises:
            PortError: the file cannot be read, or an entry is not a rule; it names the
                entry.
        """
        return cls.of_entries(read_rules(Path(path), str(path)))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the rules into a file for `read` and `--rules`; in TOML with their
        reasons as comments.

        A file does not say how many heads a weight has, so rules that were inferred are
        best inferred for the mesh that they are used on.

        Raises:
            PortError: the file cannot be written.
        """
        entries = {
            rule.pattern: list(map(plain_entry, rule.spec)) for rule in self._rules
        }
        text = format_rules(
            Path(path), entries, {rule.pattern: rule.reason for rule in self._rules}
        )
        try:
            write_atomically(Path(path), text.encode())
        except OSError as error:
            raise PortError(
                f"the rules cannot be written: {error.strerror}", where=str(path)
            ) from None

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules in the order they are tried."""
        return self._rules

    def override(self, rules: Mapping[str, Any] | Iterable[Rule]) -> ShardingRules:
        """New rules in which the ones passed are tried first; they replace rules of an
        equal pattern.
        """
        overriding = _as_rules(rules)
        patterns = {rule.pattern for rule in overriding}
        # What these replace must not be reported as a rule that decides nothing.
        remaining = [rule for rule in self._rules if rule.pattern not in patterns]
        return ShardingRules((*overriding, *remaining))

    def rule(self, name: str) -> Rule:
        """The rule that decides for the parameter called `name`; `REPLICATED` if no
        pattern matches.
        """
        return next((rule for rule in self._rules if rule.matches(name)), REPLICATED)

    def spec(self, name: str, shape: Iterable[int]) -> PartitionSpec:
        """The spec of one parameter, with an entry for each dimension; replicated if no
        rule matches.

        Raises:
            PortError: the matching spec has more entries than the shape has dimensions.
        """
        shape = tuple(shape)
        rule = self.rule(name)
        if len(rule.spec) > len(shape):
            raise PortError(
                f"the spec {format_spec(rule.spec)} has more entries than {shape} has dimensions",
                where=f"{name}, sharding rule {rule.pattern!r}",
                fix="shorten the spec, or narrow the pattern so that it leaves this parameter out",
            )
        return pad(rule.spec, len(shape))

    def shardings(
        self, parameters: Mapping[str, Any], mesh: Mesh
    ) -> dict[str, NamedSharding]:
        """A sharding for every parameter, in the order of `parameters`.

        Never fails, because `audit` reports errors: dimensions that the mesh cannot
        divide are replicated, and the reason is logged.
        """
        shardings: dict[str, NamedSharding] = {}
        fallbacks: defaultdict[_Fallback, list[str]] = defaultdict(list)
        for name, value in parameters.items():
            rule = self.rule(name)
            # A weight with a misfit gets what is left of its spec, as the audit has
            # said.
            spec, misfits = fit(rule, tuple(value.shape), mesh)
            shardings[name] = NamedSharding(mesh, spec)
            for misfit in misfits:
                fallbacks[
                    _Fallback(rule.pattern, misfit.text, format_spec(spec))
                ].append(name)
        # A line for each rule, because every layer of a model falls back alike.
        for fallback, names in fallbacks.items():
            _warn_of_fallback(fallback, names, parameters, shardings)
        return shardings

    def __getitem__(self, pattern: str) -> PartitionSpec:
        # Backwards, so that of equal patterns the first one stays, which decides.
        return {rule.pattern: rule.spec for rule in reversed(self._rules)}[pattern]

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
        if not self._rules:
            return "ShardingRules({})"
        width = max(len(repr(rule.pattern)) for rule in self._rules)
        lines = []
        for rule in self._rules:
            line = f"    {rule.pattern!r:<{width}}: {format_spec(rule.spec)},"
            if rule.reason:
                line += f"  # {rule.reason}"
            lines.append(line)
        return "\n".join(["ShardingRules({", *lines, "})"])


def _as_entry(entry: Any) -> Any:
    return tuple(entry) if isinstance(entry, list) else entry


def _as_rules(rules: Mapping[str, Any] | Iterable[Rule]) -> tuple[Rule, ...]:
    match rules:
        case ShardingRules():
            return rules.rules
        case Mapping():
            return tuple(starmap(_as_rule, rules.items()))
    return tuple(rules)


def _as_rule(pattern: Any, spec: Any) -> Rule:
    if not isinstance(spec, PartitionSpec):
        raise PortError(
            f"the rule's value is {type(spec).__name__}, not a PartitionSpec",
            where=f"sharding rule {pattern!r}",
            fix="write PartitionSpec('tp', None), or PartitionSpec() to replicate",
        )
    return Rule(str(pattern), spec)


def _warn_of_fallback(
    fallback: _Fallback,
    names: list[str],
    parameters: Mapping[str, Any],
    shardings: Mapping[str, NamedSharding],
) -> None:
    # Tied weights are one object under several names, and take memory once.
    distinct = {id(parameters[name]): name for name in names}
    device_bytes = 0
    for name in distinct.values():
        weight = parameters[name]
        shard_shape = shardings[name].shard_shape(tuple(weight.shape))
        device_bytes += prod(shard_shape) * dtype_bytes(weight.dtype)
    examples = names[0]
    if len(names) > 1:
        examples += ", ..."
    logger.warning(
        "rule %r places %s as %s (%s), %s on each device: %s",
        fallback.pattern,
        count_noun(len(names), "weight"),
        fallback.spec,
        examples,
        format_bytes(device_bytes),
        fallback.reason,
    )
