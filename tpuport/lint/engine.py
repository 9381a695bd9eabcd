"""The linter's entry point: from paths to a report."""

import dataclasses
import hashlib
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

from tpuport.errors import PortError
from tpuport.lint import baseline
from tpuport.lint.configuration import Settings, find_settings
from tpuport.lint.diagnostics import is_diagnostic
from tpuport.lint.entry_verdicts import EntryVerdict, Stop, group_of, key_of
from tpuport.lint.findings import Applicability, Finding, Severity
from tpuport.lint.fixing import FixResult, fix_files, label_fixes
from tpuport.lint.paths import relative_to_working_directory
from tpuport.lint.patterns import unmatched_patterns
from tpuport.lint.run_report import Report, is_in_library
from tpuport.lint.session import CollectedFindings, Run, Session

__all__ = ["Run", "lint_paths"]


def lint_paths(
    paths: Sequence[str | Path],
    settings: Settings | None = None,
    run: Run | None = None,
) -> Report:
    """Lint files and all Python files below directories.

    Args:
        paths: files and directories.
        settings: if None, those of the nearest pyproject.toml.
        run: fixing, caching and the baseline.

    Raises:
        PortError: the settings, the baseline or the cache's directory cannot be used. A
            problem with a linted file is a finding.
    """
    started = time.perf_counter()
    if not paths:
        raise PortError(
            "there is nothing to lint", where="paths", fix="name files or directories"
        )
    session = Session(paths, settings or find_settings(paths), run or Run())
    session.analyse()
    fix_result = FixResult({}, {}, [], {})
    if session.run.fix != Applicability.NONE:
        fix_result = fix_files(session)
    return _build_report(session, fix_result, started)


def _build_report(session: Session, fix_result: FixResult, started: float) -> Report:
    # Collected again after fixing: the results are those of the fixed files.
    collected = session.collect_findings()
    if session.run.write_baseline:
        _write_baseline(session, collected)
    labels = label_fixes(session, collected.reported)
    displayed = [_as_displayed(finding, session) for finding in labels.findings]
    path_findings = _displayed_path_findings(session, fix_result)
    results = session.results.values()
    traced = frozenset[str]().union(*(result.traced for result in results))
    return Report(
        # In the order of the text: lines of a notebook are counted in cells.
        findings=tuple(
            sorted(displayed + path_findings, key=lambda f: (f.path, f.cell, f))
        ),
        files=len(session.files),
        lines=sum(result.lines for result in results),
        entry_points=sum(result.entry_points for result in results),
        traced=len(traced),
        unmatched_entry_points=_unmatched_entry_points(session, traced),
        # Counted before the settings change severities, because they do not change what
        # stops a trace.
        stops=sum(
            f.stops_trace and not is_diagnostic(f)
            for f in (*collected.reported, *collected.known)
        ),
        passable=_count_passable(collected.reported, displayed),
        outside=tuple(map(_with_relative_path, sorted(collected.outside))),
        failing_outside=tuple(
            itertools.filterfalse(is_in_library, collected.failing_outside)
        ),
        suppressed=collected.suppressed,
        known=len(collected.known),
        stale=collected.stale,
        unasked=tuple(sorted(finding.rule for finding in collected.unselected)),
        exact_fixes=labels.are_exact,
        verdicts=_entry_verdicts(session, collected),
        fixed={session.files[path]: count for path, count in fix_result.counts.items()},
        diffs={
            session.files[path]: diff for path, diff in sorted(fix_result.diffs.items())
        },
        texts={session.files[path]: text for path, text in fix_result.texts.items()},
        cached=session.cached,
        seconds=time.perf_counter() - started,
        source=lambda finding: session.shown_lines(
            session.absolute_path(finding.path), finding.cell
        ),
        fingerprint=lambda finding: _fingerprint(finding, session),
    )


def _write_baseline(session: Session, collected: CollectedFindings) -> None:
    """Write all findings of rules to the baseline; from then on they are known ones."""
    assert session.baseline_file is not None
    # Diagnostics stay: a file that cannot be read is not something to get used to.
    collected.known = list(itertools.filterfalse(is_diagnostic, collected.reported))
    collected.reported = list(filter(is_diagnostic, collected.reported))
    baseline.write_baseline(session.baseline_file, collected.known, session.lines)


def _displayed_path_findings(session: Session, fix_result: FixResult) -> list[Finding]:
    """The findings on paths and whole files."""
    findings = [*session.path_findings, *fix_result.problems]
    return [
        _as_displayed(finding, session)
        for finding in findings
        if session.settings.is_enabled(finding.rule)
    ]


def _with_relative_path(finding: Finding) -> Finding:
    return dataclasses.replace(
        finding, path=relative_to_working_directory(finding.path)
    )


def _as_displayed(finding: Finding, session: Session) -> Finding:
    """The finding with its path as the user wrote it and the severity of the
    settings.
    """
    return dataclasses.replace(
        session.in_cell(finding),
        path=session.files.get(finding.path, finding.path),
        severity=session.settings.severity(finding.rule, finding.severity),
    )


def _unmatched_entry_points(
    session: Session, traced: frozenset[str]
) -> tuple[str, ...]:
    # A pattern that only matches a function of some library is a mistake too.
    functions = [
        function for function in traced if function.rpartition(":")[0] in session.files
    ]
    return unmatched_patterns(session.settings.entry_points, functions)


def _entry_verdicts(
    session: Session, collected: CollectedFindings
) -> tuple[EntryVerdict, ...]:
    """The verdict on each entry point; an error that a comment suppresses is one that
    somebody has looked at.
    """
    findings = (
        *collected.reported,
        *collected.known,
        *collected.outside,
        *collected.unselected,
    )
    by_key = {
        key_of(finding): _with_display(finding, session)
        for finding in findings
        if finding.stops_trace
    }
    verdicts: list[EntryVerdict] = []
    for path, result in session.results.items():
        display = session.files[path]
        group = group_of(display, session.lines(path)) if result.entries else ""
        for entry in result.entries:
            errors = sorted(
                _error_of(stop, by_key) for stop in entry.stops if stop.key in by_key
            )
            cell, line = 0, entry.line
            if (notebook := session.notebook(path)) is not None:
                cell, line = notebook.locate(entry.line)
            verdicts.append(
                EntryVerdict(entry.name, display, line, group, tuple(errors), cell)
            )
    return tuple(
        sorted(verdicts, key=lambda verdict: (verdict.path, verdict.cell, verdict.line))
    )


def _error_of(stop: Stop, by_key: dict[str, Finding]) -> Finding:
    """The error as this entry point has it: another one may reach it in other calls."""
    error = by_key[stop.key]
    if error.scenario == stop.scenario:
        return error
    return dataclasses.replace(error, scenario=stop.scenario)


def _with_display(finding: Finding, session: Session) -> Finding:
    if finding.path in session.files:
        return dataclasses.replace(
            session.in_cell(finding), path=session.files[finding.path]
        )
    return _with_relative_path(finding)


def _count_passable(findings: Sequence[Finding], displayed: Sequence[Finding]) -> int:
    """The number of findings that are errors in the report although they do not stop a
    trace.
    """
    return sum(
        in_report.severity == Severity.ERROR
        and not finding.stops_trace
        and not is_diagnostic(finding)
        for finding, in_report in zip(findings, displayed, strict=True)
    )


def _fingerprint(finding: Finding, session: Session) -> str:
    finding = session.in_module(
        dataclasses.replace(finding, path=session.absolute_path(finding.path))
    )
    # Relative to the working directory, so that checkouts in different places agree.
    key = baseline.finding_key(finding, session.lines, Path.cwd())
    return hashlib.blake2b(
        "\0".join(key).encode(errors="surrogateescape"), digest_size=16
    ).hexdigest()
