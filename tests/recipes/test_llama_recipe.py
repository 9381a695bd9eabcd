"""The recipe as its users run it: a command, its output, its exit code."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _recipe(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "recipes.llama", *arguments]
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


def test_the_tiny_llama_on_a_mesh_says_what_torch_says() -> None:
    done = _recipe(
        "--prompt", "Tom counted", "--tp", "2", "--dp", "2", "--cpu-devices", "4", "--max-new-tokens", "24"
    )
    assert done.returncode == 0, done.stderr
    assert "mesh: dp=2 tp=2" in done.stdout
    assert "torch says the same: all 24 tokens are equal" in done.stdout
    assert re.search(r"^Tom counted\w* \w+", done.stdout, re.MULTILINE)
    assert re.search(r"prefill: [1-9]\d* tokens/s", done.stdout)
    assert re.search(r"decode: [1-9]\d* tokens/s", done.stdout)


def test_bad_arguments_are_a_sentence_and_not_a_traceback(tmp_path: Path) -> None:
    for arguments, code, words in (
        (("--checkpoint", str(tmp_path / "nowhere")), 1, "no such directory"),
        (("--tp", "3"), 1, "there are 1 cpu device"),
        (("--do-sample", "--check"), 2, "promised for greedy float32"),
    ):
        done = _recipe(*arguments)
        assert done.returncode == code, done.stdout
        assert words in " ".join(done.stderr.split()), done.stderr
        assert "Traceback" not in done.stderr
