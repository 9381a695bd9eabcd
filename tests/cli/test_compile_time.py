"""`tpuport compile` on the time of a step: traces, profiles, and whole runs."""

import dataclasses
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_compile import TARGET, Child, child, fine, report, result, run
from tpuport.topology.compile_messages import CompileRequest, CompileResult, Event

__all__ = ["child"]

PROFILE = {
    "seconds": 3.7, "kinds": {"matrix products": 3.7}, "modules": [], "lines": [], "instructions": [],
    "matrix_units": 2.0, "schedule_share": 1.0, "clock": 1e9,
}  # fmt: skip
TRACE = {
    "seconds": 0.25,
    "entry": "main",
    "computations": {"main": {"seconds": 0.25, "core": [], "copies": [], "collectives": []}},
    "instructions": [],
    "sources": [],
}


def traced(request: CompileRequest) -> Iterator[Event]:
    assert request.wants_trace
    for event in fine(request):
        assert isinstance(event, CompileResult)
        yield dataclasses.replace(event, trace=TRACE)


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_a_trace_goes_into_a_file(child: Child, tmp_path: Path, name: str, capsys: Any) -> None:
    child.say = traced
    file = tmp_path / name
    assert run([TARGET, "--topology", "v5e:2x4", "--trace", str(file), "--format", "json"]) == 0
    data = file.read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    steps = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
    # Waiting for what has not ended is all that this step does.
    assert [event["dur"] for event in steps] == [250_000] * 3
    assert json.loads(capsys.readouterr().out)["results"][0]["trace"] is None, "which --profile asks for"
    assert [made.name for made in tmp_path.iterdir()] == [name]


def test_json_has_the_trace_with_profile_only(child: Child, capsys: pytest.CaptureFixture[str]) -> None:
    child.say = traced
    assert run([TARGET, "--topology", "v5e:2x4", "--profile", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["trace"] == TRACE
    child.say = fine
    assert run([TARGET, "--topology", "v5e:2x4", "--profile"]) == 0
    assert not child.requests[-1].wants_trace
    assert run([TARGET, "--topology", "v5e:2x4", "--format", "html", "--output", os.devnull]) == 0
    assert child.requests[-1].wants_trace


def test_nothing_is_traced_where_nothing_fits(child: Child, tmp_path: Path, capsys: Any) -> None:
    child.say = lambda request: iter([result(report=report(fits=False))])
    file = tmp_path / "step.json"
    assert run([TARGET, "--topology", "v5e:2x4", "--trace", str(file)]) == 1
    out, err = capsys.readouterr()
    assert "does not fit" in out
    assert "there is no program that fits" in err
    assert not file.exists()
    assert run([TARGET, "--topology", "v5e:2x4", "--trace", str(tmp_path / "none" / "x")]) == 2
    assert "there is no directory" in capsys.readouterr().err


def test_a_run_is_added_up(child: Child, capsys: pytest.CaptureFixture[str]) -> None:
    clip = "a clip of 121 frames of 720x1280"

    def say(request: CompileRequest) -> Iterator[Event]:
        assert request.is_denoised
        plain = report() | {"profile": PROFILE}
        yield result(report=plain, kind="denoiser", product=clip)

    child.say = say
    command = [TARGET, "--topology", "v5e:2x4", "--steps", "50", "--guidance"]
    assert run(command) == 0
    assert f"50 steps of {clip}: 6 min 10 s on v5e:2x4" in capsys.readouterr().out
    assert run([*command, "--format", "json"]) == 0
    [whole] = json.loads(capsys.readouterr().out)["runs"]
    assert whole["seconds"] == pytest.approx(370)
    assert [(part["target"], part["times"]) for part in whole["parts"]] == [("model", 100)]
    assert run([*command, "--format", "html", "--output", os.devnull]) == 0


def test_a_generation_has_room_for_all_of_its_tokens(child: Child) -> None:
    command = [TARGET, "--topology", "v5e:2x4", "--task", "generate", "--length", "100", "--new-tokens", "28"]
    assert run(command) == 0
    [request] = child.requests
    assert (request.options["task"], request.options["max_cache_len"]) == ("generate", 128)
    assert not request.is_denoised
