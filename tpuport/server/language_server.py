"""The server: the protocol's notifications and requests, answered from one thread that
analyses.
"""

import asyncio
import concurrent.futures
import threading
import urllib.parse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

from lsprotocol import types
from pygls import uris
from pygls.capabilities import get_capability
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

from tpuport.lint.findings import Finding
from tpuport.lint.source import split_lines
from tpuport.server import code_actions, protocol_values
from tpuport.server.code_actions import Change, Offer
from tpuport.server.project_analysis import ShownFinding
from tpuport.server.workspace_analysis import WorkspaceAnalysis
from tpuport.version import __version__

_T = TypeVar("_T")

# Seconds without an edit after which a text is analysed.
_PAUSE: Final = 0.2
# The analysis recurses as deeply as the code it follows; a thread's own default may be
# half a megabyte.
_STACK_BYTES: Final = 128 * 1024 * 1024
_CONTENT_MODIFIED: Final = -32801
_SCHEMES: Final = frozenset({"file", "untitled"})
_WATCHED: Final = ("**/*.py", "**/pyproject.toml")


class LintServer(LanguageServer):
    """Publishes findings in open files, and answers questions about them.

    Attributes:
        analysis: used by the analysing thread only.
        findings: by file, those of the text with the version in `versions`.
        versions: by file, the version of the text that was analysed last.
    """

    def __init__(self) -> None:
        # Whole texts: pygls counts lines as Python's `splitlines` does, so a form feed
        # would displace partial changes.
        super().__init__(
            "tpuport",
            __version__,
            text_document_sync_kind=types.TextDocumentSyncKind.Full,
        )
        self.analysis = WorkspaceAnalysis(self._report_problem)
        self.findings: dict[Path, list[ShownFinding]] = {}
        self.versions: dict[Path, int | None] = {}
        self._uris: dict[Path, str] = {}
        self._published: dict[Path, object] = {}
        self._timers: dict[Path, asyncio.Task[None]] = {}
        self._rest: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "analysis")

    # --- documents ---

    def open(self, uri: str) -> None:
        """Analyse a document that was opened or saved."""
        self._schedule(uri, 0.0)

    def edit(self, uri: str) -> None:
        """Analyse a document after the next pause in its edits."""
        self._schedule(uri, _PAUSE)

    def _schedule(self, uri: str, delay: float) -> None:
        # A notebook's cell alone means nothing, and neither does a revision of a file
        # beside the file.
        if urllib.parse.urlsplit(uri).scheme not in _SCHEMES:
            return
        file = file_of(uri)
        self._uris[file] = uri
        if file in self._timers:
            self._timers[file].cancel()
        self._timers[file] = asyncio.create_task(self._analyse_later(file, delay))

    async def _analyse_later(self, file: Path, delay: float) -> None:
        await asyncio.sleep(delay)
        # From here on it goes to its end: a result of an older text is dropped by its
        # version.
        await asyncio.shield(self._analyse(file))

    async def _analyse(self, file: Path) -> None:
        document = self.workspace.get_text_document(self._uris[file])
        version, text = document.version, document.source
        await self.in_analysis(self.analysis.update, file, text)
        self.versions[file] = version
        await self.publish()
        self._analyse_rest()

    async def up_to_date(self, file: Path) -> bool:
        """Analyse a document's latest text unless that is done; whether the findings
        are those of that text.
        """
        if file not in self._uris:
            return False
        document = self.workspace.get_text_document(self._uris[file])
        if self.versions.get(file) != document.version or file not in self.findings:
            await self._analyse(file)
        return file in self._uris and self.versions.get(file) == document.version

    def close(self, uri: str) -> Path:
        """Forget a document."""
        file = file_of(uri)
        timer = self._timers.pop(file, None)
        if timer is not None:
            timer.cancel()
        for known in (self.findings, self.versions, self._uris, self._published):
            known.pop(file, None)
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))
        return file

    def shutdown(self) -> None:
        """End the server; what is not analysed by now stays so."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        super().shutdown()

    # --- the analysing thread ---

    async def in_analysis(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run a function in the analysing thread, after those asked for earlier."""
        self._loop = asyncio.get_running_loop()
        return await self._loop.run_in_executor(self._thread, function, *arguments)

    def _analyse_rest(self) -> None:
        """Analyse the other files of the projects, a few at a time, so that edits come
        in between.
        """
        if self._rest is None or self._rest.done():
            self._rest = asyncio.create_task(self._analyse_all())

    async def _analyse_all(self) -> None:
        while await self.in_analysis(self.analysis.analyse_some):
            await self.publish()

    def _report_problem(self, problem: str) -> None:
        """Show a problem of the settings; called in the analysing thread."""
        message = types.ShowMessageParams(
            types.MessageType.Error, f"tpuport: {problem}"
        )
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.window_show_message, message)

    # --- findings ---

    async def publish(self) -> None:
        """Send the findings in each open document whose latest text has been
        analysed.
        """
        findings = await self.in_analysis(self.analysis.findings)
        for file, shown in findings.items():
            uri = self._uris.get(file)
            if uri is None:
                continue
            document = self.workspace.get_text_document(uri)
            # Another analysis follows for a text that is newer than these findings.
            if self.versions.get(file) != document.version:
                continue
            self.findings[file] = shown
            state = (document.version, shown)
            if self._published.get(file) != state:
                self._published[file] = state
                self._send(uri, document.version, shown, document.source)

    def _send(
        self, uri: str, version: int | None, findings: Iterable[ShownFinding], text: str
    ) -> None:
        lines = split_lines(text)
        codec = self.workspace.position_codec
        diagnostics = [
            protocol_values.diagnostic(shown, lines, codec) for shown in findings
        ]
        self.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri, diagnostics, version)
        )

    def findings_in(
        self, file: Path, wanted: types.Range
    ) -> list[tuple[ShownFinding, types.Range]]:
        """The findings that overlap a range, each with its own range."""
        document = self.workspace.get_text_document(self._uris[file])
        lines, codec = split_lines(document.source), self.workspace.position_codec
        ranges = [
            (shown, protocol_values.range_of(shown.finding, lines, codec))
            for shown in self.findings.get(file, ())
        ]
        return [(shown, own) for shown, own in ranges if _overlap(own, wanted)]

    # --- code actions ---

    async def code_actions(
        self, params: types.CodeActionParams
    ) -> list[types.CodeAction]:
        """The actions at a range; their edits come later if the client can ask for
        them.
        """
        file, only = file_of(params.text_document.uri), params.context.only
        if not await self.up_to_date(file):
            return []
        offers: list[Offer] = []
        if code_actions.is_wanted(types.CodeActionKind.QuickFix, only):
            shown = [
                shown.original for shown, _ in self.findings_in(file, params.range)
            ]
            offers += await self.in_analysis(self._offers, file, shown)
        if code_actions.is_wanted(code_actions.FIX_ALL, only):
            offers.append(Offer(Change.FIX_ALL, "tpuport: fix all safe problems"))
        actions = [
            self._action(file, offer, params.context.diagnostics) for offer in offers
        ]
        if not self._resolves_edits():
            actions = [await self.resolve(action) for action in actions]
        return actions

    def _offers(self, file: Path, findings: list[Finding]) -> list[Offer]:
        return code_actions.offers_at(self.analysis.open_files[file], file, findings)

    def _action(
        self, file: Path, offer: Offer, diagnostics: Iterable[types.Diagnostic]
    ) -> types.CodeAction:
        finding = offer.finding
        own: list[types.Diagnostic] = []
        if finding is not None:
            own = [
                diagnostic
                for diagnostic in diagnostics
                if diagnostic.code == finding.rule
            ]
        data = {
            "uri": self._uris[file],
            "version": self.versions[file],
            "change": offer.change.value,
            "finding": code_actions.finding_key(finding),
        }
        return types.CodeAction(
            offer.title,
            offer.kind,
            own or None,
            is_preferred=offer.is_preferred or None,
            data=data,
        )

    def _capability(self, path: str) -> Any:
        """What the client says about itself; None if it says nothing of this."""
        return get_capability(self.client_capabilities, path)

    def _resolves_edits(self) -> bool:
        abilities = self._capability(
            "text_document.code_action.resolve_support.properties"
        )
        return "edit" in (abilities or ())

    async def resolve(self, action: types.CodeAction) -> types.CodeAction:
        """Compute the edit of an action.

        Raises:
            JsonRpcException: the document has changed since the action was offered.
        """
        data: Any = action.data
        file = file_of(data["uri"])
        if not await self.up_to_date(file) or self.versions[file] != data["version"]:
            raise JsonRpcException(
                "the document has changed since then", _CONTENT_MODIFIED
            )
        keys = {
            tuple(code_actions.finding_key(shown.original) or ()): shown.original
            for shown in self.findings[file]
        }
        finding = keys.get(tuple(data["finding"] or ()))
        project = self.analysis.open_files[file]
        old = self.workspace.get_text_document(data["uri"]).source
        new = await self.in_analysis(
            code_actions.changed_text, project, file, Change(data["change"]), finding
        )
        edits = protocol_values.text_edits(old, new, self.workspace.position_codec)
        action.edit = self._workspace_edit(data["uri"], data["version"], edits)
        return action

    def _workspace_edit(
        self, uri: str, version: int | None, edits: list[types.TextEdit]
    ) -> types.WorkspaceEdit:
        # With a version the client refuses the edits of an older text.
        if not self._capability("workspace.workspace_edit.document_changes"):
            return types.WorkspaceEdit(changes={uri: edits})
        identifier = types.OptionalVersionedTextDocumentIdentifier(uri, version)
        return types.WorkspaceEdit(
            document_changes=[types.TextDocumentEdit(identifier, list(edits))]
        )

    # --- the workspace ---

    async def start_workspace(self) -> None:
        """Take up the folders, and ask to be told about changes on disk."""
        await self.update_folders()
        if self._capability("workspace.did_change_watched_files.dynamic_registration"):
            watchers = list(map(types.FileSystemWatcher, _WATCHED))
            options = types.DidChangeWatchedFilesRegistrationOptions(watchers)
            registration = types.Registration(
                "files", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options
            )
            self.client_register_capability(
                types.RegistrationParams([registration]), lambda _: None
            )

    async def update_folders(self) -> None:
        """Take up the folders that the client has now."""
        folders = list(map(file_of, self.workspace.folders))
        if not folders and self.workspace.root_path:
            folders = [Path(self.workspace.root_path)]
        await self.in_analysis(self.analysis.set_folders, folders)
        self._analyse_rest()

    async def files_changed(self, changed: Iterable[str]) -> None:
        """Take up changes on disk; a file that is open counts as the editor has it."""
        files = list(map(file_of, changed))
        await self.in_analysis(
            self.analysis.files_changed,
            [file for file in files if file not in self._uris],
        )
        await self.publish()
        self._analyse_rest()


def file_of(uri: str) -> Path:
    """The path of a document; one that is not saved yet gets a path that does not
    exist.
    """
    path = uris.to_fs_path(uri)
    if path is None:
        # `untitled:Untitled-1`
        return Path("/", *uri.partition(":")[::2]).with_suffix(".py")
    return Path(path)


def _overlap(first: types.Range, second: types.Range) -> bool:
    """Whether two ranges have a position in common; a cursor is an empty range."""
    return first.start <= second.end and second.start <= first.end


def create_server() -> LintServer:
    """A server with its answers to the protocol's messages."""
    server = LintServer()
    for message, (answer, options) in _ANSWERS.items():
        # pygls passes the server to a parameter that is annotated with its class.
        server.feature(message, options)(answer)
    return server


def serve() -> None:
    """Answer a client over standard input and output until it ends the connection."""
    threading.stack_size(_STACK_BYTES)
    create_server().start_io()


# --- answers, by message ---


async def _initialized(server: LintServer, _: types.InitializedParams) -> None:
    await server.start_workspace()


async def _did_open(
    server: LintServer, params: types.DidOpenTextDocumentParams
) -> None:
    server.open(params.text_document.uri)


async def _did_change(
    server: LintServer, params: types.DidChangeTextDocumentParams
) -> None:
    server.edit(params.text_document.uri)


async def _did_save(
    server: LintServer, params: types.DidSaveTextDocumentParams
) -> None:
    server.open(params.text_document.uri)


async def _did_close(
    server: LintServer, params: types.DidCloseTextDocumentParams
) -> None:
    await server.in_analysis(
        server.analysis.close, server.close(params.text_document.uri)
    )
    await server.publish()


async def _did_change_folders(
    server: LintServer, _: types.DidChangeWorkspaceFoldersParams
) -> None:
    await server.update_folders()
    await server.publish()


async def _did_change_files(
    server: LintServer, params: types.DidChangeWatchedFilesParams
) -> None:
    await server.files_changed(change.uri for change in params.changes)


async def _hover(server: LintServer, params: types.HoverParams) -> types.Hover | None:
    file = file_of(params.text_document.uri)
    if not await server.up_to_date(file):
        return None
    shown_findings = server.findings_in(
        file, types.Range(params.position, params.position)
    )
    if not shown_findings:
        return None
    texts = [protocol_values.hover_text(shown.finding) for shown, _ in shown_findings]
    content = types.MarkupContent(types.MarkupKind.Markdown, "\n\n---\n\n".join(texts))
    return types.Hover(content, shown_findings[0][1])


async def _code_action(
    server: LintServer, params: types.CodeActionParams
) -> list[types.CodeAction]:
    return await server.code_actions(params)


async def _resolve(server: LintServer, action: types.CodeAction) -> types.CodeAction:
    return await server.resolve(action)


_ANSWERS: Final[dict[str, tuple[Callable[..., Any], Any]]] = {
    types.INITIALIZED: (_initialized, None),
    types.TEXT_DOCUMENT_DID_OPEN: (_did_open, None),
    types.TEXT_DOCUMENT_DID_CHANGE: (_did_change, None),
    types.TEXT_DOCUMENT_DID_SAVE: (_did_save, None),
    types.TEXT_DOCUMENT_DID_CLOSE: (_did_close, None),
    types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS: (_did_change_folders, None),
    types.WORKSPACE_DID_CHANGE_WATCHED_FILES: (_did_change_files, None),
    types.TEXT_DOCUMENT_HOVER: (_hover, None),
    types.TEXT_DOCUMENT_CODE_ACTION: (
        _code_action,
        types.CodeActionOptions(
            [types.CodeActionKind.QuickFix, code_actions.FIX_ALL], resolve_provider=True
        ),
    ),
    types.CODE_ACTION_RESOLVE: (_resolve, None),
}
