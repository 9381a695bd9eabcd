"""Which code the recipe lints before it loads a model."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from recipes.model_linting import lint_model_code, model_files
from tpuport import PortError

_BAD = """
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x * x.max().item()
"""


def test_the_code_is_the_library_s_for_the_model_type(tmp_path: Path) -> None:
    for kind, file in (("llama", "modeling_llama.py"), ("gemma3_text", "modeling_gemma3.py")):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        assert [path.name for path in model_files(tmp_path)] == [file]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-type"}))
    assert model_files(tmp_path) == []


def test_code_beside_the_checkpoint_comes_first_and_its_errors_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "modeling_own.py").write_text(_BAD)
    said = io.StringIO()
    lint_model_code(tmp_path, Console(file=said, width=300))
    assert "modeling_own.py:7 TPU201" in said.getvalue()
    assert "Not expected to trace: 1 error" in said.getvalue()


def test_a_directory_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PortError, match="model_type"):
        model_files(tmp_path)
