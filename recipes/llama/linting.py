"""Look at the model's code before anything is loaded: what in it could not be traced."""

import importlib.util
import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape

import tpuport
from tpuport import lint


def model_files(checkpoint: Path) -> list[Path]:
    """The Python files that define the checkpoint's model: its own, or those in transformers for its model type."""
    own = sorted(checkpoint.glob("modeling*.py"))
    if own:
        return own
    try:
        kind = str(json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["model_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise tpuport.PortError(
            "the configuration cannot be read, or names no model_type",
            where=str(checkpoint / "config.json"),
            fix="give a directory that save_pretrained wrote",
        ) from error
    library = importlib.util.find_spec("transformers")
    folders = library.submodule_search_locations if library else None
    # Some types live in the folder of a larger family: gemma3_text in gemma3.
    names = [kind.replace("-", "_"), kind.replace("-", "_").removesuffix("_text")]
    found = [
        Path(folder, "models", name, f"modeling_{name}.py") for folder in folders or () for name in names
    ]
    return [file for file in dict.fromkeys(found) if file.is_file()][:1]


def look(checkpoint: Path, console: Console) -> None:
    """Print the linter's errors in the model's code, and whether it is expected to trace."""
    files = model_files(checkpoint)
    if not files:
        console.print("lint: no code was found for this model type", style="yellow")
        return
    report = lint.lint_paths(files)
    for finding in report.findings:
        if finding.severity == lint.Severity.ERROR:
            place = f"{Path(finding.path).name}:{finding.line}"
            console.print(f"  {place} {finding.rule}: {escape(finding.reason)}")
    names = ", ".join(file.name for file in files)
    console.print(f"lint: {names}, {report.lines} lines. {escape(report.verdict())}")
