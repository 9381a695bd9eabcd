"""The recipe as its users run it: a command, its output, its exit code."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


# Runs the recipe once for each list of arguments, and prints each exit code and what was written as an error.
RUNS = """
import contextlib, io, json, runpy, sys
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["recipes.llama", *arguments]
    errors = io.StringIO()
    code = 0
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            runpy.run_module("recipes.llama", run_name="__main__")
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, errors.getvalue()]))
"""


def _recipe(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _python("-m", "recipes.llama", *arguments)


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
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


def test_bad_arguments_are_a_sentence_and_not_a_traceback(tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    shutil.copytree(ROOT / "recipes/llama/checkpoint", silent, ignore=shutil.ignore_patterns("tokenizer*"))
    cases = (
        (("--checkpoint", str(tmp_path / "nowhere")), 1, "no such directory"),
        (("--tp", "3"), 1, "there is 1 cpu device"),
        (("--do-sample", "--check"), 2, "promised for greedy float32"),
        (("--temperature", "0.5"), 2, "nothing is sampled without --do-sample"),
        (("--prompt", "Tom", "--prompt", ""), 1, "makes no token of ''"),
        (("--checkpoint", str(silent)), 1, "the tokenizer cannot be read"),
    )
    done = _python("-c", RUNS, json.dumps([arguments for arguments, _, _ in cases]))
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for (_, expected_code, words), (code, errors) in zip(cases, answers, strict=True):
        assert (code, "Traceback" in errors) == (expected_code, False), errors
        assert words in re.sub(r"\s+", " ", errors)


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
