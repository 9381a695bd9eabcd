"""Mechanical rewrites of findings, which keep formatting and comments. A module
`tpuNNN_name.py` fixes one rule.
"""

from tpuport.lint.fixes.planning import all_rewrites, available_fixes, fix_text

__all__ = ["all_rewrites", "available_fixes", "fix_text"]
