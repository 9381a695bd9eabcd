"""Sharding rules as text: lines to read, and the file that `tpuport compile --rules` reads."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def rules_text(rules: Mapping[str, list[Any]], reasons: Mapping[str, str]) -> str:
    """The rules as lines of a table, each with its reason."""
    rows = [(pattern, json.dumps(entries), reasons.get(pattern, "")) for pattern, entries in rules.items()]
    widths = [max(map(len, column), default=0) for column in zip(*rows, strict=True)]
    return "\n".join("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def rules_file(file: Path, rules: Mapping[str, list[Any]], reasons: Mapping[str, str]) -> str:
    """The text of a file of rules: TOML with reasons as comments if its name ends in .toml, or else JSON."""
    if file.suffix != ".toml":
        lines = [f"  {json.dumps(pattern)}: {json.dumps(entries)}" for pattern, entries in rules.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"
    lines = []
    for pattern, entries in rules.items():
        if reasons.get(pattern):
            lines.append(f"# {reasons[pattern]}")
        # TOML has no null. A pattern in single quotes has its backslashes as they are.
        names = ["none" if entry is None else entry for entry in entries]
        lines.append(f"'{pattern}' = {json.dumps(names)}")
    return "\n".join(lines) + "\n"
