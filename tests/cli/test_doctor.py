"""`tpuport doctor`, on the real installation and on broken ones."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tpuport.cli import diagnosis, main
from tpuport.compat import versions
from tpuport.libraries import model_results
from tpuport.libraries.model_results import ModelResult


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the installed command says here, in a process of its own as a user runs it."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "program").write_bytes(b"x" * 1000)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from tpuport.cli import main; sys.exit(main())",
            "doctor",
            "--json",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_versions_are_those_of_the_metadata(report: dict[str, Any]) -> None:
    assert report["works"] is True
    assert report["tested"] is versions.are_recommended(report["versions"])
    assert report["problems"] == []
    for name in ("torch", "torchax", "jax", "transformers"):
        assert report["versions"][name] == metadata.version(name)


def test_devices_are_those_that_jax_has(report: dict[str, Any]) -> None:
    import jax

    assert len(report["devices"]) == len(jax.devices())
    assert {device["platform"] for device in report["devices"]} == {"cpu"}


def test_replaced_operators_come_with_reasons(report: dict[str, Any]) -> None:
    assert any("_grouped_mm" in entry["operator"] for entry in report["operators"])
    assert all(entry["reason"] for entry in report["operators"])


def test_shims_say_why(report: dict[str, Any]) -> None:
    torchax_alone = subprocess.run(
        [sys.executable, "-c", "import torchax; torchax.default_env()"], capture_output=True, check=False
    )
    assert bool(report["shims"]) == (torchax_alone.returncode != 0)
    assert all(report["shims"].values())


def test_memory_and_cache(report: dict[str, Any]) -> None:
    assert 0 < report["memory"]["available_bytes"] < report["memory"]["total_bytes"]
    assert report["cache"]["files"] == 1
    assert report["cache"]["bytes"] == 1000


def test_the_report_has_the_documented_fields(report: dict[str, Any]) -> None:
    fields = "works tested note problems python versions shims operators mechanisms devices libtpu memory cache schema"
    assert list(report) == fields.split()
    assert report["schema"] == 1


class Result(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        exit_code = main(["doctor", *arguments])
    return Result(exit_code, out.getvalue(), err.getvalue())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Answers instead of probes: `quick(compat={...}, devices={...})`."""

    def use(**answers: dict[str, Any]) -> None:
        compat = {"tested": True, "note": "a note", "shims": {}, "operators": [], "cache_directory": None}
        good = {"compat": compat, "devices": {"devices": []}}
        monkeypatch.setattr(diagnosis.probes, "ask", lambda probe, _: dict((good | answers)[probe]))

    return use


def test_missing_packages_are_named_and_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "installed_version", lambda _: None)
    monkeypatch.setattr(diagnosis.probes, "ask", lambda *_: pytest.fail("a probe ran without its packages"))
    result = run()
    assert result.exit_code == 1
    for name in ("torch", "torchax", "jax"):
        assert f"problem: {name} is not installed" in result.stdout
    assert "This combination does not work." in result.stdout


@pytest.mark.parametrize(
    ("source", "expected", "timeout"),
    [
        ("raise OSError('libsomething.so.7: cannot open shared object')", "OSError: libsomething.so.7", "90"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV", "90"),
        ("import os; os.write(2, b'no licence'); os._exit(3)", "exit code 3", "90"),
        ("import time; time.sleep(600)", "did not answer within 1 seconds", "1"),
    ],
)
def test_a_broken_jax_is_a_problem_and_no_traceback(
    source: str, expected: str, timeout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jax.py").write_text(source)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    result = run("--json", "--timeout", timeout)
    assert result.exit_code == 1
    problems = json.loads(result.stdout)["problems"]
    assert len(problems) == 2
    assert any(expected in problem["what"] for problem in problems)
    assert all(problem["fix"] for problem in problems)


def test_noise_on_standard_output_does_not_spoil_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import os\nos.write(1, b'noise from C\\n')\nprint('noise')\ndef devices(): return []\n"
    (tmp_path / "jax.py").write_text(source)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert diagnosis.probes.ask("devices", 90.0) == {"devices": []}


def test_a_combination_known_not_to_work_is_said_with_its_fix(quick: Callable[..., None]) -> None:
    quick(
        compat={"problem": {"what": "torch 3 is too new", "where": "torch", "fix": "pip install 'torch<3'"}}
    )
    result = run()
    assert result.exit_code == 1
    assert "problem: torch 3 is too new\n  where: torch\n  fix: pip install 'torch<3'" in result.stdout
    assert "unknown" in result.stdout


def test_other_versions_are_told_the_pinned_ones(quick: Callable[..., None]) -> None:
    quick(compat={"tested": False, "note": "pinned to: pip install torch==1", "shims": {}, "operators": []})
    result = run()
    assert result.exit_code == 0
    assert "Nothing wrong was found; pinned to: pip install torch==1" in result.stdout


def test_a_tpu_host(quick: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    chip = {"index": 0, "platform": "tpu", "kind": "TPU v5 lite", "process": 0, "memory_bytes": 16 * 2**30}
    quick(devices={"devices": [chip, {**chip, "index": 1}]})
    monkeypatch.setattr(diagnosis, "tpu_chips", lambda: ["/dev/accel0", "/dev/accel1"])
    versions = {"libtpu": "9.0"}  # a newer one than jax asks for
    monkeypatch.setattr(diagnosis, "installed_version", lambda name: versions.get(name, "1.0"))
    result = run()
    assert result.exit_code == 0
    assert "2 x tpu TPU v5 lite, 16.0 GiB each" in result.stdout
    assert "no TPU:" not in result.stdout
    assert "These versions work together: a note." in result.stdout


def test_chips_without_libtpu_are_a_problem(
    quick: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick()
    monkeypatch.setattr(diagnosis, "tpu_chips", lambda: ["/dev/accel0"])
    monkeypatch.setattr(diagnosis, "installed_version", lambda name: None if name == "libtpu" else "1.0")
    result = run()
    assert result.exit_code == 1
    assert "libtpu is not installed" in result.stdout


def test_a_libtpu_of_an_older_jax_is_a_problem(
    quick: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick()
    monkeypatch.setattr(diagnosis, "installed_version", lambda name: "0.0.1" if name == "libtpu" else "1.0")
    wanted = next(line for line in metadata.requires("jax") or [] if line.startswith("libtpu"))
    result = run("--json")
    problem = json.loads(result.stdout)["problems"][0]
    assert "libtpu is 0.0.1" in problem["what"]
    assert problem["fix"].removeprefix("pip install '").removesuffix("'") in wanted


@pytest.mark.parametrize("arguments", [["--nonsense"], ["nonsense"], ["--timeout", "soon"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


# --- models ---


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [
        ModelResult("transformers", "5.0", "OwnForCausalLM", "models.own.modeling_own", {"forward": "equal"}),
        ModelResult("transformers", "5.0", "OwnModel", "models.own.modeling_own", {"forward": "equal"}),
        ModelResult(
            "diffusers", "0.1", "OwnUNet", "models", {"forward": "equal", "mesh": "different"}, "at [0] 1"
        ),
    ]
    monkeypatch.setattr(model_results, "all_results", lambda: results)


@pytest.mark.usefixtures("known")
def test_a_type_names_its_classes_and_their_results() -> None:
    result = run("--model", "own")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "OwnForCausalLM (transformers 5.0): forward equal",
        "OwnModel (transformers 5.0): forward equal",
    ]


@pytest.mark.usefixtures("known")
def test_a_class_that_fails_says_why_and_is_an_exit_code() -> None:
    result = run("--model", "OwnUNet")
    assert result.exit_code == 1
    assert "forward equal, mesh different (at [0] 1)" in result.stdout
    assert json.loads(run("--model", "OwnUNet", "--json").stdout)[0]["verdicts"]["mesh"] == "different"


@pytest.mark.usefixtures("known")
def test_an_unknown_model_is_wrong_usage_and_similar_ones_are_named() -> None:
    result = run("--model", "OwnUNet2")
    assert result.exit_code == 2
    assert "did you mean OwnUNet?" in result.stderr
