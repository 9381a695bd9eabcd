"""The data files that block sizes are chosen from: written here, read by
`tpuport.attention.block_sizes`.
"""

import datetime as dt
import json
import operator
from typing import Any

from tpuport.attention.tuning.bundle_cache import versions
from tpuport.attention.tuning.search import Search, search_to_json, steps_to_json
from tpuport.base.mappings import group_by


def build_data(searches: list[Search], generation: str, command: str) -> dict[str, Any]:
    """The content of a file with the results of one command.

    Its `grids` have the bundles of steps by kind of kernel; `shapes` the search for
    each shape, the fastest first.
    """
    kind = operator.itemgetter("head_dim", "dtype", "has_band")
    grids = group_by(map(steps_to_json, searches), kind)
    shapes = list(map(search_to_json, searches))
    for shape in shapes:
        del shape["default"]  # what the default was before says nothing about this file
    return {
        "generation": generation,
        "command": command,
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "versions": versions(),
        # Searches of the same kind share their measurements; the one that knows most
        # has them all.
        "grids": [
            max(same_kind, key=lambda grid: len(grid["rows"]))
            for same_kind in grids.values()
        ],
        "shapes": shapes,
    }


def format_data(data: dict[str, Any]) -> str:
    """JSON with a line for each row and each candidate, which makes differences
    readable.
    """
    parts = [
        f"{json.dumps(key)}: {_format_value(value)}" for key, value in data.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _format_value(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(map(_format_entry, value)) + "\n]"


def _format_entry(entry: dict[str, Any]) -> str:
    lines = []
    for key, value in entry.items():
        text = json.dumps(value)
        # A list of dictionaries; one of numbers, such as block sizes, stays on its
        # line.
        if text.startswith("[{"):
            text = "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]"
        lines.append(f"  {json.dumps(key)}: {text}")
    return " {\n" + ",\n".join(lines) + "\n }"
