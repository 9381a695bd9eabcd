"""Rules and diagnostics together: what `--list-rules`, `--explain`, the pages and the reports say of an id."""

import dataclasses
import functools

from tpuport.errors import PortError
from tpuport.lint.diagnostics import DIAGNOSTICS, diagnostic
from tpuport.lint.findings import Applicability, Severity
from tpuport.lint.rules.registry import all_rules, families, rule_by_id
from tpuport.lint.rules.rule import Rule


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What is said of an id.

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


@functools.cache
def entries() -> tuple[Entry, ...]:
    """All of them, by id."""
    made = [
        Entry(one.id, one.name, one.severity, one.summary, one.why, one.reason, one.remedy, one.fix,
              one if isinstance(one, Rule) else None)
        for one in (*DIAGNOSTICS, *all_rules())
    ]  # fmt: skip
    return tuple(sorted(made, key=lambda one: one.id))


def entry(id: str) -> Entry:  # noqa: A002 - the field's name
    """The entry with this id or name.

    Raises:
        PortError: there is none.
    """
    known = diagnostic(id)
    wanted = known.id if known else rule_by_id(id).id
    found = next((one for one in entries() if one.id == wanted), None)
    if found is None:
        raise PortError(f"there is no rule {id!r}", where="rule", fix="see tpuport lint --list-rules")
    return found


def markdown(one: Entry) -> str:
    """Everything there is to say of an id, as Markdown without a heading."""
    fixed = {
        Applicability.SAFE: "`--fix` rewrites it.",
        Applicability.UNSAFE: "`--unsafe-fixes` rewrites it; look at the result.",
        Applicability.NONE: "There is no mechanical rewrite.",
    }
    parts = [
        f"Finds {_inline(one.summary)}.",
        f"Family: {one.family}. Severity: {one.severity}. {fixed[one.fix]}",
        "## Why",
        one.why,
        "## What to do",
        f"{one.remedy[:1].upper()}{one.remedy[1:]}.",
    ]
    if one.rule is None:
        return "\n\n".join(parts)
    if one.rule.until:
        parts.insert(2, f"Only with torchax before {one.rule.until}.")
    parts += ["## Before", _code(one.rule.bad.code), "## After", _code(one.rule.good.code)]
    if one.rule.quiet:
        parts += ["## Not found", "Code that looks alike and is all right:"]
        parts += [_code(example.code) for example in one.rule.quiet]
    return "\n\n".join(parts)


def _inline(text: str) -> str:
    return text.removesuffix(".")


def _code(code: str) -> str:
    return f"```python\n{code.strip()}\n```"
