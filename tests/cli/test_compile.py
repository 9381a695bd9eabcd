"""`tpuport compile` up to the process that compiles, whose place a generator of events takes."""

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tpuport.cli import main
from tpuport.errors import PortError
from tpuport.topology.compile_messages import (
    CompileRequest,
    CompileResult,
    Event,
    LogMessage,
    Progress,
    RulesInForce,
    SplitRanking,
)
from tpuport.topology.compile_report import Costs, Estimate, Failure, Memory, Report, Source

GIB = 1 << 30
TARGET = "json.decoder:function"


def report(fits: bool = True, topology: str = "v5e:2x4") -> dict[str, Any]:
    """Plain values of a made-up report."""
    used = 4 * GIB if fits else 20 * GIB
    report = Report(
        topology=topology, generation=topology.partition(":")[0], devices=8, mesh={"dp": 1, "sp": 1, "tp": 8},
        model="Model", parameters=1000, weight_bytes=2000, dtypes={"bfloat16": 2000}, task="forward", inputs={},
        memory=Memory(16 * GIB, used, 0, 0, 0, 0, 0, used=used),
        costs=Costs(1e9, 1e9, 1e9, 1e9), collectives=(), attention=(), buffers=(),
        estimate=Estimate(0.1, 0.2, 0.0, "memory", 0.2, 0.3, "tokens", 8.0, 40.0, 26.7, 0.1, 0.1), advice=(),
        failure=None if fits else Failure("memory", "too much", traceback="RESOURCE_EXHAUSTED"), scanned=(),
        effort=None, versions={},
    )  # fmt: skip
    return json.loads(json.dumps(report.to_dict()))


FAILURE = dataclasses.asdict(
    Failure("trace", "a branch on a tensor", Source("model.py", 3, "forward", "if x:"), "TPU205", "torch.where",
            traceback="jax said so")
)  # fmt: skip
Say = Callable[[CompileRequest], Iterator[Event]]


def run(arguments: list[str]) -> int:
    return main(["compile", *arguments])


class Child:
    """Takes the place of the process and emits the events of `say`."""

    def __init__(self) -> None:
        self.requests: list[CompileRequest] = []
        self.say: Say = fine

    def run_in_child(self, request: CompileRequest) -> Iterator[Event]:
        self.requests.append(request)
        yield Progress("compiling", "model", request.mesh)
        yield from self.say(request)


def result(**outcome: Any) -> CompileResult:
    return CompileResult("model", "v5e:2x4", seconds={"compile": 1.5}, **outcome)


def fine(request: CompileRequest) -> Iterator[Event]:
    notes = [*request.notes, "batch 1 was assumed"]
    plain = report(topology=request.topology)
    yield CompileResult("model", request.topology, plain, notes=notes, seconds={"compile": 1.5})


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    child = Child()
    monkeypatch.setattr("tpuport.topology.compile_process.run_in_child", child.run_in_child)
    monkeypatch.setenv("COLUMNS", "110")
    return child


def test_text(child: Child, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([TARGET, "--topology", "v5e:2x4"]) == 0
    out, err = capsys.readouterr()
    assert "fits: 4.00 of 16.00 GiB a chip" in out
    assert "note: no mesh was given: tp over all 8 devices" in out
    assert "note: batch 1 was assumed" in out
    assert "compile 1.50 s" in out
    assert "v5e:2x4: compiling model tp=8" in err
    [request] = child.requests
    assert request.mesh == {"dp": 1, "sp": 1, "tp": 8}


def test_what_is_asked_for_reaches_the_process(child: Child, tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('{".*q_proj\\\\.weight": ["tp", null], "embed": [["dp", "tp"]]}')
    options = (
        f"--topology v6e-8 --dp 2 --tp -1 --task prefill --batch 3 --length 64 --max-cache-len 128 "
        f"--image-size 480x832 --frames 81 --dtype float32 --rules {rules} --attention xla --component vae "
        "--inputs json:b --trust-remote-code --kv-cache int8 --no-scan-layers --effort -0.5 --suggest --no-cache "
        "--allow norm --allow bias"
    )
    assert run([TARGET, *options.split()]) == 0
    [request] = child.requests
    assert request == CompileRequest(
        target=TARGET, topology="v6e:2x4", mesh={"dp": 2, "sp": 1, "tp": 4}, attention="xla",
        rules={r".*q_proj\.weight": ["tp", None], "embed": [["dp", "tp"]]}, scan_layers=False, effort=-0.5,
        fixed_axes={"dp": 2}, rules_source=f"--rules {rules}", allow=["norm", "bias"], use_cache=False,
        notes=["the mesh is the best of the splits that were tried"],
        options={
            "task": "prefill", "batch": 3, "length": 64, "max_cache_len": 128, "image_size": (480, 832), "frames": 81,
            "dtype": "float32", "inputs": "json:b", "component": "vae", "trust_remote_code": True, "kv_cache": "int8",
        },
    )  # fmt: skip


def with_rules(request: CompileRequest) -> Iterator[Event]:
    rules = {r"blocks\.\d+\.up\.weight": ["tp", None], "norm": []}
    yield RulesInForce("model", rules, {r"blocks\.\d+\.up\.weight": "64 features", "norm": "whole: small"})
    yield from fine(request)


@pytest.mark.parametrize("name", ["rules.toml", "rules.json"])
def test_inferred_rules_are_shown_and_written_and_can_be_read(
    child: Child, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    child.say = with_rules
    file = tmp_path / name
    assert run([TARGET, "--topology", "v5e", "--write-rules", str(file)]) == 0
    assert child.requests[0].wants_rules
    err = capsys.readouterr().err
    assert "model has no plan; sharding rules inferred from its code:" in err
    assert re.search(r'blocks\\\.\\d\+\\\.up\\\.weight +\["tp", null\] +64 features', err)
    assert run([TARGET, "--topology", "v5e", "--rules", str(file)]) == 0
    assert child.requests[1].rules == {r"blocks\.\d+\.up\.weight": ["tp", None], "norm": []}


def test_rules_of_a_plan_are_written_and_not_shown(
    child: Child, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def planned(request: CompileRequest) -> Iterator[Event]:
        yield RulesInForce("model", {"up": ["tp"]}, {})
        yield from fine(request)

    child.say = planned
    file = tmp_path / "rules.json"
    assert run([TARGET, "--topology", "v5e", "--write-rules", str(file)]) == 0
    assert json.loads(file.read_text()) == {"up": ["tp"]}
    assert "inferred" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--rules", "other.json"], "those of --rules already"),
        (["--topology", "v6e:2x2"], "several topologies"),
    ],
)
def test_rules_that_cannot_be_written(
    child: Child, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert run([TARGET, "--topology", "v5e", "--write-rules", str(tmp_path / "x.json"), *more]) == 2
    assert message in capsys.readouterr().err
    assert not child.requests


def test_no_rules_to_write(child: Child, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([TARGET, "--topology", "v5e", "--write-rules", str(tmp_path / "x.json")]) == 2
    assert "there are no rules" in capsys.readouterr().err


def test_rules_in_toml(child: Child, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("'.*q_proj\\.weight' = ['tp', '']\n")
    assert run([TARGET, "--topology", "v5e", "--rules", str(rules)]) == 0
    assert child.requests[0].rules == {r".*q_proj\.weight": ["tp", None]}


def test_json_is_the_same_for_two_runs_and_holds_no_times(
    child: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [TARGET, "--topology", "v5e:2x4", "--topology", "v6e", "--format", "json"]
    assert run(command) == 0
    first = capsys.readouterr().out
    assert run(command) == 0
    assert capsys.readouterr().out == first
    document = json.loads(first)
    assert [entry["topology"] for entry in document["results"]] == ["v5e:2x4", "v6e:2x2"]
    assert document["results"][1]["notes"] == [
        "no mesh was given: tp over all 4 devices",
        "batch 1 was assumed",
    ]
    assert document["suggestion"] is None
    assert "seconds" not in document["results"][0]


def test_several_topologies_have_a_process_each_and_the_same_one_only_once(child: Child) -> None:
    run([TARGET, "--topology", "v6e", "--topology", "v5e:2x4", "--topology", "v6e:2x2"])
    assert [request.topology for request in child.requests] == ["v6e:2x2", "v5e:2x4"]


def test_suggestions(child: Child, capsys: pytest.CaptureFixture[str]) -> None:
    split = {
        "target": "model", "topology": "v5e:2x4", "mesh": {"dp": 2, "sp": 1, "tp": 4}, "quantize": None,
        "tried": True, "fits": True,
        "used": GIB, "capacity": 16 * GIB, "seconds": 0.5, "roofline": 0.25, "unit": "tokens",
        "units_per_second": 16.0, "binds": "memory", "why": "",
    }  # fmt: skip

    def say(request: CompileRequest) -> Iterator[Event]:
        yield from fine(request)
        yield SplitRanking([split])

    child.say = say
    assert run([TARGET, "--topology", "v5e:2x4", "--suggest"]) == 0
    assert "dp=2 tp=4" in capsys.readouterr().out
    assert run([TARGET, "--topology", "v5e:2x4", "--suggest", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["suggestion"] == [split]


def test_exit_codes_of_programs(child: Child, capsys: pytest.CaptureFixture[str]) -> None:
    child.say = lambda request: iter([result(report=report(fits=False))])
    assert run([TARGET, "--topology", "v5e:2x4"]) == 1
    assert "does not fit: 20.00 of 16.00 GiB" in capsys.readouterr().out
    child.say = lambda request: iter([result(failure=FAILURE), result(report=report())])
    assert run([TARGET, "--topology", "v5e:2x4"]) == 1
    out = capsys.readouterr().out
    assert "cannot be compiled: a branch on a tensor" in out
    assert "model.py:3, in forward" in out
    assert "TPU205" in out
    assert "jax said so" not in out
    assert run([TARGET, "--topology", "v5e:2x4", "--traceback"]) == 1
    assert "jax said so" in capsys.readouterr().out
    child.say = lambda request: iter([result(failure=FAILURE | {"kind": "defect"})])
    assert run([TARGET, "--topology", "v5e:2x4"]) == 2


def test_what_stops_one_topology_is_told_and_the_next_has_its_turn(
    child: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(request: CompileRequest) -> Iterator[Event]:
        if request.topology == "v6e:2x2":
            raise PortError("the process that compiles has died (killed by SIGKILL)", fix="more memory")
        return fine(request)

    child.say = say
    assert run([TARGET, "--topology", "v6e", "--topology", "v5e:2x4"]) == 2
    out, err = capsys.readouterr()
    assert "killed by SIGKILL)\n  fix: more memory" in err
    assert "fits: 4.00" in out


def test_nothing_is_written_where_nothing_was_compiled(child: Child, tmp_path: Path) -> None:
    def say(request: CompileRequest) -> Iterator[Event]:
        raise PortError("no libtpu")

    child.say = say
    assert run([TARGET, "--topology", "v6e", "--output", str(tmp_path / "report.txt")]) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("form", "start"), [("text", "model on"), ("json", "{"), ("html", "<!doctype html>")]
)
def test_output_goes_into_a_file(child: Child, tmp_path: Path, form: str, start: str, capsys: Any) -> None:
    file = tmp_path / "report"
    file.write_text("old")
    assert run([TARGET, "--topology", "v5e:2x4", "--format", form, "--output", str(file)]) == 0
    text = file.read_text(encoding="utf-8")
    assert text.startswith(start)
    assert "\x1b" not in text
    assert capsys.readouterr().out == ""
    assert [file.name for file in tmp_path.iterdir()] == ["report"]


def test_a_bug_is_not_mistaken_for_a_program_that_does_not_fit(
    child: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    child.say = lambda request: iter([result(report={})])
    assert run([TARGET, "--topology", "v6e"]) == 2
    err = capsys.readouterr().err
    assert "KeyError" in err
    assert "bug of tpuport" in err


def test_an_interruption_leaves_no_file_and_no_half_program(child: Child, tmp_path: Path) -> None:
    def say(request: CompileRequest) -> Iterator[Event]:
        (Path(request.save_hlo or "") / "model.hlo.txt").write_text("half")
        raise KeyboardInterrupt

    child.say = say
    output, programs = tmp_path / "report.json", tmp_path / "programs"
    command = [TARGET, "--topology", "v6e", "--output", str(output), "--save-hlo", str(programs)]
    assert run(command) == 130
    assert not output.exists()
    assert not list(programs.iterdir())


def test_programs_are_saved(child: Child, tmp_path: Path) -> None:
    def say(request: CompileRequest) -> Iterator[Event]:
        (Path(request.save_hlo or "") / f"{request.topology[:3]}.hlo.txt").write_text("whole")
        return fine(request)

    child.say = say
    programs = tmp_path / "new" / "programs"
    assert run([TARGET, "--topology", "v6e", "--topology", "v5e", "--save-hlo", str(programs)]) == 0
    assert sorted(file.name for file in programs.iterdir()) == ["v5e.hlo.txt", "v6e.hlo.txt"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "no target was given"),
        ([TARGET], "no topology was given"),
        (
            ["no/such/directory", "--topology", "v6e"],
            "there is no such file or directory\n  where: no/such/directory",
        ),
        ([TARGET, "--topology", "h100"], "no TPU slice is called"),
        ([TARGET, "--topology", "v5e:2x3"], "v5e has slices of"),
        ([TARGET, "--topology", "v5e:2x4", "--tp", "3"], "the mesh takes 3 devices, and v5e:2x4 has 8"),
        ([TARGET, "--topology", "v5e:2x4", "--tp", "3", "--dp", "-1"], "a multiple of 3 devices"),
        ([TARGET, "--topology", "v5e:2x4", "--topology", "v6e", "--tp", "8"], "v6e:2x2 has 4"),
        ([TARGET, "--topology", "v6e", "--tp", "0"], "at least one device"),
        ([TARGET, "--topology", "v6e", "--guidance"], "add --steps N"),
        ([TARGET, "--topology", "v6e", "--task", "generate", "--length", "8"], "--new-tokens 256"),
        ([TARGET, "--topology", "v6e", "--new-tokens", "8"], "new tokens are of a generation"),
        ([TARGET, "--topology", "v6e", "--tp", "-1", "--dp", "-1"], "only one axis"),
        ([TARGET, "--topology", "v6e", "--batch", "0"], "is not a positive integer"),
        ([TARGET, "--topology", "v6e", "--image-size", "wide"], "is not a size"),
        ([TARGET, "--topology", "v6e", "--effort", "2"], "is not a number from -1 to 1"),
        ([TARGET, "--topology", "v6e", "--task", "train"], "invalid choice"),
        ([TARGET, "--topology", "v6e", "--format", "pdf"], "invalid choice"),
        ([TARGET, "--topology", "v6e", "--output", "/no/such/directory/x"], "there is no directory"),
        ([TARGET, "--topology", "v6e", "--output", "/proc/x"], "cannot be written there"),
        ([TARGET, "--topology", "v6e", "--output", "/tmp"], "is a directory"),
        (
            [TARGET, "--topology", "v6e", "--effort", "7"],
            "'7' is not a number from -1 to 1\n  where: --effort",
        ),
        ([TARGET, "--topology", "v5e:2x4", "--suggest", "--dp", "3"], "a multiple of 3 devices"),
        (
            [TARGET, "--topology", "v6e", "--suggest", "--dp", "2", "--tp", "2", "--sp", "1"],
            "nothing is left to vary",
        ),
        (["nope.py:model", "--topology", "v6e"], "there is no such file\n  where: nope.py"),
        (["nope.py", "--topology", "v6e"], "this does not name a function"),
        (["nope_at_all.model:build", "--topology", "v6e"], "there is no module 'nope_at_all.model'"),
        ([TARGET, "--topology", "v6e", "--inputs", "nope.py:inputs"], "no such file\n  where: nope.py"),
        (["llama-2-8b", "--topology", "v6e"], "did you mean llama-"),
        (["tests", "--topology", "v6e"], "there is no config.json\n  where: tests"),
        (["pyproject.toml", "--topology", "v6e"], "this is not JSON"),
        (["flux-dev", "--topology", "v6e", "--image-size", "1001"], "height 1001 is not a multiple of 16"),
        (["wan-2.1-14b", "--topology", "v6e", "--frames", "80"], "frames are not 1 and a multiple of 4"),
        (["flux-dev", "--topology", "v6e", "--frames", "81"], "frames does not apply to Flux"),
        ([TARGET, "--topolgy", "v6e"], "did you mean --topology?"),
        ([TARGET, "--topology", "v6e", "--batchsize=3"], "did you mean --batch?"),
        (["nope/llama-2-8b", "--topology", "v6e"], "did you mean llama-"),
        ([TARGET, "--topology", "v6e", "--save-hlo", "/dev/null/x"], "cannot be written there"),
        ([TARGET, "--topology", "v6e", "--rules", "/no/such/file.json"], "cannot be read"),
        (["--list-topologies", "--format", "html"], "text or json"),
    ],
)
def test_wrong_usage_exits_with_2_before_anything_starts(
    child: Child, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert why in capsys.readouterr().err
    assert child.requests == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "are not JSON"),
        ("[]", "not a map of patterns"),
        ("{}", "not a map of patterns"),
        ('{"(": ["tp"]}', "not a regular expression"),
        ('{"a": "tp"}', "not a list of axis names"),
        ('{"a": ["model"]}', "'model' is not an axis of the mesh"),
        ('{"a": [["tp", 3]]}', "3 is not an axis"),
    ],
)
def test_rules_that_are_none_are_refused(
    child: Child, tmp_path: Path, text: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text(text)
    assert run([TARGET, "--topology", "v6e", "--rules", str(rules)]) == 2
    assert why in capsys.readouterr().err
    assert child.requests == []


@pytest.mark.parametrize("name", ["x.json", "x.toml"])
def test_a_dimension_that_is_whole_has_a_name_too(child: Child, tmp_path: Path, name: str) -> None:
    rules = tmp_path / name
    entries = '["tp", "none", "", "null"]'
    rules.write_text(f'{{"a": {entries}}}' if name == "x.json" else f"a = {entries}\n")
    assert run([TARGET, "--topology", "v5e", "--rules", str(rules)]) == 0
    assert child.requests[0].rules == {"a": ["tp", None, None, None]}


def test_a_warning_is_said_once_and_after_what_is_said_of_progress(
    child: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(request: CompileRequest) -> Iterator[Event]:
        for _ in range(2):
            yield LogMessage("warning", "weights are replicated")
            yield Progress("tracing", "model")
        yield from fine(request)

    child.say = say
    assert run([TARGET, "--topology", "v5e:2x4", "--topology", "v6e"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert (
        [line for line in lines if "replicated" in line] == [lines[-1]] == ["warning: weights are replicated"]
    )


def test_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--list-models"]) == 0
    assert "llama-2-7b  " in capsys.readouterr().out
    assert run(["--list-models", "--format", "json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert (rows["llama-2-7b"]["class"], rows["llama-2-7b"]["parameters"]) == (
        "LlamaForCausalLM",
        6_738_415_616,
    )
    assert run(["--list-models", "--format", "html"]) == 2


def test_topologies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--list-topologies"]) == 0
    text = capsys.readouterr().out
    assert "819 GB/s" in text
    assert "https://" in text
    assert run(["--list-topologies", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["topologies"]
    assert {"v4", "v5e", "v5p", "v6e", "tpu7x"} == {row["generation"] for row in rows}


def test_the_command_is_one_of_tpuports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tpuport", "compile", "--help"])
    assert main() == 0
    assert "Exit code: 0 compiled and fits" in capsys.readouterr().out


def test_what_asks_imports_neither_torch_nor_jax() -> None:
    code = (
        "import sys; from tpuport.cli import main; compile = lambda arguments: main(['compile', *arguments]);"
        "compile(['--list-topologies']); compile(['json:b', '--topology', 'v6e', '--tp', '3']);"
        "compile(['nope.py:b', '--topology', 'v6e']); compile(['llama-2-8b', '--topology', 'v6e']);"
        "compile(['flux-dev', '--topology', 'v6e', '--image-size', '1001']);"
        "import tpuport.topology.compile_process, tpuport.topology.reports.html, tpuport.topology.reports.text;"
        "sys.exit(bool({'torch', 'jax', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
