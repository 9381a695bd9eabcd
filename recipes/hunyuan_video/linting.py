"""Lint the transformer's code before it is loaded, and list the patches that replace it."""

import importlib.util
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tpuport import lint
from tpuport.patches import registry

MODULE = "diffusers.models.transformers.transformer_hunyuan_video15"


def source_file() -> Path | None:
    """The file of diffusers that defines the transformer, if this version has it; found without importing it."""
    package = importlib.util.find_spec("diffusers")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent.joinpath(*MODULE.split(".")[1:]).with_suffix(".py")
    return file if file.is_file() else None


def lint_model_code(console: Console) -> None:
    """Print the linter's errors by kind, its verdict, and the patches that replace this code."""
    file = source_file()
    if file is None:
        console.print("lint: this version of diffusers has no HunyuanVideo-1.5", style="yellow")
        return
    report = lint.lint_paths([file])
    errors: dict[str, list[int]] = {}
    for finding in report.findings:
        if finding.severity == lint.Severity.ERROR:
            errors.setdefault(f"{finding.rule}: {finding.reason}", []).append(finding.line)
    for error, lines in errors.items():
        console.print(f"  line {', '.join(map(str, lines))}  {escape(error)}")
    console.print(f"lint: {file.name}, {report.lines} lines. {escape(report.verdict())}")
    console.print("these patches replace that code:")
    for status in registry.statuses():
        if status.patch.target.startswith(MODULE):
            console.print(f"patch {status.patch.name}: {escape(status.patch.why)}")
