"""Lint the code of a pipeline's transformer before it is loaded, and list the patches that replace it."""

import importlib.util
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tpuport import lint
from tpuport.patches import registry


def source_file(module: str) -> Path | None:
    """The file of this module of diffusers, if this version has it; found without importing it."""
    package = importlib.util.find_spec("diffusers")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return file if file.is_file() else None


def lint_model_code(module: str, console: Console) -> None:
    """Print the linter's errors in a module by kind, its verdict, and the patches that replace this code."""
    file = source_file(module)
    if file is None:
        console.print(f"lint: this version of diffusers has no {module}", style="yellow")
        return
    report = lint.lint_paths([file])
    errors: dict[str, list[int]] = {}
    for finding in report.findings:
        if finding.severity == lint.Severity.ERROR:
            errors.setdefault(f"{finding.rule}: {finding.reason}", []).append(finding.line)
    for error, lines in errors.items():
        console.print(f"  line {', '.join(map(str, lines))}  {escape(error)}")
    console.print(f"lint: {file.name}, {report.lines} lines. {escape(report.verdict())}")
    places = lambda status: status.places or (status.patch.target,)  # noqa: E731
    patches = [
        status.patch
        for status in registry.statuses()
        if any(place.startswith(module) for place in places(status))
    ]
    if patches:
        console.print("these patches replace that code:")
    for patch in patches:
        console.print(f"patch {patch.name}: {escape(patch.why)}")
