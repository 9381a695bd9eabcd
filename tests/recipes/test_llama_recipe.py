"""The recipe as its users run it: a command, its output, its exit code."""

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.utils.logging import enable_progress_bar

import tpuport
from recipes.command import run_command
from recipes.llama import __main__ as llama_recipe

ROOT = Path(__file__).resolve().parents[2]


def _recipe(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "recipes.llama", *arguments]
    # The recipe itself asks for devices.
    env = os.environ | {"XLA_FLAGS": re.sub(r"\S+device_count=\d+", "", os.environ["XLA_FLAGS"])}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.slow  # `make demo` runs it, and tests/generation/test_sharded.py the mesh
def test_the_tiny_llama_on_a_mesh_says_what_torch_says() -> None:
    done = _recipe(
        "--prompt", "Tom counted", "--tp", "2", "--dp", "2", "--cpu-devices", "4", "--max-new-tokens", "12"
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"lint: modeling_llama\.py, \d+ lines\. Expected to trace", done.stdout)
    assert "mesh: dp=2 tp=2" in done.stdout
    assert "torch generates the same: all 12 tokens are equal" in done.stdout
    assert re.search(r"^Tom counted\w* \w+", done.stdout, re.MULTILINE)
    assert re.search(r"prefill: [1-9]\d* tokens/s", done.stdout)
    assert re.search(r"decode: [1-9]\d* tokens/s", done.stdout)


@pytest.fixture
def loud_libraries() -> Iterator[None]:
    """Undoes what the recipe changes in a process of its own: tpuport's enabling, and what transformers prints."""
    logger = logging.getLogger("transformers")
    level = logger.level
    yield
    tpuport.disable()
    logger.setLevel(level)
    enable_progress_bar()


@pytest.mark.usefixtures("loud_libraries")
def test_bad_arguments_are_a_sentence_and_not_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = tmp_path / "silent"
    shutil.copytree(ROOT / "recipes/llama/checkpoint", silent, ignore=shutil.ignore_patterns("tokenizer*"))
    cases = (
        (("--checkpoint", str(tmp_path / "nowhere")), 1, "no such directory"),
        (("--tp", "9"), 1, "there are 8 cpu devices"),
        (("--do-sample", "--check"), 2, "promised for greedy float32"),
        (("--temperature", "0.5"), 2, "nothing is sampled without --do-sample"),
        (("--prompt", "Tom", "--prompt", ""), 1, "makes no token of ''"),
        (("--checkpoint", str(silent)), 1, "the tokenizer cannot be read"),
    )
    for arguments, expected_code, words in cases:
        monkeypatch.setattr(sys, "argv", ["recipes.llama", *arguments])
        with pytest.raises(SystemExit) as end:
            run_command(llama_recipe.main)
        errors = capsys.readouterr().err
        assert (end.value.code, "Traceback" in errors) == (expected_code, False), errors
        assert words in re.sub(r"\s+", " ", errors)


def test_a_checkpoint_that_transformers_cannot_load_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of GPTQ without its packages, which tpuport does not need."""

    def refuse(*args: object, **options: object) -> None:
        raise ImportError("Loading a GPTQ quantized model requires optimum\nand more")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", refuse)
    with pytest.raises(tpuport.PortError, match="to compare with: Loading a GPTQ") as caught:
        llama_recipe.compare(Path("some"), {}, {}, None)
    assert "and more" not in str(caught.value)
    assert "--check" in str(caught.value.fix)


@pytest.mark.slow
def test_what_the_checks_find_may_be_allowed() -> None:
    arguments = ("--tp", "3", "--cpu-devices", "3", "--prompt", "Tom", "--max-new-tokens", "2")
    refused = _recipe(*arguments)
    assert refused.returncode == 1
    assert "tp=3 does not divide" in refused.stderr
    patterns = set(re.findall(r"rule '(.*?)': dimension", refused.stderr))
    assert patterns
    allowed = [part for pattern in patterns for part in ("--allow", pattern.replace("\\\\", "\\"))]
    done = _recipe(*arguments, *allowed)
    assert done.returncode == 0, done.stderr
    assert "torch generates the same" in done.stdout
