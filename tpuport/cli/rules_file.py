"""Sharding rules as lines to read."""

import json
from collections.abc import Mapping
from typing import Any


def rules_text(rules: Mapping[str, list[Any]], reasons: Mapping[str, str]) -> str:
    """The rules as lines of a table, each with its reason."""
    rows = [
        (pattern, json.dumps(entries), reasons.get(pattern, ""))
        for pattern, entries in rules.items()
    ]
    widths = [max(map(len, column), default=0) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows
    )
