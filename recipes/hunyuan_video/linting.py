"""Look at the transformer's code before it is loaded: what could not be traced, and which patch answers for it."""

import importlib.util
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tpuport import lint
from tpuport.patches import registry

MODULE = "diffusers.models.transformers.transformer_hunyuan_video15"


def source_file() -> Path | None:
    """The file of diffusers that holds the transformer; found without importing it."""
    package = importlib.util.find_spec("diffusers")
    folders = (package.submodule_search_locations if package else None) or []
    files = [Path(folder, *MODULE.split(".")[1:]).with_suffix(".py") for folder in folders]
    return next((file for file in files if file.is_file()), None)


def look(console: Console) -> None:
    """Print how many of which findings there are, the verdict, and the patches that replace this code."""
    file = source_file()
    if file is None:
        console.print("lint: diffusers has no HunyuanVideo-1.5 here", style="yellow")
        return
    report = lint.lint_paths([file])
    errors: dict[str, list[int]] = {}
    for finding in report.findings:
        if finding.severity == lint.Severity.ERROR:
            errors.setdefault(f"{finding.rule}: {finding.reason}", []).append(finding.line)
    for what, lines in errors.items():
        console.print(f"  line {', '.join(str(line) for line in lines)}  {escape(what)}")
    console.print(f"lint: {file.name}, {report.lines} lines. {escape(report.verdict())}")
    for status in registry.statuses():
        if status.patch.target.startswith(MODULE):
            console.print(f"patch {status.patch.name}: {escape(status.patch.why)}")
