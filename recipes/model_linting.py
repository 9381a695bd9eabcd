"""Lint the model's code before anything is loaded."""

import importlib.util
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

import tpuport
from recipes.checks import GGUF_SUFFIX
from tpuport import lint


def read_model_config(checkpoint: Path) -> dict[str, Any]:
    """The configuration of a model of transformers, in a directory or a GGUF file, which names its type.

    Raises:
        PortError: it is not there, is not JSON, or names no type.
    """
    if checkpoint.suffix == GGUF_SUFFIX:
        return _read_gguf_config(checkpoint)
    try:
        config = dict(json.loads((checkpoint / "config.json").read_text(encoding="utf-8")))
        str(config["model_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise tpuport.PortError(
            "the configuration cannot be read, or names no model_type",
            where=str(checkpoint / "config.json"),
            fix="give a directory that save_pretrained wrote",
        ) from error
    return config


def _read_gguf_config(checkpoint: Path) -> dict[str, Any]:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(checkpoint.parent, gguf_file=checkpoint.name).to_dict()
    except (ImportError, LookupError, OSError, ValueError) as error:
        raise tpuport.PortError(
            f"transformers cannot read the configuration: {str(error).strip().splitlines()[0]}",
            where=str(checkpoint),
            fix="pip install 'tpuport[gguf]', and check that the file was copied whole",
        ) from error


def model_files(checkpoint: Path) -> list[Path]:
    """The Python files that define the model: those of the checkpoint, or the one of transformers for its type."""
    checkpoint_files = sorted(checkpoint.glob("modeling*.py"))
    if checkpoint_files:
        return checkpoint_files
    model_type = read_model_config(checkpoint)["model_type"]
    # Found without importing it, which would take seconds.
    package = importlib.util.find_spec("transformers")
    assert package is not None
    assert package.origin is not None
    models = Path(package.origin).parent / "models"
    # Some types are in the folder of a larger family: gemma3_text in gemma3.
    name = model_type.replace("-", "_")
    for candidate in (name, name.removesuffix("_text")):
        file = models / candidate / f"modeling_{candidate}.py"
        if file.is_file():
            return [file]
    return []


def lint_model_code(checkpoint: Path, console: Console) -> None:
    """Print the linter's errors in the model's code, and whether it is expected to trace."""
    files = model_files(checkpoint)
    if not files:
        console.print("lint: there is no code for this model type", style="yellow")
        return
    report = lint.lint_paths(files)
    for finding in report.findings:
        if finding.severity == lint.Severity.ERROR:
            location = f"{Path(finding.path).name}:{finding.line}"
            console.print(f"  {location} {finding.rule}: {escape(finding.reason)}")
    names = ", ".join(file.name for file in files)
    console.print(f"lint: {names}, {report.lines} lines. {escape(report.verdict())}")
