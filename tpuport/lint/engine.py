"""From paths to a report."""

import collections
import dataclasses
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from tpuport.errors import PortError
from tpuport.lint import baseline, entries, fixable, pool, source, suppressions
from tpuport.lint.cache import Cache, directory_for
from tpuport.lint.diagnostics import DIAGNOSTICS
from tpuport.lint.discover import Excluder, discover
from tpuport.lint.findings import Applicability, Finding, Severity
from tpuport.lint.report import Report
from tpuport.lint.rules.registry import all_rules
from tpuport.lint.settings import Settings, common_directory, find_settings
from tpuport.lint.work import FileResult

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """How one run differs from another with the same settings.

    Attributes:
        fix: rewrite what can be, up to this: NONE for nothing, SAFE, or UNSAFE for both.
        write: write the rewritten files; otherwise they are only compared.
        cache: keep results on disk, and use those kept.
        cache_directory: where; beside the nearest pyproject.toml, or in the user's cache, where it is None.
        baseline: file of known findings; that of the settings where it is None.
        write_baseline: write that file instead of reading it.
        exclude_named: leave excluded files out even where they are named.
        progress: called with the files done and all files.
    """

    fix: Applicability = Applicability.NONE
    write: bool = True
    cache: bool = True
    cache_directory: Path | None = None
    baseline: Path | None = None
    write_baseline: bool = False
    exclude_named: bool = False
    progress: Progress | None = None


def lint_paths(
    paths: Sequence[str | Path], settings: Settings | None = None, run: Run | None = None
) -> Report:
    """Lint files and all Python files below directories.

    Args:
        paths: files and directories.
        settings: those of the nearest pyproject.toml where it is None.
        run: fixing, caching and the baseline.

    Raises:
        PortError: the settings, the baseline or the cache's directory cannot be used. What is wrong with a
            file is a finding.
    """
    started = time.perf_counter()
    if not paths:
        raise PortError("there is nothing to lint", where="paths", fix="name files or directories")
    lint = Lint(paths, settings or find_settings(paths), run or Run())
    lint.analyse()
    if lint.run.fix != Applicability.NONE:
        from tpuport.lint.fixing import fix_files

        fix_files(lint)
    return lint.report(started)


class Lint:
    """One run, under way.

    Attributes:
        settings, run: what was asked for.
        files: absolute path to path as the user sees it.
        results: by absolute path.
        findings: on paths and files as such, with paths as the user sees them.
        fixed: by absolute path, how many places were rewritten.
        diffs: by absolute path, the unified diff.
    """

    def __init__(self, paths: Sequence[str | Path], settings: Settings, run: Run) -> None:
        self.settings, self.run = settings, run
        self._paths = paths
        found = discover(paths, Excluder(settings.exclude, settings.root), exclude_named=run.exclude_named)
        self.files = {str(path): display for path, display in found.files.items()}
        self.findings = found.findings
        self.results: dict[str, FileResult] = {}
        self.fixed: dict[str, int] = {}
        self.diffs: dict[str, str] = {}
        self.texts: dict[str, tuple[str, ...]] = {}
        self._cached = 0
        self._known = baseline_counts(settings, run)

    def analyse(self) -> None:
        """Results of all files, out of the cache or anew."""
        cache = None
        if self.run.cache and self.files:
            root = common_directory([*self.files])
            if self.run.cache_directory is not None:
                _make_directory(self.run.cache_directory)
            cache = Cache(self.run.cache_directory or directory_for(root), self.settings)
            self.results.update(cache.get(self.files))
            self._cached = len(self.results)
        fresh = self.again(path for path in self.files if path not in self.results)
        if cache is not None:
            cache.put(fresh)
            cache.save()

    def again(self, paths: Iterable[str]) -> list[FileResult]:
        """Analyse some files, whatever is known of them."""
        fresh: list[FileResult] = []

        def done(result: FileResult) -> None:
            self.results[result.path] = result
            fresh.append(result)
            if self.run.progress is not None:
                self.run.progress(len(fresh) + self._cached, len(self.files))

        pool.run(list(paths), self.settings, done)
        return fresh

    def lines(self, path: str) -> tuple[str, ...]:
        """A file's lines, by absolute path; none where it cannot be read."""
        if path not in self.texts:
            try:
                data = Path(path).read_bytes()
                self.texts[path] = source.split_lines(source.decode(data, path)[0])
            except (OSError, ValueError, source.Unreadable):
                self.texts[path] = ()
        return self.texts[path]

    def told(self) -> "Told":
        """The findings that are told, with absolute paths."""
        by_file: dict[str, list[Finding]] = collections.defaultdict(list)
        outside: list[Finding] = []
        for finding in _merged(self.results.values()):
            if finding.path in self.files:
                by_file[finding.path].append(finding)
            elif _stops(finding):  # the verdict knows no selection
                outside.append(finding)
        told = Told([], outside, 0, [], 0)
        ids = [item.id for item in (*DIAGNOSTICS, *all_rules()) if self.settings.asked(item.id)]
        for path, result in self.results.items():
            self._tell(path, result, by_file.get(path, []), ids, told)
        if self._known is not None and not self.run.write_baseline:
            file, counts = self._known
            told.findings, told.known, told.stale = baseline.split(
                sorted(told.findings), counts, self.lines, file
            )
        return told

    def _tell(
        self, path: str, result: FileResult, findings: list[Finding], ids: list[str], told: "Told"
    ) -> None:
        ignored = self.settings.ignored_in(Path(path)) if self.settings.per_file_ignores else ()
        if ignored:
            ids = [one for one in ids if not one.startswith(ignored)]
        wanted = {*ids, *_ALWAYS}
        asked = [finding for finding in findings if finding.rule in wanted]
        kept, suppressed = suppressions.apply(asked, result.suppressions, path, ids)
        told.findings += [finding for finding in kept if finding.rule in wanted]
        # A suppressed finding is one that somebody looked at, whichever rules are asked for now.
        unasked = [finding for finding in findings if finding.rule not in wanted and _stops(finding)]
        told.unasked += [
            one for one in suppressions.apply(unasked, result.suppressions, path, ())[0] if one in unasked
        ]
        told.suppressed += suppressed

    def report(self, started: float) -> Report:
        """The run's report.

        Args:
            started: `time.perf_counter()` when it began.
        """
        told = self.told()
        if self.run.write_baseline:
            assert self._known is not None
            file = self._known[0]
            known = [finding for finding in told.findings if not finding.rule.startswith("TPU0")]
            baseline.write(file, known, self.lines)
            told.known, told.findings = known, [one for one in told.findings if one not in known]
        stops = [one for one in (*told.findings, *told.known) if one.severity == Severity.ERROR]
        shown = {display: path for path, display in self.files.items()}
        told.findings, exact = fixable.at_each_place(told.findings, self.lines)
        shown_now = [self._shown(finding) for finding in told.findings]
        findings = shown_now + [
            dataclasses.replace(finding, severity=self.settings.severity(finding.rule, finding.severity))
            for finding in self.findings
            if self.settings.asked(finding.rule)
        ]
        traced = frozenset[str]().union(*(result.traced for result in self.results.values()))
        here = [place for place in traced if place.rpartition(":")[0] in self.files]
        return Report(
            findings=tuple(sorted(findings)),
            files=len(self.files),
            lines=sum(result.lines for result in self.results.values()),
            entry_points=sum(result.entry_points for result in self.results.values()),
            traced=len(traced),
            unmatched_entry_points=entries.unmatched(self.settings.entry_points, here),
            stops=sum(finding.stops and not finding.rule.startswith("TPU0") for finding in stops),
            passable=sum(
                after.severity == Severity.ERROR and not (_stops(before) or before.rule.startswith("TPU0"))
                for before, after in zip(told.findings, shown_now, strict=True)
            ),
            outside=tuple(dataclasses.replace(one, path=_short(one.path)) for one in sorted(told.outside)),
            suppressed=told.suppressed,
            known=len(told.known),
            stale=told.stale,
            unasked=tuple(sorted(finding.rule for finding in told.unasked)),
            exact_fixes=exact,
            fixed={self.files[path]: count for path, count in self.fixed.items()},
            diffs={self.files[path]: diff for path, diff in sorted(self.diffs.items())},
            cached=self._cached,
            seconds=time.perf_counter() - started,
            source=lambda path: self.lines(shown.get(path, path)),
            fingerprint=lambda finding: self._fingerprint(
                dataclasses.replace(finding, path=shown.get(finding.path, finding.path))
            ),
        )

    def _shown(self, finding: Finding) -> Finding:
        # What is left after fixing could not be rewritten, whatever its rule can do elsewhere.
        tried = self.run.fix in {finding.fix, Applicability.UNSAFE}
        return dataclasses.replace(
            finding,
            fix=Applicability.NONE if tried else finding.fix,
            path=self.files.get(finding.path, finding.path),
            severity=self.settings.severity(finding.rule, finding.severity),
        )

    def _fingerprint(self, finding: Finding) -> str:
        known = "\0".join(baseline.key(finding, self.lines, Path.cwd()))
        return hashlib.blake2b(known.encode(errors="surrogateescape"), digest_size=16).hexdigest()


@dataclasses.dataclass(slots=True)
class Told:
    """Findings with absolute paths and the rules' own severities.

    Attributes:
        findings: that are told.
        outside: errors in files that were not named.
        suppressed: number of findings that comments suppress.
        known: those in the baseline.
        stale: entries of the baseline without a finding.
        unasked: errors that stop a trace, of rules that were not asked for.
    """

    findings: list[Finding]
    outside: list[Finding]
    suppressed: int
    known: list[Finding]
    stale: int
    unasked: list[Finding] = dataclasses.field(default_factory=list)


# What is written without a name, in the working directory.
DEFAULT_BASELINE: Final = Path("tpuport-baseline.json")
_ALWAYS = frozenset({"TPU001", "TPU002", "TPU006"})


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "this is no directory" if isinstance(error, FileExistsError) else error.strerror
        raise PortError(
            f"the cache cannot be kept here: {reason}",
            where=str(directory),
            fix="name a directory that can be written, or give --no-cache",
        ) from None


def baseline_counts(settings: Settings, run: Run) -> tuple[Path, collections.Counter[baseline.Key]] | None:
    """The baseline's file and what it holds; nothing yet where it is to be written; None where there is none."""
    file = run.baseline or settings.baseline
    if run.write_baseline:
        return file or DEFAULT_BASELINE, collections.Counter()
    return (file, baseline.read(file)) if file else None


def _stops(finding: Finding) -> bool:
    return finding.severity == Severity.ERROR and finding.stops


def _merged(results: Iterable[FileResult]) -> Iterable[Finding]:
    """Each place once, at its worst: several files may reach the same code."""
    order = list(Severity)
    found: dict[tuple[str, str, int, int], Finding] = {}
    for result in results:
        for finding in result.findings:
            place = (finding.rule, finding.path, finding.line, finding.column)
            known = found.get(place)
            if known is None or (order.index(finding.severity), finding) < (
                order.index(known.severity),
                known,
            ):
                found[place] = finding
    return found.values()


def _short(path: str) -> str:
    """A path from the working directory where it is below that."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
