"""What sharding rules do to a model on a mesh, and everything wrong with that, before any memory is taken."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from jax.sharding import Mesh, PartitionSpec

from tpuport.errors import PortError
from tpuport.sharding.sharding_rules import ShardingRules
from tpuport.sharding.specs import Rule, axis_names, fit, itemsize, show, size_text

LARGE_BYTES = 1 << 20
"""A weight of a mebibyte or more that no rule matches is reported: norms and routers stay far below it."""


@dataclass(frozen=True)
class Placement:
    """Where one parameter goes. Bytes are of the dtype given; `device_bytes` are those on each device."""

    name: str
    shape: tuple[int, ...]
    pattern: str | None
    spec: PartitionSpec
    total_bytes: int
    device_bytes: int
    tied_to: str | None = None


@dataclass(frozen=True)
class AuditReport:
    """The outcome of `audit`: `str()` is a table for people, `to_dict()` is for machines.

    Every device of the mesh holds `bytes_per_device` (tied weights counted once). `errors` must be resolved
    or allowed by name; `notes` are choices worth knowing; `large_unmatched` are replicated for want of a
    rule.
    """

    mesh_shape: dict[str, int]
    placements: tuple[Placement, ...]
    unmatched_rules: tuple[str, ...]
    large_unmatched: tuple[str, ...]
    errors: tuple[str, ...]
    notes: tuple[str, ...]
    total_bytes: int = field(default=0)
    bytes_per_device: int = field(default=0)

    def raise_on_errors(self) -> None:
        """Raise every error at once, as one PortError."""
        if not self.errors:
            return
        lines = "\n".join(f"  - {error}" for error in self.errors)
        raise PortError(
            f"the sharding rules do not fit the model and the mesh ({_axes(self.mesh_shape)}):\n{lines}",
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
                {**vars(placement), "shape": list(placement.shape), "spec": show(placement.spec)}
                for placement in self.placements
            ],
            "unmatched_rules": list(self.unmatched_rules),
            "large_unmatched": list(self.large_unmatched),
            "errors": list(self.errors),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        rows = [
            ("rule", "weights", "first weight", "shape", "placed as", "bytes", "on a device"),
            *_rows(self),
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        ]
        total = f"mesh {_axes(self.mesh_shape)}: {size_text(self.total_bytes)} of weights"
        lines = [line.rstrip() for line in table] + [
            f"{total}, {size_text(self.bytes_per_device)} on each device"
        ]
        lines += [f"large and matched by no rule: {name}" for name in self.large_unmatched]
        lines += [f"note: {note}" for note in self.notes] + [f"error: {error}" for error in self.errors]
        return "\n".join(lines)


def audit(
    rules: ShardingRules,
    parameters: Mapping[str, Any],
    mesh: Mesh,
    allow: str | Iterable[str] = (),
    *,
    large_bytes: int = LARGE_BYTES,
) -> AuditReport:
    """Check `rules` against the parameters (anything with `.shape` and `.dtype`) and the mesh, without work.

    Two names for the same object are one tied weight. Nothing is raised: call `raise_on_errors()`.

    Args:
        allow: parameter names, or rule patterns, whose errors are accepted; those dimensions are replicated.
        large_bytes: from what size a weight that no rule matches is reported.
    """
    allowed = _Allowed((allow,) if isinstance(allow, str) else allow)
    errors: list[str] = []
    notes: list[str] = []
    placements = _place(rules, parameters, mesh, allowed, errors, notes)
    unmatched = _unmatched(rules, parameters, placements, allowed, errors, notes)
    large = tuple(
        item.name
        for item in placements
        if item.pattern is None and item.tied_to is None and item.total_bytes >= large_bytes
    )
    notes += [f"allowed, but nothing needed it: {name!r}" for name in allowed.unused()]
    own = [item for item in placements if item.tied_to is None]
    return AuditReport(
        mesh_shape={str(axis): int(size) for axis, size in mesh.shape.items()},
        placements=tuple(placements),
        unmatched_rules=unmatched,
        large_unmatched=large,
        errors=tuple(errors),
        notes=tuple(notes),
        total_bytes=sum(item.total_bytes for item in own),
        bytes_per_device=sum(item.device_bytes for item in own),
    )


class _Allowed:
    """The names a user accepted errors for, remembering which were of use."""

    def __init__(self, names: Iterable[str]) -> None:
        self._used = dict.fromkeys((names,) if isinstance(names, str) else names, False)

    def covers(self, *names: str) -> bool:
        hits = [name for name in names if name in self._used]
        self._used.update(dict.fromkeys(hits, True))
        return bool(hits)

    def unused(self) -> list[str]:
        return [name for name, used in self._used.items() if not used]


def _place(
    rules: ShardingRules,
    parameters: Mapping[str, Any],
    mesh: Mesh,
    allowed: _Allowed,
    errors: list[str],
    notes: list[str],
) -> list[Placement]:
    placements: list[Placement] = []
    first: dict[int, Placement] = {}
    found: dict[tuple[str, str, bool], list[str]] = {}
    for name, value in parameters.items():
        shape, rule = tuple(int(size) for size in value.shape), rules.rule(name)
        spec, misfits = fit(rule or Rule("", PartitionSpec()), shape, mesh)
        for misfit in misfits:
            pattern = rule.pattern if rule else ""
            named = allowed.covers(name, pattern)
            accepted = named or (rule is not None and misfit.is_let_pass(rule))
            found.setdefault((pattern, misfit.text, accepted), []).append(f"{name} {shape}")
        total = prod(shape) * itemsize(value.dtype)
        share = total // prod(mesh.shape[axis] for entry in spec for axis in axis_names(entry))
        twin = first.get(id(value))
        placement = Placement(name, shape, rule and rule.pattern, spec, total, share, twin and twin.name)
        if twin and twin.spec != spec:
            both = "|".join(re.escape(one) for one in (twin.name, name))
            errors.append(
                f"{name} is tied to {twin.name}, which is {show(twin.spec)}, but its rule says {show(spec)}: "
                f'one weight has one place, so give both names one rule, r"{both}"'
            )
        first.setdefault(id(value), placement)
        placements.append(placement)
    for (pattern, text, accepted), names in found.items():
        line = f"{_some(names)}, rule {pattern!r}: {text}"
        (notes if accepted else errors).append(f"{line}; replicated" if accepted else line)
    return placements


def _some(names: list[str]) -> str:
    """The first few names and how many more there are: a fault in one layer is mostly one in all."""
    rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + rest


def _unmatched(
    rules: ShardingRules,
    parameters: Mapping[str, Any],
    placements: list[Placement],
    allowed: _Allowed,
    errors: list[str],
    notes: list[str],
) -> tuple[str, ...]:
    deciding = {item.pattern for item in placements}
    unmatched = []
    for rule in rules.rules:
        if rule.pattern in deciding:
            continue
        if any(rule.matches(name) for name in parameters):
            notes.append(f"rule {rule.pattern!r} decides nothing: earlier rules match all that it matches")
            continue
        unmatched.append(rule.pattern)
        text = f"rule {rule.pattern!r} matches no parameter"
        (notes if allowed.covers(rule.pattern) else errors).append(text)
    return tuple(unmatched)


def _rows(report: AuditReport) -> list[tuple[str, ...]]:
    groups: dict[tuple[str, str], list[Placement]] = {}
    for item in report.placements:
        groups.setdefault((item.pattern or "(no rule)", show(item.spec)), []).append(item)
    rows = []
    for (pattern, spec), items in groups.items():
        own = [item for item in items if item.tied_to is None]
        shape = "x".join(map(str, items[0].shape)) or "scalar"
        sizes = (
            size_text(sum(item.total_bytes for item in own)),
            size_text(sum(item.device_bytes for item in own)),
        )
        rows.append((pattern, str(len(items)), items[0].name, shape, spec, *sizes))
    return rows


def _axes(shape: Mapping[str, int]) -> str:
    return " ".join(f"{axis}={size}" for axis, size in shape.items())
