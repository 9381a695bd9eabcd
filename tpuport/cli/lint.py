"""`tpuport lint`: what in model code cannot be traced, why, and what to write instead."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpuport.errors import PortError

if TYPE_CHECKING:
    from tpuport.lint.configuration import Settings
    from tpuport.lint.engine import Run
    from tpuport.lint.run_report import Report


def lint(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code: 0, 1 for errors, 2 for what could not be linted or wrong usage."""
    try:
        try:
            return _run(_parser().parse_args(arguments))
        except PortError as error:
            _say(str(error), red=True)
        except KeyboardInterrupt:
            _say("interrupted; every file is whole", red=True)
            return 130
        except BrokenPipeError:  # whoever read the findings has seen enough
            _drop_output()
            return 1
    except SystemExit as error:  # argparse has shown its help, or what is wrong
        return error.code if isinstance(error.code, int) else 2
    except Exception:  # noqa: BLE001 - exit code 1 would say that there are findings
        import traceback

        _say(f"{traceback.format_exc()}This is a bug of tpuport; please report it.", red=True)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tpuport lint",
        description="Find what cannot be traced under jax.jit through torchax, and mend it.",
        epilog="Exit code: 0 clean, 1 findings at error level, 2 something could not be linted. Settings are read from"
        " [tool.tpuport.lint] in the nearest pyproject.toml.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="files, and directories to search")
    add("--select", action="append", metavar="IDS", default=[], help="ask only these rules: TPU101,TPU2")
    add("--ignore", action="append", metavar="IDS", default=[], help="do not ask these rules")
    add("--target", metavar="torchax==VERSION", help="the torchax that the code is for")
    add("--jobs", "-j", type=_count, default=0, metavar="N", help="processes; 0, the default, for one a core")
    add("--no-cache", action="store_true", help="analyse every file anew, and keep nothing")
    add("--cache-dir", type=Path, metavar="DIR", help="where results are kept between runs")
    add("--force-exclude", action="store_true", help="leave excluded files out even where they are named")
    add("--explain", metavar="ID", help="say all about a rule, and stop")
    add("--list-rules", action="store_true", help="list all rules, and stop")
    _add_fixing(parser.add_argument_group("fixing"))
    _add_output(parser.add_argument_group("output"))
    return parser


def _add_fixing(group: Any) -> None:
    add = group.add_argument
    add("--fix", action="store_true", help="rewrite what can be rewritten safely")
    add(
        "--unsafe-fixes", action="store_true", help="rewrite also what wants a look afterwards; implies --fix"
    )
    add("--diff", action="store_true", help="show what fixing would change, and write nothing; 1 if anything")


def _add_output(group: Any) -> None:
    from tpuport.lint.reports import FORMATS

    add = group.add_argument
    add("--format", choices=FORMATS, default="text", help="how findings are written")
    add("--output-file", type=Path, metavar="FILE", help="write the findings there")
    add("--statistics", action="store_true", help="count each rule's findings instead of showing them")
    add("--show-source", action=argparse.BooleanOptionalAction, default=True, help="show each finding's line")
    add("--exit-zero", action="store_true", help="exit 0 where there are errors, too")
    add("--baseline", type=Path, metavar="FILE", help="known findings, which are not told again")
    add("--write-baseline", action="store_true", help="write all findings to that file")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes")
    return int(text)


def _run(options: argparse.Namespace) -> int:
    if options.explain is not None or options.list_rules:
        from tpuport.cli.rules import explanation, listing

        _print(
            listing() if options.explain is None else explanation(options.explain, color=_color(sys.stdout))
        )
        return 0
    if not options.paths:
        raise PortError(
            "no path was given", where="PATH", fix="name files or directories: tpuport lint model/"
        )
    settings = _settings(options)
    report = _lint(options.paths, settings, _how(options))
    code = report.exit_code
    if options.diff:
        _show_diff(report)
        code = max(code, int(bool(report.diffs)))
    else:
        _show(report, options)
    for pattern in report.unmatched_entry_points:
        _say(f'entry-points: no function in these files is "{pattern}"')
    if options.write_baseline:
        _tell_baseline(report, options.baseline, settings)
    return 0 if options.exit_zero and code == 1 else code


def _settings(options: argparse.Namespace) -> "Settings":
    """The settings of pyproject.toml with the command line's over them."""
    import dataclasses

    from tpuport.lint.configuration import find_settings, parse_torchax_version
    from tpuport.lint.rule_catalogue import normalize_prefixes

    settings = find_settings(options.paths)
    select, ignore = _listed(options.select), _listed(options.ignore)
    return dataclasses.replace(
        settings,
        select=normalize_prefixes(select, "--select") if select else settings.select,
        ignore=(*settings.ignore, *normalize_prefixes(ignore, "--ignore")),
        jobs=options.jobs or settings.jobs,
        torchax=parse_torchax_version(options.target) if options.target else settings.torchax,
    )


def _listed(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def _how(options: argparse.Namespace) -> "Run":
    from tpuport.lint.engine import Run
    from tpuport.lint.findings import Applicability

    safe = Applicability.SAFE if options.fix or options.diff else Applicability.NONE
    return Run(
        fix=Applicability.UNSAFE if options.unsafe_fixes else safe,
        write=not options.diff,
        cache=not options.no_cache,
        cache_directory=options.cache_dir,
        baseline=options.baseline,
        write_baseline=options.write_baseline,
        exclude_named=options.force_exclude,
    )


def _lint(paths: Sequence[str], settings: "Settings", run: "Run") -> "Report":
    import dataclasses

    from tpuport.cli.progress import Progress
    from tpuport.lint.engine import lint_paths

    with Progress("linting", "files") as progress:
        return lint_paths(paths, settings, dataclasses.replace(run, progress=progress))


def _show(report: "Report", options: argparse.Namespace) -> None:
    from tpuport.lint.paths import write_atomically
    from tpuport.lint.reports import Options, render

    file = options.output_file
    color = file is None and _color(sys.stdout)
    looks = Options(color=color, show_source=options.show_source, statistics=options.statistics)
    text = render(options.format, report, looks)
    if file is None:
        _print(text)
        return
    try:
        write_atomically(file, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise PortError(
            f"the findings cannot be written: {error.strerror}", where=f"--output-file {file}"
        ) from None


def _tell_baseline(report: "Report", named: Path | None, settings: "Settings") -> None:
    from tpuport.lint.run_report import count_noun
    from tpuport.lint.session import DEFAULT_BASELINE

    file = named or settings.baseline or DEFAULT_BASELINE
    _say(f"The baseline {file.absolute()} holds {count_noun(report.known, 'finding')}.")
    if settings.baseline is None:
        _say(
            f'Give --baseline {file}, or set `baseline = "{file}"` in [tool.tpuport.lint], and they are not told.'
        )


def _show_diff(report: "Report") -> None:
    from tpuport.lint.diagnostics import is_failure
    from tpuport.lint.run_report import count_noun

    _print("".join(report.diffs.values()))
    for finding in report.findings:
        if is_failure(finding):
            _say(f"{finding.path}:{finding.line}: {finding.rule}: {finding.reason}")
    places = count_noun(sum(report.fixed.values()), "place")
    _say(f"{places} in {count_noun(len(report.diffs), 'file')} would be fixed; nothing was written.")


def _print(text: str) -> None:
    """Write text as it is; what the terminal's encoding lacks is escaped."""
    if sys.stdout is None:  # so Python starts where the shell has closed it
        raise _unwritable("it is closed")
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise _unwritable(error.strerror or str(error)) from None


def _unwritable(why: str) -> PortError:
    return PortError(
        f"the findings cannot be written: {why}", where="standard output", fix="give --output-file"
    )


def _drop_output() -> None:
    """Send what is still to be written nowhere: Python tries once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str, *, red: bool = False) -> None:
    """Write a line to standard error."""
    if sys.stderr is None:
        return
    text = f"\x1b[31m{text}\x1b[0m" if red and _color(sys.stderr) else text
    sys.stderr.write(text.encode(errors="backslashreplace").decode() + "\n")
    sys.stderr.flush()


_PLAIN: Final = {"dumb", ""}


def _color(stream: Any) -> bool:
    """Whether colours are wanted: on a terminal, unless NO_COLOR is set; FORCE_COLOR wins over the terminal."""
    if stream is None or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM", "unknown") not in _PLAIN
