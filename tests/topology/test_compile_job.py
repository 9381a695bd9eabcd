"""The work of the process that compiles, with made-up targets and programs."""

import dataclasses
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tpuport.errors import PortError
from tpuport.quantization import QuantizedWeight, install
from tpuport.sharding import ShardingRules
from tpuport.topology import compile_job, report_cache
from tpuport.topology.compile_messages import CompileRequest
from tpuport.topology.compile_report import Report, Source
from tpuport.topology.lowering import Lowered
from tpuport.topology.targets import Target
from tpuport.trace_errors import CannotTrace, TraceFailure

REQUEST = CompileRequest(
    "some", {"batch": 4}, "v5e:2x2", {"dp": 1, "sp": 1, "tp": 4}, notes=["tp by default"]
)
MEMORY = {"capacity": 100, "used": 50, "fits": True}


class FakeReport(Report):
    """Takes the place of a compiled program's report."""

    def __init__(self, mesh: dict[str, int], effort: float | None, quantize: str | None) -> None:
        program = SimpleNamespace(as_text=lambda: "HloModule compiled")
        seconds = {"lower": 1.0, "compile": 2.0}
        vars(self).update(
            mesh=mesh, effort=effort, topology="v5e:2x2", task="decode", program=program, seconds=seconds,
            quantize=quantize,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        fits = self.mesh["dp"] < 4 or self.quantize == "int4"
        estimate = {
            "compute": 0.0,
            "memory": 1.0 / self.mesh["tp"],
            "interconnect": 0.0,
            "unit": "tokens",
            "units": 4.0,
            "binds": "memory",
            "seconds": 0.125,
        }
        return {
            "mesh": self.mesh, "effort": self.effort, "fits": fits, "memory": MEMORY, "failure": None,
            "estimate": estimate if fits else None, "profile": {"seconds": 1.0 / self.mesh["tp"]} if fits else None,
        }  # fmt: skip

    def plain_trace(self) -> dict[str, Any] | None:
        return {"seconds": 0.5}


class FakeLowered(Lowered):
    """Takes the place of a lowered program."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


class Work:
    """What was asked of the functions in the place of `resolve` and `lower_for`."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.compiled: list[tuple[str, float | None]] = []
        self.targets: tuple[Target, ...] = (self.target("first"),)
        self.error: Exception | None = None
        self.model = torch.nn.Identity()

    @staticmethod
    def target(name: str) -> Target:
        inputs = {"input": torch.empty(4, 8, device="meta")}
        return Target(name, torch.nn.Identity, inputs, ("tokens", 4.0), "bfloat16", notes=(f"of {name}",))

    def resolve(self, target: str, **options: Any) -> tuple[Target, ...]:
        assert (target, options) == ("some", {"batch": 4})
        return self.targets

    def lower(self, build: Any, inputs: Any, **options: Any) -> Any:
        self.asked.append(options)
        if self.error is not None:
            raise self.error
        logging.getLogger("tpuport").warning("%s are replicated", "weights")
        mesh = {axis: options[axis] for axis in ("dp", "sp", "tp")}

        call = SimpleNamespace(query=(4, 8, 1, 64), key=(4, 2, 128, 64))
        return FakeLowered(
            key=f"{mesh} {options['quantize']}", quantize=options["quantize"],
            mesh=SimpleNamespace(shape=mesh, size=4), topology="v5e:2x2", task="decode",
            inputs={"batch": 4, "max_cache_len": 128}, attention=((call, 32),), sequences=(), model=self.model,
            stage=SimpleNamespace(as_text=lambda: "module @lowered"),
        )  # fmt: skip

    def compile(self, lowered: Any, effort: float | None) -> Report:
        self.compiled.append((lowered.key, effort))
        return FakeReport(lowered.mesh.shape, effort, lowered.quantize)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Work:
    made = Work()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TPUPORT_COMPILATION_CACHE", "")
    monkeypatch.setattr("tpuport.enable", lambda: None)
    monkeypatch.setattr("tpuport.hardware.described", lambda name: None)
    monkeypatch.setattr("tpuport.topology.targets.resolve", made.resolve)
    monkeypatch.setattr("tpuport.topology.target_compiler.lower_for", made.lower)
    monkeypatch.setattr("tpuport.topology.target_compiler.compile_lowered", made.compile)
    return made


def said(**changes: Any) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    compile_job.run(dataclasses.replace(REQUEST, **changes), events.append)
    assert events[-1] == {"event": "Done"}
    return events[:-1]


def only(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]


def test_counts_that_depend_on_values_are_noted(work: Work) -> None:
    values, scale = torch.empty(4, 1, 8, 8, device="meta"), torch.empty(4, 1, 8, device="meta")
    weight = QuantizedWeight(values, scale, columns=8, dtype=torch.bfloat16, scheme="int8")
    install(work.model, "down_proj", weight)
    [result] = only(said(), "CompileResult")
    assert "experts in few bits" in result["notes"][-1]
    assert "at most" in result["notes"][-1]


def test_a_report_with_stages_notes_and_warnings(work: Work) -> None:
    events = said(attention="xla", scan_layers=True, effort=0.5)
    assert [event["stage"] for event in only(events, "Progress")] == [
        "starting",
        "building",
        "tracing",
        "compiling",
    ]
    assert only(events, "LogMessage") == [
        {"event": "LogMessage", "level": "warning", "text": "weights are replicated"}
    ]
    [report] = only(events, "CompileResult")
    assert (report["target"], report["notes"]) == ("first", ["tp by default", "of first"])
    assert (report["report"]["mesh"], report["report"]["effort"]) == (REQUEST.mesh, 0.5)
    assert (report["seconds"], report["cached"]) == ({"lower": 1.0, "compile": 2.0}, False)
    [asked] = work.asked
    assert asked == {
        "topology": "v5e:2x2", "dp": 1, "sp": 1, "tp": 4, "rules": None, "dtype": "bfloat16", "scan_layers": True,
        "unit": ("tokens", 4.0), "attention": "xla", "allow": (), "quantize": None,
    }  # fmt: skip


def test_a_program_is_compiled_once_for_each_effort(work: Work) -> None:
    first, again = said(), said()
    assert len(work.compiled) == 1
    [old], [new] = only(first, "CompileResult"), only(again, "CompileResult")
    assert new == {**old, "cached": True}
    assert "compiling" not in [event["stage"] for event in only(again, "Progress")]
    said(effort=-1.0)
    said(use_cache=False)
    assert [effort for _, effort in work.compiled] == [None, -1.0, None]


def test_a_trace_is_sent_where_it_is_requested(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    [plain] = only(said(), "CompileResult")
    assert plain["trace"] is None
    [traced] = only(said(wants_trace=True), "CompileResult")
    assert traced["cached"], "the cache has the trace, whoever asked first"
    assert traced["trace"] == {"seconds": 0.5}
    # An entry without one is compiled again.
    read = report_cache.read
    monkeypatch.setattr(report_cache, "read", lambda key: {**(read(key) or {}), "trace": None})
    [again] = only(said(wants_trace=True), "CompileResult")
    assert (again["cached"], again["trace"]) == (False, {"seconds": 0.5})


def test_steps_are_of_something_that_denoises(work: Work) -> None:
    work.targets = (dataclasses.replace(work.target("llama decode"), kind="causal-lm"),)
    [problem] = only(said(is_denoised=True), "Problem")
    assert "no denoiser" in problem["what"]
    assert not work.compiled
    work.targets = (
        dataclasses.replace(
            work.target("flux"), kind="denoiser", product="an image", is_distilled=True, rows=4
        ),
    )
    [result] = only(said(is_denoised=True), "CompileResult")
    said_of_it = [result[name] for name in ("kind", "product", "rows", "is_distilled")]
    assert said_of_it == ["denoiser", "an image", 4, True]


def test_no_cache_keeps_nothing(work: Work) -> None:
    said(use_cache=False)
    home = report_cache.directory()
    assert home is not None
    assert not home.exists()


def test_programs_are_saved_though_they_are_known(work: Work, tmp_path: Path) -> None:
    said()
    said(save_hlo=str(tmp_path))
    assert len(work.compiled) == 2
    names = sorted(file.name for file in tmp_path.glob("*.txt"))
    assert names == ["first-decode-v5e-2x2.hlo.txt", "first-decode-v5e-2x2.stablehlo.txt"]
    assert (tmp_path / names[0]).read_text() == "HloModule compiled"
    assert (tmp_path / names[1]).read_text() == "module @lowered"


def test_rules_are_axis_names_by_pattern(work: Work) -> None:
    said(rules={r".*\.weight": ["tp", None], r".*\.bias": [["dp", "tp"]], "rest": []})
    rules = work.asked[0]["rules"]
    assert isinstance(rules, ShardingRules)
    assert [tuple(rules[pattern]) for pattern in rules] == [("tp", None), (("dp", "tp"),), ()]


def test_each_target_has_its_turn(work: Work) -> None:
    work.targets = (work.target("first"), work.target("second"))
    assert [event["target"] for event in only(said(), "CompileResult")] == ["first", "second"]


def test_a_model_that_cannot_be_traced_is_a_failure_with_its_line(work: Work) -> None:
    failure = TraceFailure(
        "trace", "a branch", Source("model.py", 3, "forward", "if x:"), "TPU205", "torch.where"
    )
    work.error = CannotTrace(failure)
    [event] = only(said(fixed_axes={}), "CompileResult")
    assert event["failure"] == {**dataclasses.asdict(failure), "buffers": ()}
    assert event["report"] is None


def test_a_port_error_is_a_problem_and_anything_else_a_crash(work: Work) -> None:
    work.error = PortError("no", where="here", fix="yes")
    assert only(said(), "Problem") == [{"event": "Problem", "what": "no", "where": "here", "fix": "yes"}]
    work.error = KeyError("x")
    [crash] = only(said(), "Crash")
    assert "KeyError: 'x'" in crash["traceback"]


def test_splits_that_suit_are_compiled_in_haste_and_ranked(work: Work) -> None:
    [event] = only(said(fixed_axes={}), "SplitRanking")
    splits = [split for split in event["splits"] if split["tried"]]
    # 8 heads, 2 key/value heads, a batch of 4 and a cache: dp and tp, no sp.
    assert [tuple(split["mesh"].values()) for split in splits] == [(1, 1, 4), (2, 1, 2), (4, 1, 1)]
    assert [split["fits"] for split in splits] == [True, True, False]
    assert [split["seconds"] for split in splits] == [0.25, 0.5, None]
    assert [split["roofline"] for split in splits] == [0.125, 0.125, None]
    assert [split["units_per_second"] for split in splits] == [16.0, 8.0, None]
    assert splits[2]["why"]
    assert [effort for _, effort in work.compiled] == [-1.0, -1.0, -1.0, None]
    left = [split for split in event["splits"] if not split["tried"]]
    assert event["splits"][3:] == left
    assert {tuple(one["mesh"].values()): one["why"] for one in left} == {
        (1, 4, 1): "sp=4 has no sequence to divide: a row is one token",
        (1, 2, 2): "sp=2 has no sequence to divide: a row is one token",
        (2, 2, 1): "sp=2 has no sequence to divide: a row is one token",
    }


def refusing(work: Work, monkeypatch: pytest.MonkeyPatch, **refused: Any) -> None:
    """Let splits be refused in which the axes have these sizes, in words of their own or in these."""
    lower, words = work.lower, refused.pop("words", None)

    def lowered(build: Any, inputs: Any, **options: Any) -> Any:
        if all(options[axis] in sizes for axis, sizes in refused.items()):
            sizes = {axis: options[axis] for axis in ("dp", "sp", "tp")}
            work.asked.append(options)
            raise PortError(words or f"{sizes} does not divide 1002")
        return lower(build, inputs, **options)

    monkeypatch.setattr("tpuport.topology.target_compiler.lower_for", lowered)


@pytest.mark.parametrize("fixed_axes", [{}, {"sp": 1}])
def test_a_split_that_is_refused_first_does_not_keep_others_from_being_tried(
    work: Work, monkeypatch: pytest.MonkeyPatch, fixed_axes: dict[str, int]
) -> None:
    refusing(work, monkeypatch, tp=(4,))
    events = said(fixed_axes=fixed_axes)
    [event] = only(events, "SplitRanking")
    found = {tuple(split["mesh"].values()): split for split in event["splits"] if split["tried"]}
    assert list(found) == [(2, 1, 2), (4, 1, 1), (1, 1, 4)]
    assert found[1, 1, 4]["why"] == "{'dp': 1, 'sp': 1, 'tp': 4} does not divide 1002"
    assert found[1, 1, 4]["capacity"] is None
    [report] = only(events, "CompileResult")
    assert report["report"]["mesh"] == {"dp": 2, "sp": 1, "tp": 2}


def test_where_every_split_is_refused_the_error_is_of_what_was_asked_for(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(work, monkeypatch)
    [problem] = only(said(fixed_axes={}), "Problem")
    assert problem["what"] == "{'dp': 1, 'sp': 1, 'tp': 4} does not divide 1002"
    assert len(work.asked) == 6


def test_what_two_splits_are_refused_for_in_the_same_words_is_of_neither(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(work, monkeypatch, words="the model knows 512 positions")
    [problem] = only(said(fixed_axes={}), "Problem")
    assert problem["what"] == "the model knows 512 positions"
    assert len(work.asked) == 2


def test_where_what_suits_is_refused_the_first_that_is_not_is_compiled(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(work, monkeypatch, sp=(1,))
    [event] = only(said(fixed_axes={}), "SplitRanking")
    assert [tuple(split["mesh"].values()) for split in event["splits"] if split["fits"]] == [(1, 4, 1)]


def test_what_this_run_has_compiled_is_not_told_as_kept(work: Work) -> None:
    [report] = only(said(fixed_axes={"dp": 2}, mesh={"dp": 2, "sp": 1, "tp": 2}), "CompileResult")
    assert not report["cached"]
    [report] = only(said(fixed_axes={"dp": 2}, mesh={"dp": 2, "sp": 1, "tp": 2}), "CompileResult")
    assert report["cached"]
    assert len(work.compiled) == 1
    said(fixed_axes={"dp": 2}, mesh={"dp": 2, "sp": 1, "tp": 2}, use_cache=False)
    assert len(work.compiled) == 2


def test_axes_that_are_given_stay_and_the_best_split_is_reported(work: Work) -> None:
    events = said(fixed_axes={"dp": 2}, mesh={"dp": 2, "sp": 1, "tp": 2})
    [splits] = only(events, "SplitRanking")
    assert [tuple(split["mesh"].values()) for split in splits["splits"]] == [(2, 1, 2), (2, 2, 1)]
    assert [effort for _, effort in work.compiled] == [None]  # alone, it is not compiled in haste, nor twice
    events = said(fixed_axes={}, mesh={"dp": 4, "sp": 1, "tp": 1})
    [report] = only(events, "CompileResult")
    assert report["report"]["mesh"] == {"dp": 1, "sp": 1, "tp": 4}


def test_where_nothing_fits_weights_in_few_bits_are_tried(work: Work) -> None:
    mesh = {"dp": 4, "sp": 1, "tp": 1}
    events = said(fixed_axes=mesh, mesh=mesh)
    [splits] = only(events, "SplitRanking")
    rows = [(split["quantize"], split["fits"]) for split in splits["splits"] if split["tried"]]
    assert rows == [("int4", True), ("int8", False), (None, False)]
    [result] = only(events, "CompileResult")
    assert result["report"]["fits"]
    assert result["notes"][-1] == "nothing fits with the weights as they are: this is --quantize int4"
    # What is asked for is what is compiled.
    [splits] = only(said(fixed_axes=mesh, mesh=mesh, quantize="int8"), "SplitRanking")
    assert [(split["quantize"], split["fits"]) for split in splits["splits"]] == [("int8", False)]


def test_a_model_that_cannot_be_quantised_is_ranked_as_it_is(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(work, monkeypatch, quantize=("int8", "int4"), words="no weight can follow the rule")
    mesh = {"dp": 4, "sp": 1, "tp": 1}
    [splits] = only(said(fixed_axes=mesh, mesh=mesh), "SplitRanking")
    assert [(split["quantize"], split["fits"]) for split in splits["splits"]] == [(None, False)]


@pytest.mark.parametrize("mesh", [{"dp": 1, "sp": 1, "tp": 4}, {"dp": 4, "sp": 1, "tp": 1}])
def test_splits_that_are_only_tried_tell_no_warnings(
    work: Work, monkeypatch: pytest.MonkeyPatch, mesh: dict[str, int]
) -> None:
    lower = work.lower

    def warning(build: Any, inputs: Any, **options: Any) -> Any:
        logging.getLogger("tpuport").warning("over tp=%s", options["tp"])
        return lower(build, inputs, **options)

    monkeypatch.setattr("tpuport.topology.target_compiler.lower_for", warning)
    told = [event["text"] for event in only(said(fixed_axes={}, mesh=mesh), "LogMessage")]
    assert told == ["over tp=4", "weights are replicated"]  # of the best


def test_names_of_inputs_are_those_of_forward(work: Work) -> None:
    work.targets = (dataclasses.replace(work.target("first"), inputs={"z": torch.empty(2)}),)
    [problem] = only(said(), "Problem")
    assert "Identity.forward takes no argument 'z'" in problem["what"]
    assert "input" in problem["fix"]
    work.targets = (dataclasses.replace(work.target("first"), inputs={}),)
    assert "needs the argument 'input'" in only(said(), "Problem")[0]["what"]
    assert not work.asked


def test_errors_of_rules_are_in_the_words_of_the_command(work: Work) -> None:
    work.error = PortError("rule '.*\\\\.up' matches nothing", fix="allow it by its name in allow=(...)")
    [problem] = only(said(rules_source="--rules x.json"), "Problem")
    assert (problem["where"], problem["what"]) == ("--rules x.json", "rule '.*\\.up' matches nothing")
    assert "--allow NAME" in problem["fix"]
    assert "allow=" not in problem["fix"]
    work.error = None
    said(allow=["a"])
    assert work.asked[-1]["allow"] == ("a",)


def test_a_split_that_is_refused_is_ranked_last_with_the_reason(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(work, monkeypatch, dp=(2,))
    [event] = only(said(fixed_axes={}), "SplitRanking")
    tried = [split for split in event["splits"] if split["tried"]]
    assert tried[-1]["mesh"] == {"dp": 2, "sp": 1, "tp": 2}
    assert tried[-1]["why"] == "{'dp': 2, 'sp': 1, 'tp': 2} does not divide 1002"
