"""`tpuport lint` as a user runs it, with the real analysis."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tpuport.cli import main


def lint(arguments: list[str]) -> int:
    return main(["lint", *arguments])


MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, mask):
        assert x.shape[0] == mask.shape[0]
        torch.cuda.synchronize()
        if mask.any():
            x = x[mask > 0]
        return x.sum()
"""
CLEAN = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, mask):
        return torch.where(mask > 0, x, 0.0).sum()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "pyproject.toml").write_text("[tool.tpuport.lint]\n")
    monkeypatch.chdir(directory)
    return directory


def test_a_model_that_does_not_trace(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "model.py").write_text(MODEL)
    assert lint(["model.py"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    for line, rule in ((8, "TPU303"), (9, "TPU205"), (10, "TPU101")):
        assert f"model.py:{line}:" in out
        assert rule in out
    assert "model.py:7" not in out, "shapes are static"
    assert "  10 | x = x[mask > 0]\n     |     ^^^^^^^^^^^\n" in out
    assert "Not expected to trace: 3 errors" in out


def test_a_clean_model(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "model.py").write_text(CLEAN)
    assert lint(["."]) == 0
    assert capsys.readouterr().out.endswith(
        "Expected to trace: no error in the 1 function traced from 1 entry point.\n"
    )


@pytest.mark.slow  # tests/lint/test_claims.py has the findings of the same file
def test_hunyuan_video(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import importlib.util

    spec = importlib.util.find_spec("diffusers")
    assert spec is not None
    assert spec.submodule_search_locations
    (root,) = spec.submodule_search_locations
    file = Path(root) / "models" / "transformers" / "transformer_hunyuan_video15.py"
    lines = file.read_text().splitlines()
    assert lint([str(file), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    errors = [(one["rule"], one["line"]) for one in found if one["severity"] == "error"]
    conditions = [lines[line - 1].strip() for rule, line in errors if rule.startswith("TPU2")]
    assert conditions == ["if is_t2v:"]
    start = lines.index(next(line for line in lines if "reorder" in line))
    reads = [
        number for number, line in enumerate(lines, 1) if number > start and line.rstrip().endswith("],")
    ]
    reads = [number for number in reads if "mask" in lines[number - 1] and "[~" in lines[number - 1]]
    assert reads
    assert set(reads) <= {line for rule, line in errors if rule == "TPU101"}
    assert not any("assert" in lines[line - 1] for _, line in errors)


def test_select_ignore_and_target(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "model.py").write_text(MODEL)
    assert lint(["model.py", "--select", "TPU1,TPU205", "--ignore=TPU101", "--format", "concise"]) == 1
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines() if "model.py:" in line] == [
        "TPU205"
    ]
    assert lint(["model.py", "--target", "torchax==0.0.13"]) == 1
    assert lint(["model.py", "--target", "jax==1"]) == 2
    assert "is not a torchax version" in capsys.readouterr().err


def test_exit_zero_is_for_findings_only(project: Path) -> None:
    (project / "model.py").write_text(MODEL)
    assert lint(["model.py", "--exit-zero"]) == 0
    assert lint(["model.py", "gone.py", "--exit-zero"]) == 2


def test_fix(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "model.py").write_text(MODEL)
    assert lint(["model.py", "--diff"]) == 1
    out, err = capsys.readouterr()
    assert "-        torch.cuda.synchronize()" in out
    assert "nothing was written" in err
    assert (project / "model.py").read_text() == MODEL
    assert lint(["model.py", "--fix", "--select", "TPU303"]) == 0
    assert "torch.cuda" not in (project / "model.py").read_text()
    assert "Fixed 1 place in 1 file." in capsys.readouterr().out
    assert lint(["model.py", "--diff", "--select", "TPU303"]) == 0


def test_baseline(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "model.py").write_text(MODEL)
    assert lint(["model.py", "--baseline", "known.json", "--write-baseline"]) == 0
    err = capsys.readouterr().err
    assert f"The baseline {project / 'known.json'} holds 3 findings." in err
    assert "Give --baseline known.json, or set" in err
    (project / "model.py").write_text("# moved\n\n" + MODEL)
    assert lint(["model.py", "--baseline", "known.json"]) == 0
    assert lint(["model.py", "--baseline", "gone.json"]) == 2


def test_a_baseline_without_a_name(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "model.py").write_text(MODEL)
    assert lint(["model.py", "--write-baseline"]) == 0
    err = capsys.readouterr().err
    assert f"The baseline {project / 'tpuport-baseline.json'} holds 3 findings." in err
    assert "Give --baseline tpuport-baseline.json, or set" in err
    settings = project / "pyproject.toml"
    settings.write_text('[tool.tpuport.lint]\nbaseline = "tpuport-baseline.json"\n')
    assert lint(["model.py", "--write-baseline"]) == 0
    assert "Give" not in capsys.readouterr().err
    assert lint(["model.py"]) == 0


@pytest.mark.parametrize(
    ("where", "why"),
    [pytest.param(">&-", "it is closed", marks=pytest.mark.slow), (">/dev/full", "No space left on device")],
)
def test_output_that_cannot_be_written_is_said_in_a_sentence(project: Path, where: str, why: str) -> None:
    (project / "model.py").write_text(MODEL)
    code = "import sys; from tpuport.cli import main; sys.exit(main(['lint', 'model.py', *sys.argv[1:]]))"

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        shell = ["sh", "-c", f'exec "$@" {where}', "sh", sys.executable, "-c", code, *more]
        return subprocess.run(shell, stderr=subprocess.PIPE, text=True, check=False)

    done = run()
    assert done.returncode == 2
    assert done.stderr.startswith(f"the findings cannot be written: {why}\n")
    assert "Traceback" not in done.stderr
    assert run("--output-file", "found.txt").returncode == 1


def test_output_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "model.py").write_text(MODEL)
    assert lint(["model.py", "--format", "sarif", "--output-file", "lint.sarif"]) == 1
    assert capsys.readouterr().out == ""
    assert json.loads((project / "lint.sarif").read_text())["version"] == "2.1.0"
    assert lint(["model.py", "--output-file", "gone/lint.txt"]) == 2
    assert "gone/lint.txt" in capsys.readouterr().err


def test_force_exclude(project: Path) -> None:
    (project / "model.py").write_text(MODEL)
    (project / "pyproject.toml").write_text('[tool.tpuport.lint]\nexclude = ["model.py"]\n')
    assert lint(["model.py"]) == 1
    assert lint(["model.py", "--force-exclude"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no path was given"),
        (["x.py", "--select", "TPU9"], "no rule's id starts with 'TPU9'"),
        (["x.py", "--format", "html"], "invalid choice: 'html'"),
        (["x.py", "--jobs", "-1"], "--jobs"),
        (["--explain", "TPU999"], "there is no rule 'TPU999'"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_wrong_usage(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert lint(arguments) == 2
    assert words in capsys.readouterr().err


def test_settings_that_are_wrong(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "pyproject.toml").write_text("[tool.tpuport.lint]\nselcet = []\n")
    (project / "model.py").write_text("")
    assert lint(["model.py"]) == 2
    assert "no setting 'selcet'" in capsys.readouterr().err


def test_a_bug_is_no_finding(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tpuport.lint import engine

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(engine, "lint_paths", fail)
    assert lint(["model.py"]) == 2
    assert "This is a bug of tpuport" in capsys.readouterr().err


def test_explain_and_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(["--explain", "boolean-mask-read"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# TPU101 boolean-mask-read\n")
    assert "## Before\n\n```python\nclass Model" in out
    assert lint(["--explain", "tpu003"]) == 0
    capsys.readouterr()
    assert lint(["--list-rules"]) == 0
    out = capsys.readouterr().out
    assert "  TPU101  boolean-mask-read" in out
    assert "TPU2xx concrete values" in out


def test_it_is_a_command_of_tpuport_too(project: Path) -> None:
    (project / "model.py").write_text(MODEL)
    command = [sys.executable, "-m", "tpuport", "lint", "model.py", "--format", "concise", "-j", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "TPU101" in done.stdout


COMMAND = [
    sys.executable,
    "-c",
    "import sys; from tpuport.cli import main; sys.exit(main())",
    "lint",
]


def test_neither_torch_nor_jax_is_imported(project: Path) -> None:
    (project / "model.py").write_text(MODEL)
    arguments = ["model.py", "--fix", "--unsafe-fixes"]
    code = f"import sys; from tpuport.cli import main; main({['lint', *arguments]}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert modules.isdisjoint({"torch", "jax", "jaxlib", "torchax", "transformers", "numpy", "typer", "rich"})
    assert "libcst" in modules


def test_start_up_does_little(project: Path) -> None:
    (project / "model.py").write_text("x = 1\n")
    code = "import sys; from tpuport.cli import main; main(['lint', 'model.py']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert modules.isdisjoint({"libcst", "multiprocessing", "difflib", "rich", "typer", "xml"})


def test_a_run_that_has_all_results_imports_no_interpreter(project: Path) -> None:
    (project / "model.py").write_text(MODEL)
    code = "import sys; from tpuport.cli import main; main(['lint', 'model.py']); print(*sys.modules)"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (set(run.stdout.splitlines()[-1].split()) for run in runs)
    assert "tpuport.lint.analysis" in first - second


def test_colors_and_progress_on_a_terminal_only(project: Path) -> None:
    (project / "model.py").write_text(MODEL)
    plain = subprocess.run([*COMMAND, "model.py"], capture_output=True, check=False)
    assert b"\x1b" not in plain.stdout + plain.stderr
    assert b"\x1b[" in in_terminal({})
    assert b"\x1b[" not in in_terminal({"NO_COLOR": "1"})


def in_terminal(environment: dict[str, str]) -> bytes:
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        [*COMMAND, "model.py"],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        output += part
    os.close(ours)
    done.wait(timeout=300)
    return output


def test_whoever_stops_reading_is_not_bothered(project: Path) -> None:
    (project / "model.py").write_text("import torch\n" + "torch.cuda.synchronize()\n" * 1000)
    with subprocess.Popen([*COMMAND, "model.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(100)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=300) == 1


@pytest.mark.slow  # tests/lint/test_workers.py, which is interrupted too
def test_ctrl_c_while_fixing_leaves_every_file_whole(project: Path) -> None:
    before = MODEL * 3
    files = [project / f"m{number}.py" for number in range(16)]
    for file in files:
        file.write_text(before)
    wanted = project / "wanted"
    wanted.mkdir()
    (wanted / "m.py").write_text(before)
    lint(["--fix", "--no-cache", "wanted"])
    after = (wanted / "m.py").read_text()
    assert after != before
    process = subprocess.Popen(
        [*COMMAND, "--fix", "--no-cache", "-j1", "."], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 300
    while process.poll() is None and not any(file.read_text() == after for file in files):
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode in {130, 1}, errors
    assert {file.read_text() for file in files} <= {before, after}
    assert not list(project.glob(".*.tmp"))
