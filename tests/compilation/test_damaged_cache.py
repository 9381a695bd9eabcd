"""The persistent compilation cache damaged, on a full disk, in a place that is none, and shared: always an answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from tpuport.compilation import Program
from tpuport.compilation.programs.flat_program import FlatProgram
from tpuport.errors import PortError

ROOT = Path(__file__).resolve().parents[2]

# Answers with whether the compiled model agrees with torch, for the cache as it is and after each kind of damage.
PROGRAM = """
import json, random, sys, warnings
from pathlib import Path

import jax
import torch
from jax.experimental.compilation_cache import compilation_cache

import tpuport

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
source = random.Random(0)
network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
inputs = torch.randn(3, 8)
expected = network(inputs)


def agrees():
    jax.clear_caches()
    compilation_cache.reset_cache()
    result = tpuport.compile(tpuport.port(network))(inputs).cpu()
    return torch.allclose(result, expected, atol=1e-5)


def flipped(data):
    place = source.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << source.randrange(8)]) + data[place + 1 :]


answers = {"as it is": agrees()}
damage = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: source.randrange(len(data))],
    "random bytes": lambda data: source.randbytes(len(data)),
    "longer": lambda data: data + b"more",
    "a bit flipped": flipped,
}
directory = Path(sys.argv[1])
entries = {file: file.read_bytes() for file in directory.iterdir()} if directory.is_dir() else {}
for kind in sys.argv[2:]:
    change = damage[kind]
    for file, data in entries.items():
        file.write_bytes(change(data))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers[kind] = agrees()
    # Read, and not left aside: but for what follows the end of the data, jax says what is wrong.
    assert kind == "longer" or any("persistent compilation cache" in str(warning.message) for warning in caught)
print(json.dumps([len(entries), answers]))
"""


def start(directory: Path, *arguments: str, limit: str = "") -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TPUPORT_COMPILATION_CACHE": str(directory)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-W", "ignore", "-c", limit + PROGRAM, str(directory), *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answers(process: subprocess.Popen[str]) -> tuple[int, dict[str, bool]]:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    entries, by_kind = json.loads(output)
    return entries, by_kind


@pytest.mark.slow  # what jax says of an entry that it cannot read is explained below
@pytest.mark.parametrize(
    "kinds",
    [("cut", "longer"), ("empty", "random bytes", "a bit flipped")],
    ids=" and ".join,
)
def test_damaged_entries_are_compiled_again(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    entries, by_kind = answers(start(tmp_path / "xla", *kinds))
    assert entries > 0
    assert by_kind.keys() == {"as it is", *kinds}
    assert all(by_kind.values()), by_kind


@pytest.mark.slow  # `test_damaged_entries_are_compiled_again` has entries that are cut
def test_a_full_disk(tmp_path: Path) -> None:
    # A limit to the size of files ends a write midway, as a full disk does.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    assert answers(start(tmp_path, limit=limit))[1] == {"as it is": True}
    # Entries that are cut are compiled again, as above.
    assert {file.stat().st_size for file in tmp_path.iterdir()} == {1000}


@pytest.mark.slow  # a process each
@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_cannot_be_a_directory(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    assert answers(start(tmp_path / place))[1] == {"as it is": True}


@pytest.mark.slow  # `test_damaged_entries_are_compiled_again`: a half-written entry is one
def test_two_processes_at_once(tmp_path: Path) -> None:
    processes = [start(tmp_path) for _ in range(2)]
    assert [answers(process)[1] for process in processes] == [{"as it is": True}] * 2


EXCHANGED = """
import json, sys
from pathlib import Path

import jax
import torch

import tpuport

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
ones = lambda *shape: torch.ones(shape, device="jax")
programs = {
    "sum": (tpuport.compile(lambda x, y: (x @ y).sum(0)), ones(4, 5), ones(5, 2)),
    "three": (tpuport.compile(lambda x: x * 2 + 1), ones(3)),
    "five": (tpuport.compile(lambda x: x * 2 + 1), ones(5)),
}
answers = {}
for name, (program, *inputs) in programs.items():
    try:
        answers[name] = program(*inputs).cpu().tolist()
    except tpuport.PortError as error:
        answers[name] = str(error)
print(json.dumps(answers))
"""


@pytest.mark.slow  # the test below has the same errors without a cache
def test_files_of_programs_exchanged(tmp_path: Path) -> None:
    def run() -> dict[str, object]:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TPUPORT_COMPILATION_CACHE": str(tmp_path)}
        script = "import tpuport.auto\n" + EXCHANGED
        command = [sys.executable, "-W", "ignore", "-c", script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert run() == {"sum": [20, 20], "three": [3] * 3, "five": [3] * 5}
    files = sorted(tmp_path.glob("jit__lambda-*-cache"))
    contents = [file.read_bytes() for file in files]
    assert len(files) == 3
    for file, content in zip(files, [*contents[1:], contents[0]], strict=True):
        file.write_bytes(content)
    for text in run().values():
        assert "the compiled program that was kept on disk is another one" in str(text)
        assert str(tmp_path) in str(text)


@pytest.mark.parametrize(
    ("error", "is_explained"),
    [
        (ValueError("safe_zip() argument 1 has length 2 but argument 0 has length 1."), True),
        (jax.errors.JaxRuntimeError("INVALID_ARGUMENT: E0102: RuntimeProgramInputMismatch: 3"), True),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"), False),
        (ValueError("safe"), False),
    ],
)
@pytest.mark.parametrize("directory", [None, "/cache"])
def test_a_program_of_another_name_is_explained(error, is_explained, directory, monkeypatch) -> None:
    def fail(*arrays):
        # A new one: an error keeps the frames that it has passed.
        raise type(error)(*error.args)

    program = Program(lambda x: x, "step")
    traced = Program(fail, "step")
    monkeypatch.setattr(FlatProgram, "_jitted", lambda self, arrays: fail)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", directory)
    try:
        explained = is_explained and directory is not None
        with pytest.raises(PortError if explained else type(error)) as raised:
            program(1.0)
        assert not explained or "step, in /cache" in str(raised.value)
        # An error of the function itself is its own.
        with pytest.raises(type(error)):
            traced(1.0)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
