"""What is asked of a recipe, checked before weights are read."""

from pathlib import Path

import torch

import tpuport

GGUF_SUFFIX = ".gguf"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def check_directory(checkpoint: Path) -> None:
    """Raise PortError unless the checkpoint is a local directory."""
    if not checkpoint.is_dir():
        fix = "give a local directory; `hf download NAME --local-dir DIR` creates one"
        raise tpuport.PortError("there is no such directory", where=str(checkpoint), fix=fix)


def check_checkpoint(checkpoint: Path) -> None:
    """Raise PortError unless the checkpoint is a local directory, or a GGUF file."""
    if checkpoint.suffix != GGUF_SUFFIX:
        check_directory(checkpoint)
    elif not checkpoint.is_file():
        raise tpuport.PortError("there is no such file", where=str(checkpoint), fix="give a local GGUF file")


def check_dtype(name: str) -> None:
    """Raise PortError for a dtype that the recipe does not run."""
    if name not in DTYPES:
        raise tpuport.PortError(f"dtype {name!r}", where="--dtype", fix=" or ".join(DTYPES))


def check_sizes(sizes: dict[str, int], heads: int) -> None:
    """Raise PortError for mesh sizes that cannot be, and for a tp that does not divide the model's heads."""
    for name, size in sizes.items():
        if size < 1 and size != -1:
            raise tpuport.PortError(
                f"{size} devices", where=f"--{name}", fix="1 or more, or -1 for all that are left"
            )
    if sizes["tp"] > 0 and heads % sizes["tp"]:
        fix = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
        raise tpuport.PortError(
            f"{heads} heads cannot be shared by {sizes['tp']}", where="--tp", fix=f"one of {fix}"
        )


def check_output(output: Path) -> None:
    """Raise PortError where the output folder cannot be one."""
    existing = next((path for path in (output, *output.parents) if path.exists()), None)
    if existing is not None and not existing.is_dir():
        raise tpuport.PortError(
            "this is a file", where=str(existing), fix="give a folder, or one that is not there yet"
        )
