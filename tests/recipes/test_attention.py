"""The attention recipe, as a user runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_wrong_option_is_an_error_of_one_line() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "recipes.attention", "--sequence", "rings"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 1
    assert run.stderr.startswith("sequence cannot be 'rings'")
