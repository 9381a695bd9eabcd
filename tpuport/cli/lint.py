"""`tpuport lint`: what in model code cannot be traced, why, and what to write
instead.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpuport.cli.arguments import CommandParser, UsageError, non_negative_integer
from tpuport.cli.console import ProgressLine, print_text, say, use_colours, write_file
from tpuport.cli.lint_settings import add_options, describe_settings, settings_from

if TYPE_CHECKING:
    from tpuport.lint.configuration import Settings
    from tpuport.lint.engine import Run
    from tpuport.lint.run_report import Report

_STANDARD_INPUT: Final = "-"


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = CommandParser(
        prog="tpuport lint",
        description="Find what cannot be traced under jax.jit through torchax, and fix it.",
        epilog="Exit code: 0 clean, 1 findings at error level, 2 something could not be linted. "
        "Settings are read from [tool.tpuport.lint] in the nearest pyproject.toml.",
    )
    add = parser.add_argument
    # No path is an error of `run`: --explain and --list-rules need none.
    add(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files, and directories to search; - is standard input",
    )
    add(
        "--stdin-filename",
        metavar="FILE",
        help="the file that standard input is the text of",
    )
    add(
        "--jobs",
        "-j",
        type=non_negative_integer,
        default=0,
        metavar="N",
        help="processes; 0, the default, means one for each core",
    )
    add(
        "--no-cache",
        action="store_true",
        help="analyse every file again, and store nothing",
    )
    add(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="where results are stored between runs",
    )
    add(
        "--force-exclude",
        action="store_true",
        help="leave out excluded files even if they are named",
    )
    add(
        "--confirm",
        metavar="MODULE:FUNCTION",
        help="run the (model, inputs) that this function returns, and say of each finding whether the run confirms it",
    )
    add(
        "--watch",
        action="store_true",
        help="lint again whenever a file changes, until Ctrl-C",
    )
    add("--explain", metavar="ID", help="explain a rule, and stop")
    add("--list-rules", action="store_true", help="list all rules, and stop")
    add(
        "--show-files",
        action="store_true",
        help="list the files that would be linted, and stop",
    )
    add(
        "--show-settings",
        action="store_true",
        help="show the settings for these paths, and stop",
    )
    add_options(parser.add_argument_group("settings"))
    _add_fixing(parser.add_argument_group("fixing"))
    _add_output(parser.add_argument_group("output"))
    parser.set_defaults(is_stdin=False)
    return parser


def _add_fixing(group: Any) -> None:
    add = group.add_argument
    add("--fix", action="store_true", help="rewrite what can be rewritten safely")
    add(
        "--unsafe-fixes",
        action="store_true",
        help="also rewrite what needs a review; implies --fix",
    )
    add(
        "--diff",
        action="store_true",
        help="show what fixing would change, and write nothing; exit 1 if anything",
    )


def _add_output(group: Any) -> None:
    from tpuport.lint.reports import FORMATS

    add = group.add_argument
    add("--format", choices=FORMATS, default="text", help="how findings are written")
    add("--output-file", type=Path, metavar="FILE", help="write the findings there")
    add(
        "--statistics",
        action="store_true",
        help="count each rule's findings instead of showing them",
    )
    add(
        "--show-source",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="show each finding's line",
    )
    add("--quiet", "-q", action="store_true", help="show findings, and nothing else")
    add("--exit-zero", action="store_true", help="exit 0 even if there are errors")
    add(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="known findings, which are not reported again",
    )
    add("--write-baseline", action="store_true", help="write all findings to that file")
    # ruff's name for it, which is what its users try first.
    description = "write a comment that suppresses it on each finding's line"
    add("--add-ignore", "--add-noqa", action="store_true", help=description)


def run(options: argparse.Namespace) -> int:
    """Run the command; the exit code is 0, 1 for errors, 2 for what could not be
    linted.
    """
    if options.explain is not None:
        _print_findings(_explain_rule(options.explain))
        return 0
    if options.list_rules:
        _print_findings(_list_rules())
        return 0
    options.paths = _paths(options)
    if options.show_settings:
        _print_findings(describe_settings(settings_from(options), options))
        return 0
    if options.show_files:
        _print_findings(_list_files(options))
        return 0
    if options.watch:
        return _watch(options)
    return _run_once(options)


def _paths(options: argparse.Namespace) -> list[str]:
    """The paths to lint; for standard input the file that it is the text of, whose text
    it becomes.

    Raises:
        UsageError: there is none, or standard input is one of several.
    """
    if options.stdin_filename is not None and not options.paths:
        options.paths = [_STANDARD_INPUT]
    if not options.paths:
        raise UsageError(
            "no path was given",
            where="PATH",
            fix="name files or directories: tpuport lint model/",
        )
    if _STANDARD_INPUT not in options.paths:
        return options.paths
    if len(options.paths) > 1:
        fix = "leave out - or the other paths"
        raise UsageError(
            "standard input cannot be linted with other files", where="-", fix=fix
        )
    if options.add_ignore:
        raise UsageError(
            "--add-ignore writes files", where="-", fix="name the file instead of -"
        )
    options.is_stdin = True
    return [options.stdin_filename or _STANDARD_INPUT]


@contextlib.contextmanager
def _standard_input(path: str) -> Iterator[None]:
    """Let standard input be the text of a file, whether or not that exists.

    Raises:
        PortError: it is not text.
    """
    from tpuport.lint import source

    text, _ = source.decode(sys.stdin.buffer.read(), path)
    file = Path(os.path.abspath(path))  # noqa: PTH100 - as the linter makes paths absolute
    source.overlay[file] = text
    try:
        yield
    finally:
        del source.overlay[file]


def _list_files(options: argparse.Namespace) -> str:
    from tpuport.lint.paths import discover_files
    from tpuport.lint.patterns import Excluder

    settings = settings_from(options)
    excluder = Excluder(settings.exclude, settings.root)
    files = discover_files(
        options.paths, excluder, exclude_named=options.force_exclude
    ).files
    return "".join(f"{file}\n" for file in files)


def _watch(options: argparse.Namespace) -> int:
    """Lint once, and again after each change; Ctrl-C ends it."""
    from tpuport.lint.watching import stamps_of, wait_for_change

    _check_watchable(options)
    while True:
        # Taken first, so that a change during the run is seen after it.
        stamps = stamps_of(options.paths)
        _run_once(options)
        say("Waiting for changes; Ctrl-C ends this.")
        wait_for_change(options.paths, stamps)


def _check_watchable(options: argparse.Namespace) -> None:
    """A run that writes files would wake itself up."""
    writing = {
        "--fix": options.fix or options.unsafe_fixes,
        "--add-ignore": options.add_ignore,
        "-": options.is_stdin,
    }
    for option, is_given in writing.items():
        if is_given:
            raise UsageError(
                f"--watch does not go with {option}",
                where="--watch",
                fix=f"leave out {option}",
            )


def _run_once(options: argparse.Namespace) -> int:
    if not options.is_stdin:
        return _lint_and_report(options)
    with _standard_input(options.paths[0]):
        return _lint_and_report(options)


def _lint_and_report(options: argparse.Namespace) -> int:
    settings = settings_from(options)
    report = _lint(options.paths, settings, _run_options(options))
    code = report.exit_code
    if options.diff:
        _show_diff(report)
        # A file that would change is an error, as in CI, but less than one that cannot
        # be linted.
        code = max(code, int(bool(report.diffs)))
    elif options.add_ignore:
        return _add_ignores(report)
    elif options.is_stdin and (options.fix or options.unsafe_fixes):
        _show_fixed_input(report, options)
    else:
        _show_findings(report, options)
    if options.confirm is not None:
        _show_marks(report, options)
    for pattern in () if options.quiet else report.unmatched_entry_points:
        say(f'entry-points: no function in these files is "{pattern}"')
    if options.write_baseline:
        _report_baseline(report, options.baseline, settings)
    # 2 stays: what could not be linted is not a finding.
    if options.exit_zero and code == 1:
        return 0
    return code


def _run_options(options: argparse.Namespace) -> "Run":
    from tpuport.lint.engine import Run
    from tpuport.lint.findings import Applicability

    fix = Applicability.NONE
    if options.unsafe_fixes:
        fix = Applicability.UNSAFE
    # --diff shows what --fix would do.
    elif options.fix or options.diff:
        fix = Applicability.SAFE
    return Run(
        fix=fix,
        write=not (options.diff or options.is_stdin),
        # Results in the cache are those of files on disk.
        cache=not (options.no_cache or options.is_stdin),
        cache_directory=options.cache_dir,
        baseline=options.baseline,
        write_baseline=options.write_baseline,
        exclude_named=options.force_exclude,
    )


def _lint(paths: Sequence[str], settings: "Settings", run: "Run") -> "Report":
    from tpuport.lint.engine import lint_paths

    with ProgressLine("linting", "files") as progress:
        return lint_paths(paths, settings, dataclasses.replace(run, progress=progress))


def _show_findings(report: "Report", options: argparse.Namespace) -> None:
    file = options.output_file
    # A file gets no colours, whatever the terminal shows.
    text = _rendered(report, options, None if file is not None else sys.stdout)
    if file is None:
        _print_findings(text)
    else:
        write_file(file, text, "the findings", "--output-file")


def _rendered(report: "Report", options: argparse.Namespace, stream: Any) -> str:
    from tpuport.lint.reports import Options, render

    style = Options(
        color=use_colours(stream),
        show_source=options.show_source,
        statistics=options.statistics,
        quiet=options.quiet,
    )
    return render(options.format, report, style)


def _show_fixed_input(report: "Report", options: argparse.Namespace) -> None:
    """Write the fixed text to standard output, and what is left to standard error."""
    from tpuport.lint import source

    (path,) = options.paths
    text = source.overlay[Path(os.path.abspath(path))]  # noqa: PTH100 - as the linter makes paths absolute
    print_text(report.texts.get(path, text), "the fixed text", fix="give --diff")
    say(_rendered(report, options, sys.stderr).rstrip("\n"))


def _show_marks(report: "Report", options: argparse.Namespace) -> None:
    """Say of each finding what a run shows; on standard error if standard output or a
    file has another format.
    """
    from tpuport.cli.check import prepare_devices

    prepare_devices()
    from tpuport.verification import confirm
    from tpuport.verification.check_target import load_target
    from tpuport.verification.confirming import describe_marks

    target = load_target(options.confirm, {})
    text = describe_marks(
        confirm(target.model, target.inputs, report.findings), options.confirm
    )
    if options.format == "text" and options.output_file is None:
        _print_findings(f"\n{text}")
    else:
        say(text)


def _add_ignores(report: "Report") -> int:
    from tpuport.base.plurals import count_noun
    from tpuport.lint.ignoring import add_ignores

    counts = add_ignores(report.findings)
    findings = count_noun(sum(counts.values()), "finding")
    say(
        f"Comments in {count_noun(len(counts), 'file')} suppress {findings} from now on."
    )
    # What could not be linted has no line for a comment.
    return 2 if report.failed else 0


def _report_baseline(
    report: "Report", option: Path | None, settings: "Settings"
) -> None:
    from tpuport.base.plurals import count_noun
    from tpuport.lint.session import DEFAULT_BASELINE

    # As the linter itself chooses the file.
    file = option or settings.baseline or DEFAULT_BASELINE
    say(f"The baseline {file.absolute()} holds {count_noun(report.known, 'finding')}.")
    if settings.baseline is None:
        say(
            f'Give --baseline {file}, or set `baseline = "{file}"` in [tool.tpuport.lint], and they are not reported.'
        )


def _show_diff(report: "Report") -> None:
    from tpuport.base.plurals import count_noun
    from tpuport.lint.diagnostics import is_failure

    _print_findings("".join(report.diffs.values()))
    # A file that cannot be linted has no diff, and must not pass for clean.
    for finding in filter(is_failure, report.findings):
        say(f"{finding.place}: {finding.rule}: {finding.reason}")
    places = count_noun(sum(report.fixed.values()), "place")
    say(
        f"{places} in {count_noun(len(report.diffs), 'file')} would be fixed; nothing was written."
    )


def _list_rules() -> str:
    """A line for each rule, by family."""
    from tpuport.lint.findings import Applicability
    from tpuport.lint.rule_catalogue import all_entries

    fixes = {
        Applicability.SAFE: "fix",
        Applicability.UNSAFE: "unsafe fix",
        Applicability.NONE: "",
    }
    families = []
    for (prefix, family), rules in itertools.groupby(
        all_entries(), key=lambda rule: (rule.id[:4], rule.family)
    ):
        lines = [f"{prefix}xx {family}"]
        for rule in rules:
            line = f"  {rule.id}  {rule.name:<28} {rule.severity:<8} {fixes[rule.fix]:<11} {rule.summary}"
            lines.append(line.rstrip())
        families.append("\n".join(lines) + "\n")
    return "\n".join(families)


def _explain_rule(name: str) -> str:
    """Everything about a rule, as Markdown.

    Raises:
        PortError: there is no such rule.
    """
    from tpuport.lint.reports.terminal import Style
    from tpuport.lint.rule_catalogue import entry_for, entry_markdown

    rule = entry_for(name)
    style = Style(use_colours(sys.stdout))
    heading = style(f"# {rule.id} {rule.name}", "bold")
    return f"{heading}\n\n{entry_markdown(rule)}\n"


def _print_findings(text: str) -> None:
    print_text(text, "the findings", fix="give --output-file")
