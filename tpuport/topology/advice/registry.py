"""All rules, found by their files' names, and what they say of a program."""

import functools
import importlib
import pkgutil
import re
from typing import Final

from tpuport.errors import PortError
from tpuport.topology.advice.evidence import Evidence
from tpuport.topology.advice.rule import Rule
from tpuport.topology.compile_report import Finding

_FILE = re.compile(r"tpc\d{3}_")
# What a unit weighs beside a byte of HBM, so that findings of all kinds have one order: on every generation a device
# sends bytes about four times slower than it reads them from HBM (v5e: 819 against 200 GB/s; v6e: 1,640 against 448),
# and does from 240 (v5e) to 560 (v6e) FLOPs in the time that a byte takes.
_WEIGHT: Final = {"bytes": 1.0, "bytes sent": 4.0, "flops": 1 / 256}


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by id."""
    package = importlib.import_module("tpuport.topology.advice")
    found = [
        importlib.import_module(f"{package.__name__}.{module.name}").RULE
        for module in pkgutil.iter_modules(package.__path__)
        if _FILE.match(module.name)
    ]
    return tuple(sorted(found, key=lambda rule: rule.id))


def rule_by_id(id: str) -> Rule:  # noqa: A002 - the field's name
    """The rule with this id or name.

    Raises:
        PortError: there is none.
    """
    for rule in all_rules():
        if id.upper() == rule.id or id.lower() == rule.name:
            return rule
    raise PortError(
        f"there is no advice {id!r}", where="rule", fix=f"one of {', '.join(rule.id for rule in all_rules())}"
    )


def advise(evidence: Evidence) -> tuple[Finding, ...]:
    """What the rules find in a program, the costliest first."""
    found = [
        Finding(rule.id, rule.name, hit.message, hit.remedy, float(hit.cost), hit.unit, hit.source)
        for rule in all_rules()
        for hit in rule.check(evidence)
    ]
    return tuple(sorted(found, key=lambda one: (-one.cost * _WEIGHT[one.unit], one.rule, one.message)))
