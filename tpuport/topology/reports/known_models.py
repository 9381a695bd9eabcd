"""The models whose configs come with tpuport: their names, and what they are. Needs
neither torch nor jax.
"""

import difflib
import json
from pathlib import Path
from typing import Any, Final

from rich.console import RenderableType

from tpuport.topology.reports import quantities
from tpuport.topology.reports.text_layout import table

SCHEMA: Final = 1
KNOWN: Final = Path(__file__).parents[1] / "targets" / "known"


def names() -> tuple[str, ...]:
    """Their names, in order."""
    return tuple(sorted(file.stem for file in KNOWN.glob("*.json")))


def rows() -> list[dict[str, Any]]:
    """The name, class, number of parameters and source of each model."""
    models = []
    for name in names():
        config = json.loads((KNOWN / f"{name}.json").read_text(encoding="utf-8"))
        # diffusers writes a class name, transformers a list of architectures.
        class_name = config.get("_class_name") or config["architectures"][0]
        models.append(
            {
                "name": name,
                "class": class_name,
                "parameters": config["_parameters"],
                "source": config["_source"],
            }
        )
    return models


def listing() -> RenderableType:
    """The models as a table."""
    models = table("name", "class", ">parameters", "source")
    for row in rows():
        parameters = quantities.number_in_words(row["parameters"])
        models.add_row(row["name"], row["class"], parameters, row["source"])
    return models


def as_json() -> str:
    """The models as JSON."""
    return json.dumps({"schema": SCHEMA, "models": rows()}, indent=2) + "\n"


def hint(target: str) -> str:
    """What to name instead of a target that does not exist: similar names first, then
    all of them.
    """
    name = target.lower().rstrip("/").rpartition("/")[2]
    similar = difflib.get_close_matches(name, names(), n=3, cutoff=0.6)
    names_text = f"the names that come with tpuport are {', '.join(names())}"
    if not similar:
        return names_text
    return f"did you mean {' or '.join(similar)}? {names_text}"
