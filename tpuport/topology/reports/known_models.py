"""The models whose configs come with tpuport: their names, and what they are. Needs neither torch nor jax."""

import difflib
import json
from pathlib import Path
from typing import Any, Final

from rich.console import RenderableType

from tpuport.topology.reports import quantities
from tpuport.topology.reports.text import table

SCHEMA: Final = 1
KNOWN: Final = Path(__file__).parents[1] / "targets" / "known"


def names() -> tuple[str, ...]:
    """Their names, in order."""
    return tuple(sorted(file.stem for file in KNOWN.glob("*.json")))


def rows() -> list[dict[str, Any]]:
    """Of each model its name, class, number of parameters and source."""
    found = []
    for name in names():
        raw = json.loads((KNOWN / f"{name}.json").read_text(encoding="utf-8"))
        kind = raw.get("_class_name") or raw["architectures"][0]
        told = {"class": kind, "parameters": raw["_parameters"], "source": raw["_source"]}
        found.append({"name": name, **told})
    return found


def listing() -> RenderableType:
    """A table of them."""
    shown = table("name", "class", ">parameters", "source")
    for row in rows():
        shown.add_row(row["name"], row["class"], quantities.counted(row["parameters"]), row["source"])
    return shown


def as_json() -> str:
    """The same as JSON: `rows` under a schema's number."""
    return json.dumps({"schema": SCHEMA, "models": rows()}, indent=2) + "\n"


def hint(target: str) -> str:
    """What to name in place of a target that is not there: near names first, then all of them."""
    last = target.lower().rstrip("/").rpartition("/")[2]
    near = difflib.get_close_matches(last, names(), n=3, cutoff=0.6)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{meant}the names that come with tpuport are {', '.join(names())}"
