"""The page about the advice, made from the rules."""

from tpuport.topology.advice.registry import all_rules
from tpuport.topology.advice.rule import Rule

_HEAD = """# Advice of `tpuport compile`

Written by `docs/gen_advice.py` from the rules themselves. Each rule looks at what was measured of the compiled program:
its collectives, its arrays, the attention calls that were traced, and where the weights are. What is found is sorted by
what it costs a device in a step; a byte sent counts as four of HBM, and 256 FLOPs as one, which is about what a v5e or
a v6e does in the same time. An id is never given to another rule.
"""


def page() -> str:
    """docs/compile-advice.md: a table, then a section a rule."""
    rows = [
        f"| [{rule.id}](#{rule.id.lower()}-{rule.name}) | {rule.name} | {_cell(rule.summary)} |"
        for rule in all_rules()
    ]
    table = "\n".join(["| id | name | finds |", "| --- " * 3 + "|", *rows])
    return "\n".join([_HEAD, table + "\n", *(section(rule) for rule in all_rules())])


def section(rule: Rule) -> str:
    """What is said of one rule, with a heading."""
    parts = [
        f"## {rule.id} {rule.name}",
        f"Finds {rule.summary}.",
        rule.why,
        f"Measured: {rule.measured}",
        f"Before:\n\n{_code(rule.before)}",
        f"After:\n\n{_code(rule.after)}",
    ]
    return "\n\n".join(parts) + "\n"


def _code(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
