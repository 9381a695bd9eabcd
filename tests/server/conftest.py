"""A client of the language server, which runs as a process of its own as in an editor."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types
from pygls.lsp.client import LanguageClient

SECONDS = 60


class Editor:
    """An editor with documents, over one connection to the server.

    Attributes:
        published: by document, what the server has sent about it, in order.
        messages: what the server has shown.
    """

    def __init__(self) -> None:
        self.runner = asyncio.Runner()

        self.client = LanguageClient("test", "1")
        self.published: dict[str, list[types.PublishDiagnosticsParams]] = {}
        self.messages: list[str] = []
        self.versions: dict[str, int] = {}
        self.news = asyncio.Event()
        self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(lambda params: self._receive(params))
        self.client.feature(types.WINDOW_SHOW_MESSAGE)(lambda params: self.messages.append(params.message))
        self.client.feature(types.CLIENT_REGISTER_CAPABILITY)(lambda _: None)

    def _receive(self, params: types.PublishDiagnosticsParams) -> None:
        self.published.setdefault(params.uri, []).append(params)
        self.news.set()

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(asyncio.wait_for(coroutine, SECONDS))

    def start(self, folders: list[Path], environment: dict[str, str]) -> types.InitializeResult:
        return self.run(self._start(folders, environment))

    async def _start(self, folders: list[Path], environment: dict[str, str]) -> types.InitializeResult:
        await self.client.start_io(sys.executable, "-m", "tpuport", "server", env=environment)
        resolve = types.ClientCodeActionResolveOptions(["edit"])
        capabilities = types.ClientCapabilities(
            workspace=types.WorkspaceClientCapabilities(
                workspace_folders=True,
                did_change_watched_files=types.DidChangeWatchedFilesClientCapabilities(
                    dynamic_registration=True
                ),
            ),
            text_document=types.TextDocumentClientCapabilities(
                code_action=types.CodeActionClientCapabilities(resolve_support=resolve)
            ),
        )
        result = await self.client.initialize_async(
            types.InitializeParams(
                capabilities=capabilities,
                workspace_folders=[types.WorkspaceFolder(folder.as_uri(), folder.name) for folder in folders],
            )
        )
        self.client.initialized(types.InitializedParams())
        return result

    def stop(self) -> None:
        async def end() -> None:
            await self.client.shutdown_async(None)
            self.client.exit(None)
            await self.client.stop()

        self.run(end())
        self.runner.close()

    # --- documents ---

    def open(self, file: Path, text: str | None = None) -> list[types.Diagnostic]:
        """Open a document; the diagnostics of its first version."""
        uri = file.as_uri()
        self.versions[uri] = 1
        content = file.read_text() if text is None else text
        item = types.TextDocumentItem(uri, "python", 1, content)
        self.notify(self.client.text_document_did_open, types.DidOpenTextDocumentParams(item))
        return self.diagnostics(file)

    def edit(self, file: Path, *texts: str) -> list[types.Diagnostic]:
        """Replace a document's text, several times without a pause; the diagnostics of the last version."""
        for text in texts:
            self.change(file, text)
        return self.diagnostics(file)

    def change(self, file: Path, text: str) -> None:
        uri = file.as_uri()
        self.versions[uri] += 1
        identifier = types.VersionedTextDocumentIdentifier(self.versions[uri], uri)
        change = types.TextDocumentContentChangeWholeDocument(text)
        params = types.DidChangeTextDocumentParams(identifier, [change])
        self.notify(self.client.text_document_did_change, params)

    def close(self, file: Path) -> None:
        identifier = types.TextDocumentIdentifier(file.as_uri())
        self.notify(self.client.text_document_did_close, types.DidCloseTextDocumentParams(identifier))

    def notify(self, send: Callable[[Any], None], params: Any) -> None:
        async def work() -> None:
            send(params)

        self.run(work())

    def diagnostics(
        self, file: Path | str, until: Callable[[list[types.Diagnostic]], bool] = lambda _: True
    ) -> list[types.Diagnostic]:
        """What the server says about a document's latest version, as soon as a condition holds."""
        uri = file if isinstance(file, str) else file.as_uri()

        async def wait() -> list[types.Diagnostic]:
            while True:
                latest = self.published.get(uri, [])[-1:]
                for params in latest:
                    if params.version == self.versions[uri] and until(list(params.diagnostics)):
                        return list(params.diagnostics)
                self.news.clear()
                await self.news.wait()

        return self.run(wait())

    # --- questions ---

    def hover(self, file: Path, line: int, character: int) -> types.Hover | None:
        identifier = types.TextDocumentIdentifier(file.as_uri())
        params = types.HoverParams(identifier, types.Position(line, character))
        return self.run(self.client.text_document_hover_async(params))

    def actions(
        self, file: Path, diagnostic: types.Diagnostic, only: list[str] | None = None
    ) -> list[types.CodeAction]:
        params = types.CodeActionParams(
            types.TextDocumentIdentifier(file.as_uri()),
            diagnostic.range,
            types.CodeActionContext([diagnostic], only=only),
        )
        return self.run(self.client.text_document_code_action_async(params))

    def apply(self, action: types.CodeAction, text: str) -> str:
        """A text after an action."""
        resolved = self.run(self.client.code_action_resolve_async(action))
        (edits,) = resolved.edit.changes.values()
        # In UTF-16, so that positions are indices.
        lines = [line.encode("utf-16-le") for line in text.splitlines(keepends=True)]
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        data = b"".join(lines)
        for edit in reversed(edits):
            first = starts[edit.range.start.line] + 2 * edit.range.start.character
            last = starts[edit.range.end.line] + 2 * edit.range.end.character
            data = data[:first] + edit.new_text.encode("utf-16-le") + data[last:]
        return data.decode("utf-16-le")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two folders of the workspace."""
    root = tmp_path_factory.mktemp("workspace")
    (root / "models").mkdir()
    (root / "models" / "pyproject.toml").write_text('[tool.tpuport.lint.severities]\nTPU113 = "info"\n')
    (root / "other").mkdir()
    return root


@pytest.fixture(scope="module")
def editor(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    cache = tmp_path_factory.mktemp("cache")
    editor = Editor()
    environment = {**os.environ, "TPUPORT_CACHE_DIR": str(cache)}
    editor.start([workspace / "models", workspace / "other"], environment)
    yield editor
    editor.stop()
