"""`tpuport tune attention` as a user runs it."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tpuport.attention.tuning.bundle_compiler import Compilation, Compiler
from tpuport.attention.tuning.bundle_schedule import KernelBundles
from tpuport.cli import main

SMALL = "1,2,2,100,200,64"


class Result(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        exit_code = main(["tune", "attention", *arguments])
    return Result(exit_code, out.getvalue(), err.getvalue())


class Quick(Compiler):
    """In the compiler's place: schedules by a formula."""

    asked = 0

    def __init__(self, topology: str, *, timeout: float = 1.0) -> None:
        pass

    def __enter__(self) -> "Quick":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def count(self, function: str, arguments: dict[str, Any]) -> Compilation:
        Quick.asked += 1
        query, key, _ = arguments["blocks"]
        if query == 1536:
            return Compilation((), "Ran out of memory in memory space vmem.", False, 0.1)
        kernel = KernelBundles("tpuport_flash", 200 + query * key // 500, (50, 70), {"MXU": 0.5})
        return Compilation((kernel,), None, False, 0.1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Quick]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setattr("tpuport.attention.tuning.bundle_compiler.Compiler", Quick)
    monkeypatch.setattr(Quick, "asked", 0)
    return Quick


def test_the_table(quick: type[Quick]) -> None:
    result = run("--topology", "v6e", "--shape", "flux-4608")
    assert result.exit_code == 0, result.stderr
    assert "flux-4608 on v6e:2x2, bfloat16, no mask" in result.stdout
    assert "+0.0%" in result.stdout
    assert "The default is " in result.stdout
    assert "did not compile: does not fit into vector memory" in result.stdout


def test_json(quick: type[Quick]) -> None:
    result = run("--topology", "v5e:2x4", "--shape", "llama3-8b-8k", "--shape", SMALL, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert list(report) == ["schema", "topology", "versions", "results"]
    assert report["topology"] == "v5e:2x4"
    first, second = report["results"]
    assert first["causal"], "as the model itself is"
    assert not second["causal"]
    assert second["shape"]["queries"] == 100
    cycles = [candidate["cycles"] for candidate in first["candidates"]]
    assert cycles == sorted(cycles)


def test_what_is_kept_is_not_compiled_again(quick: type[Quick]) -> None:
    run("--topology", "v6e", "--shape", SMALL)
    before = quick.asked
    assert before > 0
    assert run("--topology", "v6e", "--shape", SMALL).exit_code == 0
    assert quick.asked == before


def test_an_interrupted_search_says_how_to_go_on(quick: type[Quick], monkeypatch: pytest.MonkeyPatch) -> None:
    count = quick.count

    def interrupted(self: Quick, function: str, arguments: dict[str, Any]) -> Compilation:
        if quick.asked == 3:
            raise KeyboardInterrupt
        return count(self, function, arguments)

    monkeypatch.setattr(quick, "count", interrupted)
    result = run("--topology", "v6e", "--shape", "flux-4608")
    assert result.exit_code == 130
    assert "the same command continues" in result.stderr
    assert result.stdout == ""
    monkeypatch.setattr(quick, "count", count)
    assert run("--topology", "v6e", "--shape", "flux-4608").exit_code == 0


def test_save(quick: type[Quick], tmp_path: Path) -> None:
    file = tmp_path / "v6e.json"
    options = [
        "--topology",
        "v6e",
        "--shape",
        "flux-4608",
        "--dtype",
        "f32",
        "--window",
        "512",
        "--padding",
        "exact",
    ]
    result = run(*options, "--save", str(file))
    assert result.exit_code == 0, result.stderr
    data = json.loads(file.read_text())
    assert data["command"] == (
        "tpuport tune attention --topology v6e:2x2 --shape flux-4608 --dtype f32 --window 512 --padding exact"
        " --save v6e.json"
    )
    assert data["generation"] == "v6e"
    (grid,) = data["grids"]
    assert (grid["dtype"], grid["head_dim"], grid["has_band"]) == ("float32", 128, True)
    assert grid["rows"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--topology", "h100", "--shape", SMALL], "no TPU slice is called"),
        (["--topology", "v6e", "--shape", "flux"], "is not an attention shape"),
        (["--topology", "v6e", "--shape", "1,8,3,8,8,8"], "do not divide"),
        (["--topology", "v6e", "--shape", SMALL, "--shape", "nonsense"], "is not an attention shape"),
        (["--topology", "v6e"], "the following arguments are required"),
        (["--shape", SMALL], "the following arguments are required"),
        (["--topology", "v6e", "--shape", SMALL, "--dtype", "int8"], "int8"),
        (["--topology", "v6e", "--shape", SMALL, "--padding", "none_at_all"], "none_at_all"),
        (["--topology", "v6e", "--shape", SMALL, "--window", "0"], "--window"),
        (
            ["--topology", "v6e", "--shape", SMALL, "--save", "/no/such/directory/v6e.json"],
            "there is no directory",
        ),
    ],
)
def test_wrong_usage_exits_with_2_before_anything_is_compiled(
    quick: type[Quick], arguments: list[str], why: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert why in result.stderr
    assert quick.asked == 0


def test_no_candidate_is_exit_code_1(quick: type[Quick], monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Compilation((), "Ran out of memory in memory space vmem.", False, 0.1)
    monkeypatch.setattr(Quick, "count", lambda *_: failed)
    result = run("--topology", "v6e", "--shape", SMALL)
    assert result.exit_code == 1, result.stderr
    assert "block sizes" in result.stderr


@pytest.mark.slow
def test_the_real_compiler(tmp_path: Path) -> None:
    code = "import sys; from tpuport.cli import main; sys.exit(main())"
    options = ["--topology", "v5e", "--shape", "1,1,1,128,128,64", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, "tune", "attention", *options],
        capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["measured"] >= 4
    assert all(candidate["bundles"] > 100 for candidate in result["candidates"])
    assert result["default"] in result["candidates"]
    (file,) = (tmp_path / "tpuport" / "tune").iterdir()
    assert len(file.read_text().split("\n")) > result["measured"]
