"""The data files that block sizes are chosen from: written here, read by `tpuport.attention.block_sizes`."""

import datetime as dt
import json
from typing import Any

from tpuport.attention.tuning.bundle_cache import versions
from tpuport.attention.tuning.search import Search, search_to_json, steps_to_json


def build_data(searches: list[Search], generation: str, command: str) -> dict[str, Any]:
    """The content of a file with the results of one command.

    Its `grids` have the bundles of steps by kind of kernel; `shapes` the search for each shape, the fastest first.
    """
    grids: dict[tuple, dict[str, Any]] = {}
    shapes = []
    for search in searches:
        grid = steps_to_json(search)
        kind = (grid["head_dim"], grid["dtype"], grid["has_band"])
        # Searches of the same kind share their measurements; the one that knows most has them all.
        if kind not in grids or len(grids[kind]["rows"]) < len(grid["rows"]):
            grids[kind] = grid
        shape = search_to_json(search)
        del shape["default"]  # what the default was before says nothing about this file
        shapes.append(shape)
    return {
        "generation": generation,
        "command": command,
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "versions": versions(),
        "grids": list(grids.values()),
        "shapes": shapes,
    }


def format_data(data: dict[str, Any]) -> str:
    """JSON with a line for each row and each candidate, which makes differences readable."""
    parts = [f"{json.dumps(key)}: {_format_value(value)}" for key, value in data.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _format_value(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(map(_format_entry, value)) + "\n]"


def _format_entry(entry: dict[str, Any]) -> str:
    lines = []
    for key, value in entry.items():
        text = json.dumps(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]"
        lines.append(f"  {json.dumps(key)}: {text}")
    return " {\n" + ",\n".join(lines) + "\n }"
