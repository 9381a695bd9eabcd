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
}


def families() -> dict[str, str]:
    """Title of each family of rules, by the start of their ids."""
    return dict(FAMILIES)


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by id."""
    package = importlib.import_module("tpuport.lint.rules")
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    modules = [
        importlib.import_module(f"tpuport.lint.rules.{name}")
        for name in names
        if _FILE.match(name)
    ]
    return tuple(sorted((module.RULE for module in modules), key=lambda rule: rule.id))


def rule_by_id(id: str) -> Rule:  # noqa: A002 - the field's name
    """The rule with this id or name.

    Raises:
        PortError: there is no such rule; the message lists the rules of the same
            family.
    """
    for rule in all_rules():
        if id.upper() == rule.id or id.lower() == rule.name:
            return rule
    ids = [rule.id for rule in all_rules()]
    # The family is the first digit.
    same_family = [rule_id for rule_id in ids if rule_id[:4] == id.upper()[:4]]
    fix = (
        f"take one of {', '.join(same_family)}"
        if same_family
        else "see tpuport lint --list-rules"
    )
    raise PortError(f"there is no rule {id!r}", where="rule", fix=fix)
