"""The command that starts the language server."""

import importlib.util
from typing import Any

import pytest

from tpuport.cli import main


def test_a_missing_extra_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec

    def without_pygls(name: str, *arguments: Any) -> Any:
        return None if name == "pygls" else find_spec(name, *arguments)

    monkeypatch.setattr(importlib.util, "find_spec", without_pygls)
    assert main(["server"]) == 1
    message = capsys.readouterr().err
    assert message == 'the language server needs pygls\n  fix: pip install "tpuport[server]"\n'
