"""`tpuport check` as a user runs it."""

import dataclasses
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpuport.cli import console, main
from tpuport.topology import compile_process
from tpuport.topology.compile_messages import CompileRequest, CompileResult, Event
from tpuport.topology.compile_report import Failure
from tpuport.verification.checking import Check

MODELS = Path(__file__).parents[1] / "verification" / "small_models.py"


def test_findings_are_reported_with_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{MODELS}:reading_target"]) == 1
    text = capsys.readouterr().out
    assert "TPU205" in text
    assert "verdict: ReadsValues cannot be compiled as it is: 4 things to change" in text


def test_lint_marks_what_a_run_confirms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", str(MODELS), "--no-cache", "--confirm", f"{MODELS}:reading_target"]) == 1
    text = capsys.readouterr().out.partition("on the run of ")[2]
    marks = {line.split()[-2]: line.split()[-1] for line in text.splitlines() if line.startswith("  ")}
    assert {rule: marks[rule] for rule in ("TPU205", "TPU101")} == dict.fromkeys(
        ("TPU205", "TPU101"), "confirmed"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no target was given"),
        ([f"{MODELS}:nothing"], "there is no function 'nothing'"),
        ([f"{MODELS}:seeded"], "the function takes model_class"),
        ([f"{MODELS}:small_inputs"], "it returned an object of class dict"),
        ([f"{MODELS}:target", "--rules", "rules.json"], "rules are for a mesh"),
    ],
)
def test_what_cannot_run_says_what_to_do(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "fix: " in error


def test_a_target_that_moves_its_model_to_cuda_is_made_with_the_shim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "moved.py"
    file.write_text(
        "import torch\n\ndef target():\n    return torch.nn.Linear(2, 2).cuda(), torch.ones(1, 2)\n"
    )
    assert main(["check", f"{file}:target"]) == 0
    assert (
        f"note: {file}:4: Tensor.cuda became the tensor itself, with tpuport.gpu_shim"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("command", ["check", "compile"])
def test_a_page_is_not_printed_to_a_terminal(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main([command, f"{MODELS}:target", "--format", "html"]) == 2
    captured = capsys.readouterr()
    assert "fix: --output report.html" in captured.err
    assert captured.out == ""


def test_a_config_is_checked_with_random_weights(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "dtype": "float32",
        **sizes,
        **heads,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = tmp_path / "report.json"
    assert main(["check", str(tmp_path), "--length", "6", "--format", "json", "--output", str(report)]) == 0
    document = json.loads(report.read_text())
    assert document["ok"]
    assert (document["model"], document["inputs"]) == ("LlamaForCausalLM", {"input_ids": "int64[1,6]"})


def test_a_topology_is_compiled_by_the_process_of_tpuport_compile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[CompileRequest] = []

    def run_in_child(request: CompileRequest) -> Iterator[Event]:
        requests.append(request)
        memory = dataclasses.asdict(Failure("memory", "it needs 20 GiB", remedy="more devices"))
        yield CompileResult("Small", request.topology, {"fits": False, "failure": memory, "advice": []})

    monkeypatch.setattr(compile_process, "run_in_child", run_in_child)
    arguments = ["--dp", "4", "--topology", "v5e:2x2"]
    # The stages before are other tests' subject.
    monkeypatch.setattr(Check, "carry_out", lambda check, names: None)
    assert main(["check", f"{MODELS}:target", *arguments]) == 1
    assert [(request.topology, request.mesh) for request in requests] == [
        ("v5e:2x2", {"dp": 4, "sp": 1, "tp": 1})
    ]
    text = capsys.readouterr().out
    assert "Small does not fit v5e:2x2" in text
    assert "do: more devices" in text


def test_a_topology_that_does_not_suit_the_mesh_is_an_error_before_the_model_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Check, "run", lambda check: pytest.fail("the model has run"))
    assert main(["check", f"{MODELS}:target", "--dp", "2", "--topology", "v5e:2x4"]) == 2
    assert "the mesh takes 2 devices" in capsys.readouterr().err


@pytest.mark.slow  # the other tests of topologies answer for the compiler
def test_the_compiler_says_that_a_small_model_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{MODELS}:target", "--topology", "v5e:1x1"]) == 0
    assert "fits v5e:1x1" in capsys.readouterr().out


class Terminal(io.StringIO):
    """Shows what is written to it to a person."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_what_is_done_and_is_left_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(console, "_SILENT_SECONDS", 0.0)
    monkeypatch.setattr(console, "_SECONDS_BETWEEN", 0.0)
    main(["check", f"{MODELS}:target"])
    shown = terminal.getvalue().split("\r\x1b[2K")
    assert "check: runs in torch, and in float64: in torch, blocks.0.attention.qkv" in shown
    assert "check: compared with torch: comparing blocks.0" in shown
    assert "check: traced and compiled" in shown
    assert shown[-1] == ""


def test_no_progress_is_written_where_nobody_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_SILENT_SECONDS", 0.0)
    main(["check", f"{MODELS}:target"])
    assert "comparing" not in capsys.readouterr().err
