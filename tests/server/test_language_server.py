"""The language server as an editor uses it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        mask = x > 0
        y = x.clone()
        y[mask] *= 2
        return y, x[mask]


def train(model):
    model.cuda()
"""


def rules(diagnostics: list[types.Diagnostic]) -> list[Any]:
    return [diagnostic.code for diagnostic in diagnostics]


def lint_fixed(file: Path, *options: str) -> str:
    """What `tpuport lint --fix` makes of a file."""
    command = [sys.executable, "-m", "tpuport", "lint", str(file), "--fix", "--no-cache", *options]
    subprocess.run(command, check=False, capture_output=True)
    return file.read_text()


def test_findings_of_a_text_that_is_not_saved(editor: Any, workspace: Path) -> None:
    file = workspace / "models" / "unsaved.py"
    file.write_text("x = 1\n")
    assert editor.open(file) == []
    diagnostics = editor.edit(file, MODEL)
    assert rules(diagnostics) == ["TPU113", "TPU101", "TPU301"]
    shown = diagnostics[1]
    assert shown.range == types.Range(types.Position(9, 18), types.Position(9, 25))
    assert shown.severity == types.DiagnosticSeverity.Error
    assert diagnostics[2].severity == types.DiagnosticSeverity.Warning
    assert shown.source == "tpuport"
    assert "help: keep the full length" in shown.message
    page = Path(shown.code_description.href.removeprefix("file://"))
    assert page.read_text().startswith("# TPU101 boolean-mask-read")
    editor.close(file)


def test_columns_count_utf_16(editor: Any, workspace: Path) -> None:
    file = workspace / "models" / "wide.py"
    text = MODEL.replace("return y, x[mask]", 'return "é😀", x[mask]')
    (diagnostic,) = [shown for shown in editor.open(file, text) if shown.code == "TPU101"]
    # The second character takes two units.
    assert (diagnostic.range.start.character, diagnostic.range.end.character) == (22, 29)
    assert editor.hover(file, 9, 22) is not None
    assert editor.hover(file, 9, 20) is None
    editor.close(file)


def test_hover_explains_the_rule(editor: Any, workspace: Path) -> None:
    file = workspace / "models" / "hover.py"
    editor.open(file, MODEL)
    hover = editor.hover(file, 9, 20)
    for part in ("TPU101 boolean-mask-read", "## Why", "## Before", "## After", "help: keep the full length"):
        assert part in hover.contents.value
    assert hover.range.start == types.Position(9, 18)
    assert editor.hover(file, 0, 0) is None
    editor.close(file)


def test_actions_write_what_lint_writes(editor: Any, workspace: Path) -> None:
    file = workspace / "models" / "actions.py"
    file.write_text(MODEL)
    diagnostics = editor.open(file)
    write, _, cuda = diagnostics
    fix, suppress, fix_all = editor.actions(file, write)
    assert (fix.kind, fix.is_preferred) == (types.CodeActionKind.QuickFix, True)
    assert fix_all.kind == "source.fixAll.tpuport"
    only_write = editor.apply(fix, MODEL)
    assert "y[mask]" not in only_write
    rewrite, *_ = editor.actions(file, cuda)
    assert "unsafe" in rewrite.title
    assert not rewrite.is_preferred
    assert "cuda" not in editor.apply(rewrite, MODEL)
    ignored = editor.apply(suppress, MODEL)
    assert "y[mask] *= 2  # tpuport: ignore[TPU113]\n" in ignored
    (only_all,) = editor.actions(file, write, ["source.fixAll"])
    all_fixed = editor.apply(only_all, MODEL)
    assert all_fixed == lint_fixed(file)
    assert rules(editor.edit(file, ignored)) == ["TPU101", "TPU301"]
    editor.close(file)


def test_an_action_on_an_older_text_is_refused(editor: Any, workspace: Path) -> None:
    file = workspace / "models" / "older.py"
    (write, *_) = editor.open(file, MODEL)
    fix, *_ = editor.actions(file, write)
    editor.change(file, f"# more\n{MODEL}")
    with pytest.raises(Exception, match="has changed"):
        editor.apply(fix, MODEL)
    # Asked for right after an edit, actions are those of the new text.
    assert len(editor.actions(file, write, ["quickfix"])) == 0
    editor.close(file)


def test_what_was_sent_of_several_edits_is_never_older(editor: Any, workspace: Path) -> None:
    file = workspace / "models" / "quick.py"
    editor.open(file, "x = 1\n")
    texts = [f"{MODEL}# {number}\n" for number in range(8)]
    editor.edit(file, *texts, "x = 2\n")
    versions = [params.version for params in editor.published[file.as_uri()]]
    assert versions == sorted(versions)
    # No pause was between the edits.
    assert versions == [1, 10]
    editor.close(file)


def test_a_file_that_does_not_parse(editor: Any, workspace: Path) -> None:
    file = workspace / "models" / "broken.py"
    (diagnostic,) = editor.open(file, "def f(:\n    pass\n")
    assert diagnostic.code == "TPU001"
    assert diagnostic.range.start == types.Position(0, 6)
    assert rules(editor.edit(file, MODEL)) == ["TPU113", "TPU101", "TPU301"]
    editor.close(file)


def test_callers_in_other_files_decide_what_is_traced(editor: Any, workspace: Path) -> None:
    helpers = workspace / "models" / "helpers.py"
    model = workspace / "models" / "caller.py"
    helpers.write_text("def pad(x):\n    return x[x > 0]\n")
    assert editor.open(helpers) == []
    text = (
        "from torch import nn\nfrom helpers import pad\n\n\n"
        "class Caller(nn.Module):\n    def forward(self, x):\n        return pad(x)\n"
    )
    assert editor.open(model, text) == []
    (found,) = editor.diagnostics(helpers, until=bool)
    assert found.code == "TPU101"
    steps = [(info.location.uri, info.location.range.start.line) for info in found.related_information]
    assert steps == [(model.as_uri(), 5), (helpers.as_uri(), 0)]
    # What the caller traces moves with the helper's unsaved text.
    (moved,) = editor.edit(helpers, "# first\ndef pad(x):\n    return x[x > 0]\n")
    assert moved.range.start.line == found.range.start.line + 1
    editor.change(model, text.replace("pad(x)", "x"))
    assert editor.diagnostics(helpers, until=lambda shown: not shown) == []
    editor.close(helpers)
    editor.close(model)


def test_each_folder_has_its_own_settings(editor: Any, workspace: Path) -> None:
    inside = editor.open(workspace / "models" / "settings.py", MODEL)
    assert inside[0].severity == types.DiagnosticSeverity.Information
    outside = editor.open(workspace / "other" / "settings.py", MODEL)
    assert outside[0].severity == types.DiagnosticSeverity.Error
    # A folder's settings may change while its files are open.
    settings = workspace / "other" / "pyproject.toml"
    settings.write_text('[tool.tpuport.lint]\nselect = ["TPU3"]\n')
    event = types.FileEvent(settings.as_uri(), types.FileChangeType.Created)
    params = types.DidChangeWatchedFilesParams([event])
    editor.notify(editor.client.workspace_did_change_watched_files, params)
    after = editor.diagnostics(workspace / "other" / "settings.py", until=lambda shown: len(shown) == 1)
    assert rules(after) == ["TPU301"]
    settings.write_text("[tool.tpuport.lint]\nselekt = []\n")
    editor.notify(editor.client.workspace_did_change_watched_files, params)
    editor.diagnostics(workspace / "other" / "settings.py", until=lambda shown: len(shown) == 3)
    assert any("selekt" in message for message in editor.messages)
    editor.close(workspace / "models" / "settings.py")
    editor.close(workspace / "other" / "settings.py")


def test_a_closed_document_has_no_findings(editor: Any, workspace: Path) -> None:
    file = workspace / "models" / "closed.py"
    assert editor.open(file, MODEL)
    editor.close(file)
    editor.open(workspace / "models" / "next.py", "x = 1\n")
    assert not editor.published[file.as_uri()][-1].diagnostics
    editor.close(workspace / "models" / "next.py")


def test_what_is_not_analysed(editor: Any, workspace: Path) -> None:
    environment = workspace / "models" / ".venv" / "lib" / "installed.py"
    assert editor.open(environment, MODEL) == []
    editor.close(environment)
    uri = "vscode-notebook-cell:/nb.ipynb#W1"
    item = types.TextDocumentItem(uri, "python", 1, "%matplotlib inline\n")
    editor.notify(editor.client.text_document_did_open, types.DidOpenTextDocumentParams(item))
    editor.open(workspace / "models" / "after.py", "x = 1\n")
    assert uri not in editor.published
    editor.close(workspace / "models" / "after.py")


def test_a_document_that_is_not_saved_yet(editor: Any) -> None:
    uri = "untitled:Untitled-1"
    editor.versions[uri] = 1
    item = types.TextDocumentItem(uri, "python", 1, MODEL)
    editor.notify(editor.client.text_document_did_open, types.DidOpenTextDocumentParams(item))
    assert rules(editor.diagnostics(uri)) == ["TPU113", "TPU101", "TPU301"]
