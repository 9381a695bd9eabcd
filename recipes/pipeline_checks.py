"""What is asked of a recipe of a pipeline, checked against the checkpoint's configuration before weights are read."""

import json
from pathlib import Path
from typing import Any

import torch

import tpuport

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


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
    if not checkpoint.is_dir():
        fix = "give a local directory in diffusers' layout; `hf download NAME --local-dir DIR` makes one"
        raise tpuport.PortError("there is no such directory", where=str(checkpoint), fix=fix)
    name = read_config(checkpoint, "model_index.json").get("_class_name")
    if name != pipeline:
        raise tpuport.PortError(
            f"this checkpoint is of a {name}",
            where=str(checkpoint),
            fix=f"give one of a {pipeline}",
        )


def check_dtype(name: str) -> None:
    """Raise PortError for a dtype that the recipe does not run."""
    if name not in DTYPES:
        raise tpuport.PortError(f"dtype {name!r}", where="--dtype", fix=" or ".join(DTYPES))


def check_mesh(sizes: dict[str, int], checkpoint: Path) -> None:
    """Raise PortError for mesh sizes that cannot be, and for a tp that does not divide the transformer's heads."""
    for name, size in sizes.items():
        if size < 1 and size != -1:
            raise tpuport.PortError(
                f"{size} devices", where=f"--{name}", fix="1 or more, or -1 for all that are left"
            )
    heads = int(read_config(checkpoint, "transformer/config.json")["num_attention_heads"])
    if sizes["tp"] > 0 and heads % sizes["tp"]:
        fix = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
        raise tpuport.PortError(
            f"{heads} heads cannot be shared by {sizes['tp']}", where="--tp", fix=f"one of {fix}"
        )


def check_output(output: Path) -> None:
    """Raise PortError where the output folder cannot be one."""
    taken = next((place for place in (output, *output.parents) if place.exists()), None)
    if taken is not None and not taken.is_dir():
        raise tpuport.PortError(
            "this is a file", where=str(taken), fix="give a folder, or one that is not there yet"
        )
