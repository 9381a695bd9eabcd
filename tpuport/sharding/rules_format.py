"""Files of sharding rules: what `ShardingRules.read` and `--rules` read, and what is
written for them.

Nothing here needs jax, so that the command line refuses a wrong file at once.
"""

import json
import re
import tomllib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Final

from tpuport.errors import PortError

# What rules may write for a dimension that no axis divides; TOML has no null.
_UNDIVIDED: Final = (None, "", "none", "null")


def read_rules(
    file: Path, where: str, axes: Container[str] | None = None
) -> dict[str, list[Any]]:
    """The sharding rules in a file: regexes of weights' names to one entry a dimension,
    each None, an axis or a list.

    Args:
        file: JSON, or TOML if its name ends in .toml.
        where: what errors say that it is, such as an option.
        axes: that the mesh may have; None for any.

    Raises:
        PortError: the file cannot be read, or it does not consist of rules.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        fix = 'give a JSON or TOML file such as {".*q_proj\\\\.weight": ["tp", null]}'
        raise PortError(
            f"the rules cannot be read: {error.strerror}", where=where, fix=fix
        ) from None
    rules = _parse_rules(text, where, is_toml=file.suffix == ".toml")
    if not isinstance(rules, dict) or not rules:
        raise PortError(
            "the rules are not a map of patterns to axis names",
            where=where,
            fix='write an object such as {".*q_proj\\\\.weight": ["tp", null]}',
        )
    return {
        pattern: _read_rule(pattern, entries, f"{where}: '{pattern}'", axes)
        for pattern, entries in rules.items()
    }


def _parse_rules(text: str, where: str, *, is_toml: bool) -> Any:
    language, loads, hint = (
        "JSON",
        json.loads,
        "a name that ends in .toml is read as TOML",
    )
    if is_toml:
        language, loads, hint = (
            "TOML",
            tomllib.loads,
            """a line such as '.*q_proj\\.weight' = ["tp", "none"]""",
        )
    try:
        return loads(text)
    except ValueError as error:
        raise PortError(
            f"the rules are not {language}: {error}",
            where=where,
            fix=f"correct the file; {hint}",
        ) from None


def _read_rule(
    pattern: str, entries: Any, where: str, axes: Container[str] | None
) -> list[Any]:
    """The entries of a rule, with None for each dimension that is whole."""
    try:
        # Before the rules are applied, where nothing knows the file any more.
        re.compile(pattern)
    except re.error as error:
        fix = "a pattern is a Python regex for the whole parameter name; escape dots as '\\.'"
        raise PortError(
            f"the pattern is not a regular expression: {error}", where=where, fix=fix
        ) from None
    fix = (
        'entries are "dp", "sp", "tp", a list of them, or null for a dimension that is whole, one a dimension: '
        '["tp", null]; in TOML, which has no null, "none" says the same: ["tp", "none"]'
    )
    if not isinstance(entries, list):
        raise PortError(
            f"{entries!r} is not a list of axis names", where=where, fix=fix
        )
    rule: list[Any] = []
    for entry in entries:
        # An entry names one axis or several; an empty list is a dimension that is
        # whole, too.
        names = entry
        if not isinstance(entry, list):
            names = [entry]
        unknown = [
            name
            for name in names
            if name not in _UNDIVIDED and not _is_axis(name, axes)
        ]
        if unknown:
            raise PortError(
                f"{unknown[0]!r} is not an axis of the mesh", where=where, fix=fix
            )
        if entry in (*_UNDIVIDED, []):
            entry = None
        rule.append(entry)
    return rule


def _is_axis(name: Any, axes: Container[str] | None) -> bool:
    return isinstance(name, str) and (axes is None or name in axes)


def plain_entry(entry: Any) -> Any:
    """The axes of one dimension as a file has them: JSON has lists for the tuples of a
    PartitionSpec.
    """
    return list(entry) if isinstance(entry, tuple) else entry


def format_rules(
    file: Path, rules: Mapping[str, list[Any]], reasons: Mapping[str, str]
) -> str:
    """The text of a file of rules: TOML with reasons as comments if its name ends in
    .toml, or else JSON.
    """
    if file.suffix != ".toml":
        lines = [
            f"  {json.dumps(pattern)}: {json.dumps(entries)}"
            for pattern, entries in rules.items()
        ]
        return "{\n" + ",\n".join(lines) + "\n}\n"
    lines = []
    for pattern, entries in rules.items():
        if reasons.get(pattern):
            lines.append(f"# {reasons[pattern]}")
        # TOML has no null. A pattern in single quotes has its backslashes as they are.
        names = ["none" if entry is None else entry for entry in entries]
        lines.append(f"'{pattern}' = {json.dumps(names)}")
    return "\n".join(lines) + "\n"
