"""The rules, one a file. A file `tpuNNN_name.py` holds one `RULE`; adding the file adds
the rule.
"""

from tpuport.lint.rules.rule import Context, Example, Hit, Rule
from tpuport.lint.rules.rule_registry import all_rules, families, rule_by_id

__all__ = ["Context", "Example", "Hit", "Rule", "all_rules", "families", "rule_by_id"]
