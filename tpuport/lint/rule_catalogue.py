"""Rules and diagnostics together: their ids, and the text that `--explain`, the docs
and the reports show for each.
"""

import dataclasses
import functools
import operator

from tpuport.errors import PortError
from tpuport.lint.diagnostics import DIAGNOSTICS, Diagnostic
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.rule import Rule
from tpuport.lint.rules.rule_registry import all_rules, families, rule_by_id

_ALL = "ALL"


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A rule or a diagnostic.

    Attributes:
        id, name, severity, summary, why, reason, remedy, fix: as those of a rule.
        rule: the rule; None for a diagnostic.
    """

    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    reason: str
    remedy: str
    fix: Applicability
    rule: Rule | None = None

    @property
    def family(self) -> str:
        """The family's title."""
        return families().get(self.id[:4], "")


# Rules and diagnostics both have these.
_SHARED_FIELDS = ("id", "name", "severity", "summary", "why", "reason", "remedy", "fix")


@functools.cache
def all_entries() -> tuple[Entry, ...]:
    """Every diagnostic and rule, by id."""
    entries = list(map(_entry, (*DIAGNOSTICS, *all_rules())))
    return tuple(sorted(entries, key=operator.attrgetter("id")))


def _entry(source: Diagnostic | Rule) -> Entry:
    fields = {name: getattr(source, name) for name in _SHARED_FIELDS}
    # Only rules have examples and a version from which they no longer apply.
    rule = source if isinstance(source, Rule) else None
    return Entry(**fields, rule=rule)


@functools.cache
def all_ids() -> tuple[str, ...]:
    """The ids of all diagnostics and rules."""
    return tuple(entry.id for entry in all_entries())


@functools.cache
def id_by_name() -> dict[str, str]:
    """Id by name of all diagnostics and rules: `item` is TPU201."""
    return {entry.name: entry.id for entry in all_entries()}


@functools.cache
def _entry_by_id() -> dict[str, Entry]:
    return {entry.id: entry for entry in all_entries()}


def entry_for(id: str) -> Entry:  # noqa: A002 - the field's name
    """The entry with this id or name.

    Raises:
        PortError: there is none.
    """
    canonical_id = id_by_name().get(id.lower(), id.upper())
    entry = _entry_by_id().get(canonical_id)
    # The registry's own lookup raises the error that lists the nearest ids.
    return entry or _entry_by_id()[rule_by_id(id).id]


def normalize_prefixes(prefixes: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The prefixes in capitals.

    Raises:
        PortError: a prefix matches no rule and no diagnostic.
    """
    normalized = tuple(prefix.strip().upper() for prefix in prefixes)
    for prefix in normalized:
        if prefix != _ALL and not is_known_prefix(prefix):
            reason = f"no rule's id starts with {prefix!r}"
            raise PortError(reason, where=where, fix="see tpuport lint --list-rules")
    return normalized


def is_known_prefix(prefix: str) -> bool:
    """Whether the id of a rule or diagnostic starts with the prefix."""
    return any(id_.startswith(prefix) for id_ in all_ids())


def longest_match(id: str, prefixes: tuple[str, ...]) -> int:  # noqa: A002 - the field's name
    """The length of the longest prefix that an id starts with; 0 for ALL, -1 for
    none.
    """
    lengths = [len(prefix) for prefix in prefixes if id.startswith(prefix)]
    if _ALL in prefixes:
        lengths.append(0)
    return max(lengths, default=-1)


_FIX_SENTENCES = {
    Applicability.SAFE: "`--fix` rewrites it.",
    Applicability.UNSAFE: "`--unsafe-fixes` rewrites it; look at the result.",
    Applicability.NONE: "There is no mechanical rewrite.",
}


def entry_markdown(entry: Entry) -> str:
    """Everything known about a rule or diagnostic, as Markdown without a heading."""
    rule = entry.rule
    parts = [
        f"Finds {entry.summary.removesuffix('.')}.",
        f"Family: {entry.family}. Severity: {entry.severity}. {_FIX_SENTENCES[entry.fix]}",
    ]
    if rule is not None and rule.until:
        parts.append(f"Only with torchax before {rule.until}.")
    parts += [
        "## Why",
        entry.why,
        "## What to do",
        f"{entry.remedy[:1].upper()}{entry.remedy[1:]}.",
    ]
    # A diagnostic is about the linter's own work: it has no code to show.
    if rule is None:
        return "\n\n".join(parts)
    parts += [
        "## Before",
        _code_block(rule.bad.code),
        "## After",
        _code_block(rule.good.code),
    ]
    if rule.quiet:
        parts += ["## Not found", "Code that looks alike and is all right:"]
        parts += [_code_block(example.code) for example in rule.quiet]
    return "\n\n".join(parts)


def _code_block(code: str) -> str:
    return f"```python\n{code.strip()}\n```"
