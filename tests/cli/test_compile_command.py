"""`tpuport compile` as a user runs it, in processes of its own and with the real compiler."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MODEL = """
import torch

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(256, 512, bias=False)

    def forward(self, x, choose=False):
        if choose and x.sum() > 0:
            return x
        return self.first(x)

def build():
    return Small(), {"x": torch.empty(8, 256, device="meta")}

def untraceable():
    return Small(), {"x": torch.empty(8, 256, device="meta"), "choose": True}
"""


def command(*arguments: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        "import sys; from tpuport.cli import main; sys.exit(main())",
        "compile",
        *arguments,
    ]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "small.py").write_text(MODEL)
    return tmp_path


def real(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "XDG_CACHE_HOME": str(directory / "cache"), "TPUPORT_COMPILATION_CACHE": ""}
    return subprocess.run(command(*arguments), capture_output=True, text=True, cwd=directory, env=environment)


@pytest.mark.slow  # tests/topology/test_compiling.py compiles without the command
def test_the_real_compiler(directory: Path) -> None:
    first = real(directory, "small:build", "--topology", "v6e", "--format", "json", "--save-hlo", "programs")
    assert first.returncode == 0, first.stderr
    [result] = json.loads(first.stdout)["results"]
    report = result["report"]
    assert report["weight_bytes"] == 4 * 256 * 512
    assert (report["topology"], report["mesh"]) == ("v6e:2x2", {"dp": 1, "sp": 1, "tp": 4})
    assert report["fits"]
    assert "HloModule" in next((directory / "programs").glob("*.hlo.txt")).read_text()[:100]


@pytest.mark.slow  # tests/topology/test_compile_job.py has it without processes of its own
def test_a_second_process_finds_the_program_of_the_first(directory: Path) -> None:
    arguments = ("small:build", "--topology", "v6e", "--format", "json")
    first = real(directory, *arguments)
    again = real(directory, *arguments)
    assert again.stdout == first.stdout
    assert "tracing" in again.stderr
    assert "compiling" not in again.stderr


@pytest.mark.slow  # the command's words are in test_compile.py, the line in tests/topology/test_compiling.py
def test_a_model_that_cannot_be_traced(directory: Path) -> None:
    done = real(directory, "small:untraceable", "--topology", "v6e")
    assert done.returncode == 1, done.stderr
    assert "small.py:10" in done.stdout
    assert "TPU2" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_an_interruption_from_the_keyboard(directory: Path) -> None:
    asked = command("small:build", "--topology", "v6e", "--output", "report.txt")
    process = subprocess.Popen(asked, cwd=directory, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "starting the compiler" in process.stderr.readline()
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert [file.name for file in directory.iterdir() if file.name != "__pycache__"] == ["small.py"]
