"""What sharding rules do to a model on a mesh, and everything wrong with that, before
any memory is used.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuport.base.mappings import group_by
from tpuport.errors import PortError
from tpuport.sharding.quantized_parts import part_shardings
from tpuport.sharding.sharding_rules import ShardingRules
from tpuport.sharding.specs import (
    count_parts,
    dtype_bytes,
    fit,
    format_bytes,
    format_spec,
    spec_axes,
)

LARGE_BYTES = 1 << 20
"""A weight of a mebibyte or more that no rule matches is reported: norms and routers
stay far below it.
"""

# How many weights of a layout problem are named: a fault in one layer is usually one in
# all.
_NAMED_WEIGHTS = 2
_TABLE_HEADER = (
    "rule",
    "weights",
    "first weight",
    "shape",
    "placed as",
    "bytes",
    "on a device",
)


@dataclass(frozen=True)
class Placement:
    """Where one parameter goes. Bytes are of the dtype given; `device_bytes` are those
    on each device.
    """

    name: str
    shape: tuple[int, ...]
    pattern: str | None
    spec: PartitionSpec
    total_bytes: int
    device_bytes: int
    tied_to: str | None = None


@dataclass(frozen=True)
class AuditReport:
    """The outcome of `audit`: `str()` is a table for people, `to_dict()` is for
    machines.

    Every device of the mesh holds `bytes_per_device` (tied weights counted once).
    `errors` must be resolved or allowed by name; `notes` are choices worth knowing;
    `large_unmatched` are replicated because no rule matches them.
    """

    mesh_shape: dict[str, int]
    placements: tuple[Placement, ...]
    unmatched_rules: tuple[str, ...]
    large_unmatched: tuple[str, ...]
    errors: tuple[str, ...]
    notes: tuple[str, ...]
    total_bytes: int = 0
    bytes_per_device: int = 0

    def raise_on_errors(self) -> None:
        """Raise every error at once, as one PortError."""
        if not self.errors:
            return
        lines = "\n".join(f"  - {error}" for error in self.errors)
        raise PortError(
            f"the sharding rules do not fit the model and the mesh ({_format_axes(self.mesh_shape)}):\n{lines}",
            fix="correct the rules, change the mesh, or allow an error by passing its parameter's name or "
            "its rule's pattern in allow=(...): what is allowed is replicated",
        )

    def to_dict(self) -> dict[str, Any]:
        """The report in plain lists, dicts, strings and numbers."""
        return {
            "mesh": self.mesh_shape,
            "total_bytes": self.total_bytes,
            "bytes_per_device": self.bytes_per_device,
            "parameters": [
                {
                    **vars(placement),
                    "shape": list(placement.shape),
                    "spec": format_spec(placement.spec),
                }
                for placement in self.placements
            ],
            "unmatched_rules": list(self.unmatched_rules),
            "large_unmatched": list(self.large_unmatched),
            "errors": list(self.errors),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        rows = [_TABLE_HEADER, *_table_rows(self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        total = f"mesh {_format_axes(self.mesh_shape)}: {format_bytes(self.total_bytes)} of weights"
        lines.append(f"{total}, {format_bytes(self.bytes_per_device)} on each device")
        lines += [
            f"large and matched by no rule: {name}" for name in self.large_unmatched
        ]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"error: {error}" for error in self.errors]
        return "\n".join(lines)


def audit(
    rules: ShardingRules,
    parameters: Mapping[str, Any] | Any,
    mesh: Mesh,
    allow: str | Iterable[str] = (),
    *,
    large_bytes: int = LARGE_BYTES,
) -> AuditReport:
    """Check `rules` against the parameters (anything with `.shape` and `.dtype`) and
    the mesh; places nothing.

    Two names for the same object are one tied weight. Nothing is raised: call
    `raise_on_errors()`.

    Args:
        parameters: by name; or a model, whose quantised weights count as they are
            stored.
        allow: parameter names, or rule patterns, whose errors are accepted; those
            dimensions are replicated.
        large_bytes: from what size a weight that no rule matches is reported.
    """
    if isinstance(allow, str):
        allow = (allow,)
    if not isinstance(parameters, Mapping):
        parameters = _parameters_of(parameters)
    examination = _Audit(rules, parameters, mesh, allow)
    placements = examination.place_parameters()
    unmatched_rules = examination.check_rules(placements)
    examination.note_unused_allowances()
    # A tied weight is reported under its first name.
    unmatched = [
        item for item in placements if item.pattern is None and item.tied_to is None
    ]
    total_bytes, bytes_per_device = _sum_bytes(placements)
    return AuditReport(
        mesh_shape=dict(mesh.shape),
        placements=tuple(placements),
        unmatched_rules=unmatched_rules,
        large_unmatched=tuple(
            item.name for item in unmatched if item.total_bytes >= large_bytes
        ),
        errors=tuple(examination.errors),
        notes=tuple(examination.notes),
        total_bytes=total_bytes,
        bytes_per_device=bytes_per_device,
    )


def _parameters_of(model: Any) -> dict[str, Any]:
    """The parameters of a model by name, and its quantised weights."""
    # Needs torchax, which rules do not.
    from tpuport.quantization import quantized_weights

    quantized = {name: weight for name, _, _, weight in quantized_weights(model)}
    return {**dict(model.named_parameters(remove_duplicate=False)), **quantized}


def _sum_bytes(placements: Iterable[Placement]) -> tuple[int, int]:
    """Bytes of weights in all and on each device; tied weights take memory once."""
    distinct = [item for item in placements if item.tied_to is None]
    return sum(item.total_bytes for item in distinct), sum(
        item.device_bytes for item in distinct
    )


class _Fault(NamedTuple):
    """A misfit that several weights of a rule may share."""

    pattern: str
    text: str
    is_accepted: bool


class _Audit:
    """Collects the errors and notes of one audit, and which of the user's allowances
    they needed.
    """

    def __init__(
        self,
        rules: ShardingRules,
        parameters: Mapping[str, Any],
        mesh: Mesh,
        allow: Iterable[str],
    ) -> None:
        self.rules, self.parameters, self.mesh = rules, parameters, mesh
        self.errors: list[str] = []
        self.notes: list[str] = []
        self._allowed = tuple(allow)
        self._used_allowances: set[str] = set()

    def place_parameters(self) -> list[Placement]:
        placements: list[Placement] = []
        first_by_weight: dict[int, Placement] = {}
        faults: defaultdict[_Fault, list[str]] = defaultdict(list)
        for name, value in self.parameters.items():
            shape = tuple(map(int, value.shape))
            rule = self.rules.rule(name)
            spec, misfits = fit(rule, shape, self.mesh)
            for misfit in misfits:
                # Asked for every misfit, so that an allowance counts as used even if
                # the rule tolerates this one.
                is_allowed = self._is_allowed(name, rule.pattern)
                fault = _Fault(
                    rule.pattern, misfit.text, is_allowed or misfit.is_tolerated(rule)
                )
                faults[fault].append(f"{name} {shape}")
            total_bytes, device_bytes = self._count_bytes(name, value, spec)
            placement = Placement(
                name,
                shape,
                # No rule has an empty pattern but `REPLICATED`.
                pattern=rule.pattern or None,
                spec=spec,
                total_bytes=total_bytes,
                device_bytes=device_bytes,
            )
            # Two names of one object are a tied weight.
            first = first_by_weight.setdefault(id(value), placement)
            if first is not placement:
                placement = replace(placement, tied_to=first.name)
                self._check_tied(first, placement)
            placements.append(placement)
        # A line for each rule and reason, because every layer of a model has the same
        # fault.
        for fault, names in faults.items():
            self._report(fault, names)
        return placements

    def _count_bytes(
        self, name: str, value: Any, spec: PartitionSpec
    ) -> tuple[int, int]:
        """Bytes of a weight in all, and on each device."""
        # Exact: `fit` leaves only axes that divide their dimension.
        parts = count_parts(self.mesh, spec_axes(spec))
        if not hasattr(value, "part_bytes"):
            # The empty product is 1: a scalar has one element.
            total = prod(value.shape) * dtype_bytes(value.dtype)
            return total, total // parts
        sizes = value.part_bytes
        try:
            shardings = part_shardings(value, NamedSharding(self.mesh, spec))
        except PortError as error:
            self.errors.append(f"{name}: {error.what}")
            return sum(sizes.values()), sum(sizes.values()) // parts
        on_device = {
            part: size // count_parts(self.mesh, spec_axes(shardings[part].spec))
            for part, size in sizes.items()
        }
        return sum(sizes.values()), sum(on_device.values())

    def check_rules(self, placements: list[Placement]) -> tuple[str, ...]:
        """The patterns that match no parameter, each an error unless it is allowed."""
        # A rule that matches but never first decides nothing.
        deciding_patterns = {placement.pattern for placement in placements}
        unmatched = []
        for rule in self.rules.rules:
            if rule.pattern in deciding_patterns:
                continue
            # Not an error: an override that covers a plan's rule hides it.
            if any(map(rule.matches, self.parameters)):
                self.notes.append(
                    f"rule {rule.pattern!r} decides nothing: earlier rules match all that it matches"
                )
                continue
            unmatched.append(rule.pattern)
            lines = self.notes if self._is_allowed(rule.pattern) else self.errors
            lines.append(f"rule {rule.pattern!r} matches no parameter")
        return tuple(unmatched)

    def note_unused_allowances(self) -> None:
        unused = set(self._allowed) - self._used_allowances
        # In the user's order.
        for name in sorted(unused, key=self._allowed.index):
            self.notes.append(f"allowed, but nothing needed it: {name!r}")

    def _is_allowed(self, *names: str) -> bool:
        used = set(names).intersection(self._allowed)
        # An allowance that nothing needs is a typing error, or one that is no longer
        # needed.
        self._used_allowances |= used
        return bool(used)

    def _check_tied(self, first: Placement, second: Placement) -> None:
        if first.spec == second.spec:
            return
        pattern = "|".join(map(re.escape, (first.name, second.name)))
        self.errors.append(
            f"{second.name} is tied to {first.name}, which is {format_spec(first.spec)}, but its rule says "
            f"{format_spec(second.spec)}: they are one weight with one layout, so give both names one rule, "
            f'r"{pattern}"'
        )

    def _report(self, fault: _Fault, weights: list[str]) -> None:
        listing = ", ".join(weights[:_NAMED_WEIGHTS])
        if len(weights) > _NAMED_WEIGHTS:
            listing += f" and {len(weights) - _NAMED_WEIGHTS} more"
        line = f"{listing}, rule {fault.pattern!r}: {fault.text}"
        if fault.is_accepted:
            self.notes.append(f"{line}; replicated")
        else:
            self.errors.append(line)


def _table_rows(report: AuditReport) -> list[tuple[str, ...]]:
    """A row for each rule and spec; weights that share both are summed up."""
    groups = group_by(
        report.placements,
        lambda placement: (
            placement.pattern or "(no rule)",
            format_spec(placement.spec),
        ),
    )
    rows = []
    for (pattern, spec), placements in groups.items():
        first = placements[0]
        shape = "x".join(map(str, first.shape)) or "scalar"
        sizes = map(format_bytes, _sum_bytes(placements))
        rows.append((pattern, str(len(placements)), first.name, shape, spec, *sizes))
    return rows


def _format_axes(shape: Mapping[str, int]) -> str:
    return " ".join(f"{axis}={size}" for axis, size in shape.items())
