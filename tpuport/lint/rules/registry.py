"""All rules, found by their files' names."""

import functools
import importlib
import pkgutil
import re

from tpuport.errors import PortError
from tpuport.lint.rules.rule import Rule

_FILE = re.compile(r"tpu\d{3}_")

FAMILIES = {
    "TPU0": "the linter itself",
    "TPU1": "data-dependent shapes",
    "TPU2": "concrete values",
    "TPU3": "GPU-only code",
    "TPU4": "dtype and numerics",
    "TPU5": "state and retracing",
    "TPU6": "call boundary",
}


def families() -> dict[str, str]:
    """Title of each family of rules, by the start of their ids."""
    return dict(FAMILIES)


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by id."""
    package = importlib.import_module("tpuport.lint.rules")
    found = [
        importlib.import_module(f"tpuport.lint.rules.{module.name}").RULE
        for module in pkgutil.iter_modules(package.__path__)
        if _FILE.match(module.name)
    ]
    return tuple(sorted(found, key=lambda rule: rule.id))


def rule_by_id(id: str) -> Rule:  # noqa: A002 - the field's name
    """The rule with this id or name.

    Raises:
        PortError: there is none; the message lists the nearest ids.
    """
    for rule in all_rules():
        if id.upper() == rule.id or id.lower() == rule.name:
            return rule
    near = [rule.id for rule in all_rules() if rule.id[:4] == id.upper()[:4]] or [
        rule.id for rule in all_rules()
    ]
    raise PortError(f"there is no rule {id!r}", where="rule", fix=f"take one of {', '.join(near)}")


def select(chosen: tuple[str, ...], ignored: tuple[str, ...]) -> tuple[Rule, ...]:
    """The rules whose ids start with one of `chosen` (all if empty) and none of `ignored`; the longer prefix wins.

    Raises:
        PortError: a prefix that fits no rule.
    """
    for prefix in (*chosen, *ignored):
        if prefix.upper() != "ALL" and not any(rule.id.startswith(prefix.upper()) for rule in all_rules()):
            raise PortError(
                f"no rule's id starts with {prefix!r}",
                where="select or ignore",
                fix="see tpuport lint --list-rules",
            )
    return tuple(rule for rule in all_rules() if _best(rule.id, chosen or ("ALL",)) > _best(rule.id, ignored))


def _best(id: str, prefixes: tuple[str, ...]) -> int:  # noqa: A002
    lengths = [
        0 if prefix.upper() == "ALL" else len(prefix)
        for prefix in prefixes
        if prefix.upper() == "ALL" or id.startswith(prefix.upper())
    ]
    return max(lengths, default=-1)
