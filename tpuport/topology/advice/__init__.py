"""Advice on a compiled program: rules over what was measured. A file `tpcNNN_name.py`
has one `RULE`.

Adding the file adds the rule, its findings and its part of docs/compile-advice.md.
"""

from tpuport.topology.advice.advice_rules import (
    AdviceRule,
    Hit,
    advice_rule_by_id,
    advise,
    all_advice_rules,
)
from tpuport.topology.advice.evidence import CacheArray, Evidence
from tpuport.topology.advice.float32_products import (
    Float32Product,
    find_float32_products,
)

__all__ = [
    "AdviceRule", "CacheArray", "Evidence", "Float32Product", "Hit", "advice_rule_by_id", "advise", "all_advice_rules",
    "find_float32_products",
]  # fmt: skip
