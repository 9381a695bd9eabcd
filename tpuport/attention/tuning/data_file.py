"""The data files that block sizes are chosen from: written here, read by `tpuport.attention.block_sizes`."""

import datetime as dt
import json
from typing import Any

from tpuport.attention.tuning.bundle_cache import versions
from tpuport.attention.tuning.search import Search, as_json, grid_of


def datafile(found: list[Search], generation: str, command: str) -> dict[str, Any]:
    """The content of a file with the results of one command.

    Its `grids` have the bundles of steps by kind of kernel; `shapes` the search for each shape, the fastest first.
    """
    grids: dict[tuple, dict[str, Any]] = {}
    for one in found:
        grid = grid_of(one)
        kind = (grid["head_dim"], grid["dtype"], grid["has_band"])
        if kind not in grids or len(grids[kind]["rows"]) < len(grid["rows"]):
            grids[kind] = grid
    return {
        "generation": generation,
        "command": command,
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "versions": versions(),
        "grids": list(grids.values()),
        # What was the default before says nothing about this file.
        "shapes": [{key: value for key, value in as_json(one).items() if key != "default"} for one in found],
    }


def text_of(data: dict[str, Any]) -> str:
    """JSON with a line for each row and each candidate, so that differences can be read."""
    parts = [f"{json.dumps(key)}: {_text(value)}" for key, value in data.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _text(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(_entry(one) for one in value) + "\n]"


def _entry(one: dict[str, Any]) -> str:
    lines = []
    for key, value in one.items():
        rows = isinstance(value, list) and value and isinstance(value[0], dict)
        text = (
            "[\n    " + ",\n    ".join(json.dumps(row) for row in value) + "\n  ]"
            if rows
            else json.dumps(value)
        )
        lines.append(f"  {json.dumps(key)}: {text}")
    return " {\n" + ",\n".join(lines) + "\n }"
