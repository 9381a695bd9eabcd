"""Advice on a compiled program: rules over what was measured. A file `tpcNNN_name.py` holds one `RULE`.

Adding the file adds the rule, its findings and its part of docs/compile-advice.md.
"""

from tpuport.topology.advice.evidence import CacheArray, Evidence
from tpuport.topology.advice.registry import advise, all_rules, rule_by_id
from tpuport.topology.advice.rule import Hit, Rule

__all__ = ["CacheArray", "Evidence", "Hit", "Rule", "advise", "all_rules", "rule_by_id"]
