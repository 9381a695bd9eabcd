"""All rewrites, found by their files' names."""

import functools
import importlib
import pkgutil
import re

from tpuport.lint.fixes.rewrite import Rewrite

_FILE = re.compile(r"tpu\d{3}_")


@functools.cache
def all_rewrites() -> dict[str, Rewrite]:
    """The rewrite of each rule that has one, by the rule's id."""
    package = importlib.import_module("tpuport.lint.fixes")
    found = [
        importlib.import_module(f"tpuport.lint.fixes.{module.name}").REWRITE
        for module in pkgutil.iter_modules(package.__path__)
        if _FILE.match(module.name)
    ]
    return {rewrite.rule: rewrite for rewrite in sorted(found, key=lambda rewrite: rewrite.rule)}
