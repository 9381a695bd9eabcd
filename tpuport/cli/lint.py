"""`tpuport lint`: what in model code cannot be traced, why, and what to write instead."""

import enum
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tpuport.errors import PortError

if TYPE_CHECKING:
    from tpuport.lint.engine import Run
    from tpuport.lint.report import Report
    from tpuport.lint.settings import Settings


class Format(enum.StrEnum):
    """Names of the formats in `tpuport.lint.reports`."""

    TEXT = "text"
    CONCISE = "concise"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"
    GITLAB = "gitlab"
    JUNIT = "junit"


_Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH...", help="Files, and directories to search.", show_default=False),
]
_Select = Annotated[
    list[str] | None, typer.Option("--select", metavar="IDS", help="Ask only these rules: TPU101,TPU2.")
]
_Ignore = Annotated[list[str] | None, typer.Option("--ignore", metavar="IDS", help="Do not ask these rules.")]
_Fix = Annotated[bool, typer.Option("--fix", help="Rewrite what can be rewritten safely.")]
_Unsafe = Annotated[
    bool, typer.Option("--unsafe-fixes", help="Rewrite also what wants a look afterwards; implies --fix.")
]
_Diff = Annotated[bool, typer.Option("--diff", help="Show what --fix would change, and write nothing.")]
_Format = Annotated[Format, typer.Option("--format", help="How findings are written.")]
_Output = Annotated[Path | None, typer.Option("--output-file", help="Write the findings there.")]
_Statistics = Annotated[bool, typer.Option("--statistics", help="Count the findings of each rule.")]
_ExitZero = Annotated[bool, typer.Option("--exit-zero", help="Exit 0 where there are errors, too.")]
_Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, help="Processes; 0 for one a core.")]
_NoCache = Annotated[bool, typer.Option("--no-cache", help="Analyse every file anew, and keep nothing.")]
_Source = Annotated[bool, typer.Option(help="Show the line of each finding.")]
_Baseline = Annotated[Path | None, typer.Option("--baseline", help="File of known findings, not told again.")]
_WriteBaseline = Annotated[bool, typer.Option("--write-baseline", help="Write all findings to that file.")]
_Target = Annotated[
    str | None, typer.Option("--target", metavar="torchax==VERSION", help="The torchax that the code is for.")
]
_ForceExclude = Annotated[
    bool, typer.Option("--force-exclude", help="Leave excluded files out even where they are named.")
]
_Explain = Annotated[str | None, typer.Option("--explain", metavar="ID", help="Say all about a rule.")]
_ListRules = Annotated[bool, typer.Option("--list-rules", help="List all rules.")]


def lint(
    paths: _Paths = None, *, select: _Select = None, ignore: _Ignore = None, fix: _Fix = False,
    unsafe_fixes: _Unsafe = False, diff: _Diff = False, output_format: _Format = Format.TEXT,
    output_file: _Output = None, statistics: _Statistics = False, exit_zero: _ExitZero = False, jobs: _Jobs = 0,
    no_cache: _NoCache = False, show_source: _Source = True, baseline: _Baseline = None,
    write_baseline: _WriteBaseline = False, target: _Target = None, force_exclude: _ForceExclude = False,
    explain: _Explain = None, list_rules: _ListRules = False,
) -> None:  # fmt: skip
    """Find what cannot be traced under jax.jit, and mend it; exit 1 for errors, 2 for what could not be linted."""
    with _ends_well():
        if explain is not None or list_rules:
            from tpuport.cli.rules import explanation, listing

            _print(listing() if explain is None else explanation(explain, color=_color()))
            raise typer.Exit
        if not paths:
            raise PortError(
                "no path was given", where="PATH", fix="name files or directories: tpuport lint model/"
            )
        settings = _settings(paths, select or [], ignore or [], jobs, target)
        run = _run(fix, unsafe_fixes, diff, no_cache, baseline, write_baseline, force_exclude)
        report = _lint(paths, settings, run)
        if diff:
            _show_diff(report)
        else:
            _show(report, output_format.value, output_file, statistics=statistics, show_source=show_source)
        if write_baseline:
            typer.echo(f"The baseline holds {report.known:,} findings.", err=True)
        code = max(report.exit_code, 1) if diff and report.diffs else report.exit_code
        raise typer.Exit(0 if exit_zero and code == 1 else code)


class _ends_well:  # noqa: N801 - read as a word of the sentence it stands in
    """Makes an exit code of whatever ends the command: 2 where it could not do its work, 130 for Ctrl-C."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PortError):
            _error(str(error))
            raise typer.Exit(2) from None
        if isinstance(error, KeyboardInterrupt):
            _error("interrupted; every file is whole")
            raise typer.Exit(130) from None
        if isinstance(error, Exception) and not isinstance(error, typer.Exit | BrokenPipeError):
            _error("".join(traceback.format_exception(error)) + "This is a bug of tpuport; please report it.")
            raise typer.Exit(2) from None


def _settings(
    paths: Sequence[str], select: Sequence[str], ignore: Sequence[str], jobs: int, target: str | None
) -> "Settings":
    """The settings of pyproject.toml with the command line's over them."""
    import dataclasses

    from tpuport.lint.diagnostics import known_prefixes
    from tpuport.lint.settings import find_settings, torchax_version

    settings = find_settings(paths)
    changes: dict[str, object] = {}
    if select:
        changes["select"] = known_prefixes(_listed(select), "--select")
    if ignore:
        changes["ignore"] = (*settings.ignore, *known_prefixes(_listed(ignore), "--ignore"))
    if jobs:
        changes["jobs"] = jobs
    if target is not None:
        changes["torchax"] = torchax_version(target)
    return dataclasses.replace(settings, **changes)  # pyright: ignore[reportArgumentType] - checked above


def _listed(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def _run(
    fix: bool, unsafe: bool, diff: bool, no_cache: bool, baseline: Path | None, write: bool, force: bool
) -> "Run":
    from tpuport.lint.engine import Run
    from tpuport.lint.findings import Applicability

    wanted = Applicability.UNSAFE if unsafe else Applicability.SAFE if fix or diff else Applicability.NONE
    return Run(
        fix=wanted,
        write=not diff,
        cache=not no_cache,
        baseline=baseline,
        write_baseline=write,
        exclude_named=force,
    )


def _lint(paths: Sequence[str], settings: "Settings", run: "Run") -> "Report":
    import dataclasses

    from tpuport.cli.progress import Progress
    from tpuport.lint.engine import lint_paths

    with Progress("linting", "files") as progress:
        return lint_paths(paths, settings, dataclasses.replace(run, progress=progress))


def _show(report: "Report", name: str, file: Path | None, *, statistics: bool, show_source: bool) -> None:
    from tpuport.lint.files import write_atomically
    from tpuport.lint.reports import Options, render

    options = Options(color=file is None and _color(), show_source=show_source, statistics=statistics)
    text = render(name, report, options)
    if file is None:
        _print(text)
        return
    try:
        write_atomically(file, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise PortError(
            f"the findings cannot be written: {error.strerror}", where=f"--output-file {file}"
        ) from None


def _show_diff(report: "Report") -> None:
    from tpuport.lint.diagnostics import is_failure
    from tpuport.lint.report import counted

    _print("".join(report.diffs.values()))
    for finding in report.findings:
        if is_failure(finding):
            _error(f"{finding.path}:{finding.line}: {finding.rule}: {finding.reason}")
    places = counted(sum(report.fixed.values()), "place")
    typer.echo(
        f"{places} in {counted(len(report.diffs), 'file')} would be fixed; nothing was written.", err=True
    )


def _print(text: str) -> None:
    """Write text as it is; what the terminal's encoding lacks is escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def _error(text: str) -> None:
    typer.secho(text, err=True, fg="red" if _color(sys.stderr) else None)


_PLAIN: Final = {"dumb", ""}


def _color(stream: object = None) -> bool:
    """Whether colours are wanted: on a terminal, unless NO_COLOR is set; FORCE_COLOR wins over the terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    terminal = (stream or sys.stdout).isatty()  # pyright: ignore[reportAttributeAccessIssue]
    return terminal and os.environ.get("TERM", "unknown") not in _PLAIN
