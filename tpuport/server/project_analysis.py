"""The analysis of a project whose files are being edited: results for all files, kept
up to date with open texts.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tpuport.lint import fixing, source
from tpuport.lint.configuration import Settings
from tpuport.lint.findings import Applicability, Finding
from tpuport.lint.paths import SKIPPED
from tpuport.lint.patterns import Excluder
from tpuport.lint.session import Run, Session
from tpuport.server.routes import RouteStep, steps_of_route

# Number of files that are analysed before an edit is looked at again.
_FILES_AT_ONCE: Final = 4


class ShownFinding(NamedTuple):
    """A finding as editors show it.

    Attributes:
        finding: with the severity of the settings.
        original: with the rule's own severity, which fixes go by.
        route: the functions through which tracing gets to it.
    """

    finding: Finding
    original: Finding
    route: tuple[RouteStep, ...]


class ProjectAnalysis:
    """The files of a directory, or a single file, and what the linter finds in them.

    The text of an open file is in `source.overlay`. Results of all files are needed for
    the findings in one: whether a function is traced may depend on a file that calls
    it.

    Attributes:
        root: the directory; None for a single file.
        settings: of its pyproject.toml.
        session: the files and their results.
    """

    def __init__(
        self, root: Path | None, files: Iterable[Path], settings: Settings
    ) -> None:
        self.root = root
        self.settings = settings
        self._excluder = Excluder(settings.exclude, settings.root)
        self.session = Session([root] if root is not None else [], settings, Run())
        # Files whose results are missing or out of date, in the order of analysis.
        self._pending: dict[str, None] = {}
        for file in files:
            self.add(file)
        if self.session.files:
            self._pending = dict.fromkeys(self.session.read_cache())
        # By file, its text and what can be done there.
        self._exact_fixes: dict[str, tuple[str, dict[Finding, Applicability]]] = {}

    def add(self, file: Path) -> None:
        """Take up a file that is not on disk yet, or outside of the directory."""
        path = str(file)
        if path not in self.session.files and not self.excludes(file):
            self.session.files[path] = path
            self._pending[path] = None

    def excludes(self, file: Path) -> bool:
        """Whether a file is left out by the settings, or as a part of a virtual
        environment or hidden directory.
        """
        if self.root is not None and file.is_relative_to(self.root):
            directories = file.relative_to(self.root).parts[:-1]
            if any(name in SKIPPED or name.startswith(".") for name in directories):
                return True
        return self._excluder.excludes(file)

    def text_changed(self, file: Path) -> None:
        """Take a file's results, and those that depend on it, as out of date."""
        path = str(file)
        self.session.restore_text(path)
        if file in source.overlay:
            self.session.replace_text(path, source.overlay[file])
        self._pending.update(dict.fromkeys(self.session.affected_by({path})))
        if path in self.session.files:
            self._pending[path] = None

    def analyse_file(self, file: Path) -> None:
        """Bring up to date what shows in a file: its own results, and those of files
        that trace its functions.
        """
        path = str(file)
        prefix = f"{path}:"
        urgent = [path]
        for other in self._pending:
            result = self.session.results.get(other)
            if result is not None and any(
                function.startswith(prefix) for function in result.traced
            ):
                urgent.append(other)
        self._analyse(dict.fromkeys(urgent))

    def analyse_some(self) -> bool:
        """Bring a few more files up to date; whether there were any."""
        paths = list(self._pending)[:_FILES_AT_ONCE]
        self._analyse(paths)
        return bool(paths)

    def _analyse(self, paths: Iterable[str]) -> None:
        wanted = [
            path
            for path in paths
            if path in self._pending and path in self.session.files
        ]
        for path in paths:
            self._pending.pop(path, None)
        if wanted:
            self.session.analyse_and_store(wanted)

    def findings(self, files: Iterable[Path]) -> dict[Path, list[ShownFinding]]:
        """The findings in some files, sorted, after selection, suppressions and
        baseline.
        """
        wanted = {str(file): file for file in files}
        findings: dict[Path, list[ShownFinding]] = {
            file: [] for file in wanted.values()
        }
        traced = frozenset[str]().union(
            *(result.traced for result in self.session.results.values())
        )
        for finding in sorted(self.session.collect_findings().reported):
            if finding.path in wanted:
                shown = self._shown(finding)
                findings[wanted[finding.path]].append(
                    ShownFinding(shown, finding, steps_of_route(finding, traced))
                )
        return findings

    def _shown(self, finding: Finding) -> Finding:
        severity = self.settings.severity(finding.rule, finding.severity)
        return dataclasses.replace(finding, severity=severity)

    def exact_fixes(self, file: Path) -> dict[Finding, Applicability]:
        """What can be done about each original finding in a file with the code at its
        position.

        The first call for a text takes a parser that is slow; all findings share it.
        """
        path = str(file)
        findings = [shown.original for shown in self.findings([file])[file]]
        text = self.text(path)
        if self._exact_fixes.get(path, ("", {}))[0] != text:
            self._exact_fixes[path] = (text, {})
        known = self._exact_fixes[path][1]
        unknown = [finding for finding in findings if finding not in known]
        fixable = [
            finding for finding in unknown if finding.fix is not Applicability.NONE
        ]
        known.update(dict.fromkeys(unknown, Applicability.NONE))
        if fixable:
            known.update(
                zip(fixable, fixing.available_fixes(text, fixable), strict=True)
            )
        return known

    def text(self, path: str) -> str:
        """A file's text as the editor has it, or as it is on disk."""
        file = Path(path)
        return (
            source.overlay[file]
            if file in source.overlay
            else "\n".join(self.session.lines(path))
        )

    def fixed_text(self, file: Path) -> str:
        """A file's text after all safe fixes, as `tpuport lint --fix` would leave it;
        nothing is written.
        """
        # The fork's results and texts become those of the fixed file.
        session = self.session.fork(Run(fix=Applicability.SAFE, write=False))
        return fixing.fix_files(session, only=str(file)).texts.get(
            str(file), self.text(str(file))
        )
