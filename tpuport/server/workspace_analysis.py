"""The projects of a workspace: which one a file belongs to, and the texts that the
editor has not saved.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from tpuport.errors import PortError
from tpuport.lint import source
from tpuport.lint.configuration import Settings, load_settings, settings_file
from tpuport.server.project_analysis import ProjectAnalysis, ShownFinding


class WorkspaceAnalysis:
    """All projects with open files. Only one thread uses it.

    A project is the nearest directory around a file with settings in its
    pyproject.toml, up to the workspace's folder; or the folder itself. A file outside
    of all folders is a project of its own.

    Attributes:
        folders: the workspace's folders.
        open_files: the files that the editor shows.
        report_problem: called with what is wrong with a project's settings.
    """

    def __init__(self, report_problem: Callable[[str], None]) -> None:
        self.folders: list[Path] = []
        self.open_files: dict[Path, ProjectAnalysis] = {}
        self.report_problem = report_problem
        self._projects: dict[Path, ProjectAnalysis] = {}

    def update(self, file: Path, text: str) -> None:
        """Take up an open file's text, and bring up to date what shows in it."""
        project = self.open_files.get(file)
        if project is None:
            project = self.open_files[file] = self._project_of(file)
            project.add(file)
        if source.overlay.get(file) != text:
            is_new = text != project.text(str(file))
            source.overlay[file] = text
            # Of a file that is opened as it was saved, results may be known.
            if is_new:
                project.text_changed(file)
        project.analyse_file(file)

    def close(self, file: Path) -> None:
        """Forget an open file's text: from now on the one on disk counts."""
        project = self.open_files.pop(file, None)
        source.overlay.pop(file, None)
        if project is not None:
            project.text_changed(file)

    def files_changed(self, files: Iterable[Path]) -> None:
        """Take up what happened on disk; a change of settings, and a new or missing
        file, set up a project anew.
        """
        for file in files:
            is_known = any(
                str(file) in project.session.files
                for project in self._projects.values()
            )
            if file.name == "pyproject.toml" or not (is_known and file.exists()):
                self._projects.clear()
                break
            for project in self._projects.values():
                project.text_changed(file)
        self._assign_projects()

    def set_folders(self, folders: Iterable[Path]) -> None:
        """Take up the workspace's folders."""
        self.folders = list(folders)
        self._projects.clear()
        self._assign_projects()

    def _assign_projects(self) -> None:
        """Let each open file belong to the project that it belongs to now."""
        for file, known in list(self.open_files.items()):
            project = self._project_of(file)
            if project is not known:
                self.open_files[file] = project
                project.add(file)
                project.text_changed(file)

    def analyse_some(self) -> bool:
        """Bring a few more files of projects with open files up to date; whether there
        were any.
        """
        projects = dict.fromkeys(self.open_files.values())
        return any(project.analyse_some() for project in projects)

    def findings(self) -> dict[Path, list[ShownFinding]]:
        """The findings in each open file; none in those that the settings exclude."""
        findings: dict[Path, list[ShownFinding]] = {}
        for project in dict.fromkeys(self.open_files.values()):
            findings |= project.findings(
                file for file, own in self.open_files.items() if own is project
            )
        return findings

    def _project_of(self, file: Path) -> ProjectAnalysis:
        folders = [folder for folder in self.folders if file.is_relative_to(folder)]
        # Of nested folders the innermost.
        folder = max(folders, key=lambda folder: len(folder.parts), default=None)
        settings = self._settings(file, folder or file.parent)
        root = folder
        if folder is not None and settings.root.is_relative_to(folder):
            root = settings.root
        key = root or file
        if key not in self._projects:
            self._projects[key] = self._create_project(root, file, settings)
        return self._projects[key]

    def _settings(self, file: Path, directory: Path) -> Settings:
        """Those of the nearest pyproject.toml; without one, the defaults with this
        directory as their root.
        """
        try:
            settings = settings_file([file])
            return (
                load_settings(settings)
                if settings is not None
                else Settings(root=directory)
            )
        except PortError as error:
            self.report_problem(str(error))
            return Settings(root=directory)

    def _create_project(
        self, root: Path | None, file: Path, settings: Settings
    ) -> ProjectAnalysis:
        files = [] if root is not None else [file]
        try:
            return ProjectAnalysis(root, files, settings)
        except PortError as error:
            # A baseline that cannot be read, for instance.
            self.report_problem(str(error))
            return ProjectAnalysis(root, files, Settings(root=settings.root))
