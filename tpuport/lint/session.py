"""One run of the linter, up to the findings that it reports."""

import collections
import contextlib
import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from tpuport.errors import PortError
from tpuport.lint import baseline, source, suppressions, workers
from tpuport.lint.configuration import Settings
from tpuport.lint.diagnostics import ALWAYS_ENABLED
from tpuport.lint.findings import Applicability, Finding, Severity
from tpuport.lint.notebooks import SUFFIX, CellPosition, Notebook
from tpuport.lint.paths import common_directory, discover_files
from tpuport.lint.patterns import Excluder
from tpuport.lint.result_cache import Cache, cache_directory_for
from tpuport.lint.rule_catalogue import all_ids
from tpuport.lint.workers import FileResult

# Written in the working directory if neither the settings nor the command line name a
# baseline.
DEFAULT_BASELINE: Final = Path("tpuport-baseline.json")

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Options of a run that are not settings of the project.

    Attributes:
        fix: apply fixes up to this: NONE for no fixes, SAFE, or UNSAFE for both kinds.
        write: write the fixed files; otherwise the report only contains the
            differences.
        cache: read and write results on disk.
        cache_directory: the cache's directory; if None, beside the nearest
            pyproject.toml, or in the user's cache.
        baseline: file of known findings; if None, that of the settings.
        write_baseline: write that file instead of reading it.
        exclude_named: exclude files even if the user names them.
        progress: called with the number of finished files and the number of all files.
    """

    fix: Applicability = Applicability.NONE
    write: bool = True
    cache: bool = True
    cache_directory: Path | None = None
    baseline: Path | None = None
    write_baseline: bool = False
    exclude_named: bool = False
    progress: Progress | None = None


@dataclasses.dataclass(slots=True)
class CollectedFindings:
    """The findings of all files, with absolute paths and the rules' own severities.

    Attributes:
        reported: to be shown.
        outside: errors that stop a trace, in files that were not named.
        suppressed: number of findings that comments suppress.
        known: those in the baseline.
        stale: number of entries of the baseline without a finding.
        failing_outside: those of `outside` that would be reported as errors if their
            files were named.
        unselected: errors that stop a trace, of rules that are not selected.
    """

    reported: list[Finding] = dataclasses.field(default_factory=list)
    outside: list[Finding] = dataclasses.field(default_factory=list)
    suppressed: int = 0
    known: list[Finding] = dataclasses.field(default_factory=list)
    stale: int = 0
    failing_outside: list[Finding] = dataclasses.field(default_factory=list)
    unselected: list[Finding] = dataclasses.field(default_factory=list)


class Session:
    """The files of a run and their results.

    Attributes:
        settings: the project's.
        run: the run's own options.
        files: absolute path to the path that reports show.
        path_findings: findings on paths and whole files, with paths as reports show
            them.
        results: by absolute path.
        cached: number of results that came from the cache.
        baseline_file: the baseline to read or write; None for none.
        cache: results of earlier runs; None before `analyse`, and without a cache.
    """

    def __init__(
        self, paths: Sequence[str | Path], settings: Settings, run: Run
    ) -> None:
        self.settings = settings
        self.run = run
        # Patterns with a slash start at the settings' own directory, wherever the paths
        # are.
        self._excluder = Excluder(settings.exclude, settings.root)
        discovery = discover_files(
            paths, self._excluder, exclude_named=run.exclude_named
        )
        self.files = {str(path): display for path, display in discovery.files.items()}
        self._path_by_display = {display: path for path, display in self.files.items()}
        self.path_findings = discovery.findings
        self.results: dict[str, FileResult] = {}
        self.cached = 0
        self.baseline_file = run.baseline or settings.baseline
        if run.write_baseline and self.baseline_file is None:
            self.baseline_file = DEFAULT_BASELINE
        self._baseline: collections.Counter[baseline.FindingKey] | None = None
        if self.baseline_file is not None and not run.write_baseline:
            # Read before the analysis, so that an unusable file ends the run at once.
            self._baseline = baseline.read_baseline(self.baseline_file)
        self._lines: dict[str, tuple[str, ...]] = {}
        self._notebooks: dict[str, Notebook | None] = {}
        self._outside_suppressions: dict[str, suppressions.Suppressions] = {}
        # Set by `analyse`; None without a cache.
        self.cache: Cache | None = None

    def analyse(self) -> None:
        """Fill `results`, from the cache where that is valid."""
        if self.files:
            # Before any fixing, whose results belong to texts that may never be
            # written.
            self.analyse_and_store(self.read_cache())

    def read_cache(self) -> list[str]:
        """Fill `results` with those of earlier runs that are still valid; the files
        that have none.
        """
        if not self.run.cache:
            return list(self.files)
        directory = self.run.cache_directory
        if directory is not None:
            _create_directory(directory)
        else:
            directory = cache_directory_for(common_directory(list(self.files)))
        self.cache = Cache(directory, self.settings)
        self.results.update(self.cache.get(self.files))
        self.cached = len(self.results)
        return [path for path in self.files if path not in self.results]

    def analyse_and_store(self, paths: Iterable[str]) -> None:
        """Analyse some files, and store the results of those whose text on disk was
        analysed.
        """
        new_results = self.reanalyse(paths)
        if self.cache is not None:
            unsaved = set(map(str, source.overlay))
            self.cache.put(
                [
                    result
                    for result in new_results
                    if unsaved.isdisjoint(_paths_of(result))
                ]
            )
            self.cache.save()

    def affected_by(self, changed: Collection[str]) -> list[str]:
        """The files whose results depend on changed ones, which are among them."""
        changed = set(changed)
        return [
            path
            for path, result in self.results.items()
            if not changed.isdisjoint(_paths_of(result))
        ]

    def fork(self, run: Run) -> "Session":
        """A session of the same files with other options, whose results and texts
        change apart from these.
        """
        session = copy.copy(self)
        session.run = run
        session.results = dict(self.results)
        session._lines = dict(self._lines)
        session._notebooks = dict(self._notebooks)
        return session

    def reanalyse(self, paths: Iterable[str]) -> list[FileResult]:
        """Analyse some files, whether or not they have results already."""
        new_results: list[FileResult] = []

        def handle_result(result: FileResult) -> None:
            self.results[result.path] = result
            new_results.append(result)
            if self.run.progress is not None:
                self.run.progress(len(new_results) + self.cached, len(self.files))

        workers.analyse_files(list(paths), self.settings, handle_result)
        return new_results

    def absolute_path(self, display: str) -> str:
        """The absolute path of a file, by the path that reports show."""
        return self._path_by_display.get(display, display)

    def lines(self, path: str) -> tuple[str, ...]:
        """A file's lines, by absolute path; none if it cannot be read."""
        if path not in self._lines:
            try:
                text = source.module_text(self._content(path), Path(path), path)
                self._lines[path] = source.split_lines(text)
            except (OSError, ValueError, source.Unreadable):
                self._lines[path] = ()
        return self._lines[path]

    def _content(self, path: str) -> str:
        """The text of a file, as it is on disk or about to be."""
        text = source.overlay.get(Path(path))
        if text is None:
            text, _ = source.decode(Path(path).read_bytes(), path)
        return text

    def notebook(self, path: str) -> Notebook | None:
        """A notebook, by absolute path; None for another file, and for one that cannot
        be read.
        """
        if not path.endswith(SUFFIX):
            return None
        if path not in self._notebooks:
            self._notebooks[path] = None
            with contextlib.suppress(OSError, ValueError, source.Unreadable):
                self._notebooks[path] = source.notebook_of(
                    self._content(path), Path(path), path
                )
        return self._notebooks[path]

    def in_cell(self, finding: Finding) -> Finding:
        """A finding with its lines counted in its cell, if it is in a notebook."""
        notebook = self.notebook(finding.path)
        if notebook is None or not notebook.module:
            return finding
        start, end = notebook.locate(finding.line), notebook.locate(finding.end_line)
        # Only what Python says about a file that does not parse may end in another
        # cell.
        end_line = end.line if end.cell == start.cell else start.line
        return dataclasses.replace(
            finding,
            line=start.line,
            end_line=max(end_line, start.line),
            cell=start.cell,
        )

    def in_module(self, finding: Finding) -> Finding:
        """The inverse of `in_cell`, for an absolute path."""
        notebook = self.notebook(finding.path)
        if notebook is None or not finding.cell:
            return finding
        line = notebook.module_line(CellPosition(finding.cell, finding.line))
        end_line = line + finding.end_line - finding.line
        return dataclasses.replace(finding, line=line, end_line=end_line, cell=0)

    def shown_lines(self, path: str, cell: int) -> tuple[str, ...]:
        """The lines that a finding's line is counted in: those of the file, or of a
        notebook's cell.
        """
        notebook = self.notebook(path)
        return self.lines(path) if notebook is None else notebook.lines_of(cell)

    def replace_text(self, path: str, text: str) -> None:
        """Let `lines` and `notebook` go by a file's new text instead of the one on
        disk.
        """
        self._notebooks[path] = source.notebook_of(text, Path(path), path)
        self._lines[path] = source.split_lines(
            source.module_text(text, Path(path), path)
        )
        self._outside_suppressions.pop(path, None)

    def restore_text(self, path: str) -> None:
        """Undo `replace_text`."""
        self._lines.pop(path, None)
        self._notebooks.pop(path, None)
        self._outside_suppressions.pop(path, None)

    def collect_findings(self) -> CollectedFindings:
        """The findings of all results, after selection, suppressions and baseline."""
        collected = CollectedFindings()
        findings_by_file: dict[str, list[Finding]] = collections.defaultdict(list)
        for finding in _merge_duplicates(self.results.values()):
            if finding.path in self.files:
                findings_by_file[finding.path].append(finding)
            elif finding.stops_trace and not self._is_suppressed_outside(finding):
                # Whatever rules are selected: the verdict needs all of them.
                collected.outside.append(finding)
        # Every rule has run, whatever is selected: the cache and the verdict need them
        # all.
        enabled_ids = list(filter(self.settings.is_enabled, all_ids()))
        for path, result in self.results.items():
            self._add_findings_of_file(
                result, findings_by_file[path], enabled_ids, collected
            )
        if self._baseline is not None:
            assert self.baseline_file is not None
            split = baseline.split_by_baseline(
                sorted(collected.reported),
                self._baseline,
                self.lines,
                self.baseline_file,
            )
            collected.reported, collected.known, collected.stale = split
        collected.failing_outside = self._failing_outside(collected.outside)
        return collected

    def _is_suppressed_outside(self, finding: Finding) -> bool:
        """Whether a comment suppresses an error in a file that was not named."""
        path = finding.path
        if path not in self._outside_suppressions:
            text = "\n".join(self.lines(path))
            self._outside_suppressions[path] = suppressions.parse_suppressions(text)
        return not suppressions.filter_findings(
            [finding], self._outside_suppressions[path], path, ()
        ).findings

    def _failing_outside(self, findings: list[Finding]) -> list[Finding]:
        """The errors in files that were not named which the settings would report
        there, without known ones.
        """
        failing = [
            finding
            for finding in findings
            if self.settings.is_enabled(finding.rule)
            and not finding.rule.startswith(
                self.settings.ignored_in(Path(finding.path))
            )
            and self.settings.severity(finding.rule, finding.severity) is Severity.ERROR
            and not self._excluder.excludes(Path(finding.path))
        ]
        if self._baseline is None:
            return failing
        assert self.baseline_file is not None
        return baseline.split_by_baseline(
            sorted(failing), self._baseline, self.lines, self.baseline_file
        ).new

    def _add_findings_of_file(
        self,
        result: FileResult,
        findings: list[Finding],
        enabled_ids: list[str],
        collected: CollectedFindings,
    ) -> None:
        ignored_prefixes = self.settings.ignored_in(Path(result.path))
        if ignored_prefixes:
            enabled_ids = [
                id_ for id_ in enabled_ids if not id_.startswith(ignored_prefixes)
            ]
        # `per-file-ignores` cannot hide that a file has not been analysed.
        selected_ids = {*enabled_ids, *ALWAYS_ENABLED}
        selected = [finding for finding in findings if finding.rule in selected_ids]
        unselected = [
            f for f in findings if f.stops_trace and f.rule not in selected_ids
        ]
        filtered = suppressions.filter_findings(
            selected, result.suppressions, result.path, enabled_ids
        )
        comment_findings = [
            finding
            for finding in filtered.comment_findings
            if finding.rule in selected_ids
        ]
        collected.reported += [
            self._with_allowed_fix(f) for f in filtered.findings + comment_findings
        ]
        collected.suppressed += filtered.suppressed
        # A suppressed error is one that somebody has looked at, whether or not its rule
        # is selected now.
        filtered = suppressions.filter_findings(
            unselected, result.suppressions, result.path, ()
        )
        collected.unselected += filtered.findings

    def _with_allowed_fix(self, finding: Finding) -> Finding:
        if finding.fix is Applicability.NONE or self.settings.may_fix(finding.rule):
            return finding
        return dataclasses.replace(finding, fix=Applicability.NONE)


def _paths_of(result: FileResult) -> tuple[str, ...]:
    return (result.path, *result.dependencies)


def _merge_duplicates(results: Iterable[FileResult]) -> Iterable[Finding]:
    """Each finding once, in its most severe form: several files may reach the same
    code.
    """
    worst: dict[tuple[str, str, int, int], Finding] = {}
    for result in results:
        for finding in result.findings:
            known = worst.setdefault(finding.key, finding)
            # Of equally severe findings the first in the order of findings, whichever
            # file was analysed first.
            if (finding.severity.rank, finding) < (known.severity.rank, known):
                worst[finding.key] = finding
    return worst.values()


def _create_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # For a file in the way, the system's message is only that something exists.
        reason = (
            "this is not a directory"
            if isinstance(error, FileExistsError)
            else error.strerror
        )
        raise PortError(
            f"the cache cannot be written here: {reason}",
            where=str(directory),
            fix="name a directory that can be written, or give --no-cache",
        ) from None
