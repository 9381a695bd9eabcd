"""The attention recipe, as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tpuport
from recipes.attention import __main__ as attention_recipe
from recipes.command import run_command

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--sequence", "ring"], marks=pytest.mark.slow),
        pytest.param(["--dp", "2", "--sp", "2", "--sequence", "ulysses"], marks=pytest.mark.slow),
        pytest.param([], marks=pytest.mark.slow),
    ],
)
def test_both_models_equal_torch_and_every_call_is_explained(options: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "recipes.attention", *options], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "tokens equal transformers' generate: True" in run.stdout
    assert run.stdout.count("mask    causal, padding, padded keys: exact") == 1
    assert "bias of keys" in run.stdout
    assert "dense" not in run.stdout


def test_a_wrong_option_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["recipes.attention", "--sequence", "rings"])
    # What the recipe changes for the devices that it asks for.
    for name in ("JAX_PLATFORMS", "XLA_FLAGS"):
        monkeypatch.setenv(name, os.environ[name])
    try:
        with pytest.raises(SystemExit) as end:
            run_command(attention_recipe.main)
    finally:
        tpuport.disable()
    assert end.value.code == 1
    assert capsys.readouterr().err.startswith("sequence cannot be 'rings'")
