"""Trace events: they add up to the profile, lie beside each other, and say what they leave out."""

import collections
import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tpuport.topology.compile_messages import CompileResult
from tpuport.topology.reports.trace_events import trace_file

NANOSECOND = 1e-9


def complete(results: list[CompileResult], *limit: int) -> list[dict[str, Any]]:
    """The events that take time."""
    return [
        event for event in json.loads(trace_file(results, *limit).text)["traceEvents"] if event["ph"] == "X"
    ]


def by_lane(results: list[CompileResult], *limit: int) -> dict[str, list[dict[str, Any]]]:
    """Complete events by the name of their thread, in the order of time."""
    document = json.loads(trace_file(results, *limit).text)
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "thread_name"
    }
    lanes: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for event in complete(results, *limit):
        lanes[names[event["pid"], event["tid"]]].append(event)
    return {
        name: sorted(events, key=lambda event: (event["ts"], -event["dur"])) for name, events in lanes.items()
    }


def end(event: dict[str, Any]) -> float:
    return event["ts"] + event["dur"]


@pytest.mark.parametrize("limit", [1, 20, 100_000])
def test_events_of_a_lane_lie_beside_each_other_within_the_step(results, limit: int) -> None:
    for name, events in by_lane(results[:1], limit).items():
        for before, after in itertools.pairwise(events):
            nested = name == "Framework Name Scope" and end(after) <= end(before) + NANOSECOND
            assert nested or end(before) <= after["ts"] + NANOSECOND, (name, before, after)
        assert all(event["ts"] >= 0 and end(event) <= 3000 + NANOSECOND for event in events), name


def test_instructions_add_up_to_the_kinds_of_the_profile(results) -> None:
    seconds: collections.Counter[str] = collections.Counter()
    for event in by_lane(results[:1])["XLA Ops"]:
        seconds[event["cat"]] += event["dur"] / 1e6
    profile = results[0].report["profile"]
    assert dict(seconds) == pytest.approx(profile["kinds"], abs=NANOSECOND)
    assert sum(seconds.values()) == pytest.approx(profile["seconds"], abs=NANOSECOND)


def test_the_step_and_the_program_are_the_whole(results) -> None:
    lanes = by_lane(results[:1])
    for name in ("Steps", "XLA Modules"):
        [event] = lanes[name]
        assert (event["ts"], event["dur"]) == (0, 3000)
    assert lanes["XLA Modules"][0]["name"] == "llama decode (main)"


def test_rounds_of_a_loop_follow_each_other(results) -> None:
    lanes = by_lane(results[:1])
    products = [event for event in lanes["XLA Ops"] if event["name"].startswith("fusion.7")]
    assert [event["ts"] for event in products] == [550, 1150, 1750, 2350]
    assert [event["ts"] for event in lanes["Collectives along tp"]] == [400, 1000, 1600, 2200]
    assert len(lanes["Collectives along dp+sp"]) == 4
    assert len(lanes["Async copies"]) == 9
    assert trace_file(results[:1]).left_out == 0


def test_modules_contain_each_other(results) -> None:
    scopes = by_lane(results[:1])["Framework Name Scope"]
    times = {event["args"]["module"]: (event["ts"], event["dur"]) for event in scopes}
    # Rounds of a loop are all blocks, and are not told apart.
    assert times == {
        "model": (0, 2800),
        "model.embed_tokens": (0, 400),
        "model.layers": (400, 2400),
        "model.layers.*": (400, 2400),
        "model.layers.*.mlp": (400, 2400),
        "model.layers.*.mlp.down_proj": (400, 2400),
        "lm_head": (2800, 200),
    }


def test_what_is_left_out_is_said_and_its_time_is_there(results) -> None:
    trace = trace_file(results[:1], 20)
    [rest] = [event for event in complete(results[:1], 20) if event.get("cat") == "rounds"]
    # Each round has two events on the core, four beside it, and room for two more.
    assert rest["name"] == "3 more rounds of while.1"
    assert rest["dur"] == 1800
    assert rest["args"]["events_left_out"] == trace.left_out > 0
    assert json.loads(trace.text)["otherData"]["events_left_out"] == trace.left_out
    [rest] = [event for event in complete(results[:1], 1) if event.get("cat") == "rounds"]
    assert rest["name"] == "4 more rounds of while.1"


def test_events_say_what_they_are(results) -> None:
    events = {event["name"]: event for event in by_lane(results[:1])["XLA Ops"]}
    assert events["fusion.1"]["args"] == {
        "hlo_category": "elementwise",
        "shape_with_layout": "bf16[8]",
        "module": "model.embed_tokens",
        "source": "/srv/me/llama/modeling_llama.py:248 LlamaAttention.forward",
        "bytes_accessed": 1e6,
    }
    assert events["fusion.9"]["args"]["flops"] == 1e9


def test_each_program_is_a_process(results) -> None:
    document = json.loads(trace_file([results[0], results[1], results[0]]).text)
    names = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"]
    assert names == ["/device:TPU:0 llama decode on v5e:2x4"] * 2
    [name] = [
        event["args"]["name"]
        for event in json.loads(trace_file(results).text)["traceEvents"]
        if event["name"] == "process_name"
    ]
    assert name == "/device:TPU:0"


def test_a_name_with_gz_is_compressed_and_the_same_for_two_runs(results) -> None:
    trace = trace_file(results)
    compressed = trace.encoded(Path("step.json.gz"))
    assert gzip.decompress(compressed).decode() == trace.text == trace.encoded(Path("step.json")).decode()
    assert trace_file(results).encoded(Path("step.json.gz")) == compressed


def test_the_end_of_a_round_may_be_waiting(results) -> None:
    trace = results[0].trace
    trace["computations"]["main"]["seconds"] = trace["seconds"] = 0.0035
    last = by_lane(results[:1])["XLA Ops"][-1]
    assert (last["name"], last["cat"], last["ts"], last["dur"]) == (
        "wait for the end of main",
        "waiting",
        3000,
        500,
    )
