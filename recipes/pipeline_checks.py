"""What is asked of a recipe of a pipeline, checked against the checkpoint's configuration before weights are read."""

import json
from pathlib import Path
from typing import Any

import tpuport
from recipes.checks import check_directory, check_sizes


def read_config(checkpoint: Path, part: str) -> dict[str, Any]:
    """A configuration file of the checkpoint, `part` being its path in there.

    Raises:
        PortError: it is not there, or is not JSON.
    """
    try:
        config = dict(json.loads((checkpoint / part).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise tpuport.PortError(
            f"{part} cannot be read ({type(error).__name__})",
            where=str(checkpoint),
            fix="give a directory in diffusers' layout; `hf download NAME --local-dir DIR` makes one",
        ) from error
    return config


def check_checkpoint(checkpoint: Path, pipeline: str) -> None:
    """Raise PortError unless this is a local directory with a pipeline of this class."""
    check_directory(checkpoint)
    name = read_config(checkpoint, "model_index.json").get("_class_name")
    if name != pipeline:
        raise tpuport.PortError(
            f"this checkpoint is of a {name}",
            where=str(checkpoint),
            fix=f"give one of a {pipeline}",
        )


def check_mesh(sizes: dict[str, int], checkpoint: Path) -> None:
    """Raise PortError for mesh sizes that cannot be, and for a tp that does not divide the transformer's heads."""
    heads = int(read_config(checkpoint, "transformer/config.json")["num_attention_heads"])
    check_sizes(sizes, heads)
