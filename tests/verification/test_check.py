"""`tpuport.check` on a small model, and on the same with one planted defect of each kind, blamed to its line."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from small_models import (
    Adapted,
    CastsDown,
    CastsDownOnTheHost,
    CastsDownWhereItIs,
    Counts,
    Draws,
    DrawsOnHost,
    DrawsRowsOnHost,
    EmbedsTime,
    NeedsCuda,
    Output,
    ReadsValues,
    ReadsValuesAndEnds,
    Remembers,
    ReturnsObject,
    RoundsOnDevice,
    Routes,
    Small,
    Stops,
    TwoBlocks,
    seeded,
    small_inputs,
)

import tpuport
from tpuport import compat
from tpuport.attention.register import torch_sdpa
from tpuport.compat import randomness
from tpuport.compilation import CompiledFunction
from tpuport.compilation.results import call_results
from tpuport.compilation.rotary import table_store
from tpuport.errors import PortError
from tpuport.trace_errors.lint_matches import collect_findings
from tpuport.verification import CheckFinding, confirm, confirming, differences, model_runs
from tpuport.verification.check_result import order_findings
from tpuport.verification.checking import Check
from tpuport.verification.model_runs import Arguments
from tpuport.verification.recording import Recording

MODELS = Path(__file__).with_name("small_models.py")


def line_of(comment: str) -> int:
    """The line of the models that ends in a comment."""
    lines = MODELS.read_text().splitlines()
    [number] = [index for index, line in enumerate(lines, 1) if line.endswith(f"# {comment}")]
    return number


def check(model_class: type, *stages: str, dtype: torch.dtype = torch.float32) -> Check:
    """A check of some stages, for what the others do not show."""
    run = Check(seeded(model_class, dtype), Arguments.of(small_inputs()), None, None)
    run.carry_out(("torch", *stages))
    return run


def only(run: Check, kind: str) -> CheckFinding:
    [finding] = [finding for finding in run.findings if finding.kind == kind]
    return finding


def line(finding: CheckFinding) -> int:
    assert finding.source is not None
    return finding.source.line


def test_a_model_without_defects_passes_on_one_device_and_on_a_mesh() -> None:
    mesh = tpuport.create_mesh(dp=2, tp=2, devices=jax.devices()[:4])
    result = tpuport.check(seeded(Small), small_inputs(), mesh=mesh)
    assert result.ok, result.to_text()
    assert [stage.status for stage in result.stages] == ["passed"] * 7
    # A note of the linter about a table that is computed again in each call.
    assert [(finding.rule, finding.severity) for finding in result.findings] == [("TPU501", "note")]
    assert result.rules
    assert any("tp" in entries for entries in result.rules.values())
    _, _, printed = result.to_text().partition("--rules\n")
    assert json.loads(printed.partition("\n\n")[0]) == result.rules
    assert "Small runs on the device as in torch" in result.to_html()


def test_every_line_that_needs_a_value_is_found_in_one_run() -> None:
    run = check(ReadsValues, "values", "lint", "compare", "compile")
    errors = [finding for finding in run.findings if finding.severity == "error"]
    found = {(finding.rule, line(finding)) for finding in errors}
    assert found == {(rule, line_of(rule)) for rule in ("TPU205", "TPU201", "TPU101", "TPU211")}
    # What follows the answers equals torch, and without answers there is no program.
    statuses = {stage.name: stage.status for stage in run.stages}
    assert (statuses["compare"], statuses["compile"]) == ("passed", "failed")


@pytest.mark.parametrize("model_class", [CastsDown, CastsDownWhereItIs])
def test_autocast_in_torch_is_that_of_a_gpu(model_class: type) -> None:
    run = check(model_class, "values", "compare", "compile")
    assert {stage.status for stage in run.stages} == {"passed"}
    assert all(finding.severity == "note" for finding in run.findings)
    recording = model_runs.run_torch(seeded(model_class), Arguments.of(small_inputs()))
    products = [event for event in recording.events if event.operator in ("matmul", "__matmul__")]
    assert {note.dtype for note in products[-1].outputs} == {torch.bfloat16}


def test_autocast_of_the_host_leaves_the_device_alone() -> None:
    run = check(CastsDownOnTheHost, "values", "compare", "compile")
    finding = only(run, "dtype")
    assert (finding.severity, line(finding)) == ("warning", line_of("region"))
    assert "torch.autocast(x.device.type)" in finding.remedy


def test_inputs_that_were_computed_of_weights_are_taken() -> None:
    model = torch.nn.Linear(3, 3)
    computed = torch.nn.Linear(3, 3)(torch.ones(2, 3))
    model.features = computed * 2
    result = tpuport.check(model, (computed,))
    assert result.ok, result.to_text()
    assert computed.grad_fn is not None


def test_what_a_function_remembers_of_one_run_is_not_in_the_next() -> None:
    run = check(Remembers, "values", "compare", "compile")
    assert {stage.status for stage in run.stages} == {"passed"}
    assert not run.findings


def test_lines_that_need_values_keep_their_own_line_when_the_run_ends_later() -> None:
    run = check(ReadsValuesAndEnds, "values")
    found = [(finding.kind, line(finding)) for finding in run.findings]
    assert found == [("value", line_of("the first")), ("trace", line_of("the second"))]


def _host_states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist()  # type: ignore[call-overload]


def test_numbers_of_python_and_numpy_are_an_error_and_the_same_in_each_run() -> None:
    before = _host_states()
    run = check(DrawsOnHost, "values", "compare", "lint")
    assert _host_states() == before
    found = [
        (finding.kind, finding.rule, line(finding)) for finding in run.findings if finding.severity == "error"
    ]
    assert found == [("draw", "TPU506", line_of(name)) for name in ("python", "numpy")]
    assert run.stages[2].status == "passed"


def test_a_line_that_only_the_device_runs_is_blamed() -> None:
    finding = only(check(RoundsOnDevice, "values", "compare"), "result")
    assert (line(finding), finding.details["operator"]) == (line_of("rounded"), "bfloat16")
    assert "which only the device runs" in finding.message


def test_draws_of_another_shape_than_in_torch_are_an_error() -> None:
    finding = only(check(DrawsRowsOnHost, "values", "compile", "repeat"), "draw")
    assert line(finding) == line_of("one row")
    assert "`randn_like` draws [1, 7, 16] numbers on the device, and [2, 7, 16] in torch" in finding.message


def test_a_wrong_lowering_is_blamed_to_the_first_line_with_its_operator(replace_operator: Callable) -> None:
    replace_operator(torch.nn.functional.silu, lambda x, inplace=False: jax.nn.silu(x) * 1.001)
    finding = only(check(TwoBlocks, "values", "compare"), "result")
    assert (line(finding), finding.details["operator"]) == (line_of("feed forward"), "silu")
    assert finding.module == "blocks.0"
    assert finding.details["error"] > 100 * finding.details["torch_error"]


# jax's own warning about the same; for users it is one, here it would be an error that ends the trace.
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
def test_float64_that_becomes_float32_is_one_finding_with_the_words_of_its_rule() -> None:
    run = check(EmbedsTime, "values", "compare", "lint")
    [finding] = [finding for finding in run.findings if finding.rule == "TPU401"]
    assert (finding.kind, line(finding), finding.effort) == ("result", line_of("TPU401"), "minutes")
    assert finding.remedy.startswith("use float32")
    assert finding.details["ours"] != finding.details["torch"]
    assert "1 confirmed" in run.stages[-1].summary


@pytest.mark.slow  # the wrong lowering above, by the same comparison
def test_a_dropped_mask_is_blamed_to_the_line_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = torch_sdpa.attend

    def without_mask(query: Any, key: Any, value: Any, mask: Any, **settings: Any) -> Any:
        return attend(query, key, value, None, **settings)

    monkeypatch.setattr(torch_sdpa, "attend", without_mask)
    finding = only(check(Small, "values", "compare"), "result")
    assert line(finding) == line_of("attention")
    assert finding.module == "blocks.0.attention"


@pytest.mark.slow  # the wrong lowering above, by the same comparison
def test_a_wrong_rotary_table_is_blamed_to_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    output = table_store.Table.output
    monkeypatch.setattr(table_store.Table, "output", lambda table: [-part for part in output(table)])
    finding = only(check(Small, "values", "compare"), "result")
    assert finding.module == "rotary"
    assert finding.source is not None
    assert finding.source.function == "RotaryEmbedding.forward"


def test_a_slip_into_float32_is_blamed_to_its_line(replace_operator: Callable) -> None:
    replace_operator(torch.nn.functional.silu, lambda x, inplace=False: jax.nn.silu(x.astype(jnp.float32)))
    finding = only(check(Small, "values", "compare", dtype=torch.bfloat16), "dtype")
    assert line(finding) == line_of("feed forward")
    assert (finding.details["dtype"], finding.details["torch_dtype"]) == ("float32", "bfloat16")


@pytest.mark.slow  # the slip into float32 above
def test_a_product_in_float32_that_returns_halves_is_blamed_to_its_line(replace_operator: Callable) -> None:
    def linear(x: Any, weight: Any, bias: Any) -> Any:
        wide = x.astype(jnp.float32) @ weight.astype(jnp.float32).T
        return (wide + bias).astype(x.dtype)

    replace_operator(torch.nn.functional.linear, linear)
    run = check(Small, "compile", dtype=torch.bfloat16)
    lines = {line(finding) for finding in run.findings if finding.kind == "dtype"}
    assert line_of("feed forward") in lines


@pytest.mark.slow  # the slips above are in such a model
def test_a_half_precision_model_passes() -> None:
    run = check(Small, "values", "compare", "compile", dtype=torch.bfloat16)
    assert all(finding.severity == "note" for finding in run.findings), run.findings


def test_a_draw_is_replayed_so_that_results_can_be_compared() -> None:
    run = check(Draws, "values", "compare", "compile", "repeat")
    assert run.findings == []


def test_numbers_that_repeat_are_blamed_to_the_line_that_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []

    def same_keys(draws: Any, take: Callable = randomness.take_keys) -> Any:
        kept.append(take(draws))
        return kept[0]

    monkeypatch.setattr(randomness, "take_keys", same_keys)
    finding = only(check(Draws, "compile", "repeat"), "draw")
    assert line(finding) == line_of("noise")
    assert "in each call" in finding.message


@pytest.mark.slow  # the numbers that repeat above, by the same finding
def test_rows_that_share_a_draw_are_blamed_to_the_line_that_draws(replace_operator: Callable) -> None:
    def shared(x: Any) -> Any:
        return jnp.broadcast_to(jax.random.normal(randomness.next_key(), x.shape[1:]), x.shape)

    replace_operator(torch.randn_like, shared)
    finding = only(check(Draws, "compile", "repeat"), "draw")
    assert line(finding) == line_of("noise")
    assert "in each row" in finding.message


def test_a_stale_adapter_is_blamed_to_the_line_that_reads_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    call = CompiledFunction.__call__

    def call_as_compiled(compiled: CompiledFunction, *args: Any, **kwargs: Any) -> Any:
        model: Any = compiled._function
        now, model.adapter_enabled = model.adapter_enabled, True
        try:
            return call(compiled, *args, **kwargs)
        finally:
            model.adapter_enabled = now

    monkeypatch.setattr(CompiledFunction, "__call__", call_as_compiled)
    finding = only(check(Adapted, "compile", "repeat"), "stale")
    assert line(finding) == line_of("adapter")


def test_what_a_call_writes_is_there_in_the_next() -> None:
    assert check(Counts, "compile", "repeat").findings == []


def test_a_write_that_is_lost_is_found_in_the_second_call(monkeypatch: pytest.MonkeyPatch) -> None:
    write = call_results.write_weights
    # Zeros are what the buffer begins with, whose memory the program has overwritten.
    monkeypatch.setattr(
        call_results,
        "write_weights",
        lambda model, arrays: write(model, jax.tree.map(jax.numpy.zeros_like, arrays)),
    )
    finding = only(check(Counts, "compile", "repeat"), "stale")
    assert "second call" in finding.message


def test_a_wrong_result_is_not_taken_for_a_lost_write(replace_operator: Callable) -> None:
    replace_operator(torch.nn.functional.silu, lambda x, inplace=False: jax.nn.silu(x) * 1.001)
    run = check(Small, "compile", "repeat")
    assert [finding.kind for finding in run.findings] == ["result"]


@pytest.mark.usefixtures("small_heap")
def test_programs_and_arrays_that_grow_from_call_to_call_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[jax.Array] = []
    call = model_runs.call_compiled

    def growing(compiled: CompiledFunction, arguments: Arguments) -> list[torch.Tensor]:
        kept.append(jnp.ones(5) + len(kept))
        compiled.program.compilations += 1
        return call(compiled, arguments)

    monkeypatch.setattr(model_runs, "call_compiled", growing)
    run = check(Small, "compile", "repeat")
    assert only(run, "recompilation").severity == "error"
    assert "float32[5]" in only(run, "growth").message


@pytest.mark.usefixtures("small_heap")
def test_arrays_in_a_cycle_are_no_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    call = model_runs.call_compiled

    def leaving_a_cycle(compiled: CompiledFunction, arguments: Arguments) -> list[torch.Tensor]:
        cycle: list[Any] = [jnp.ones(7) + 1]
        cycle.append(cycle)
        return call(compiled, arguments)

    monkeypatch.setattr(model_runs, "call_compiled", leaving_a_cycle)
    assert check(Small, "compile", "repeat").findings == []


def test_a_program_that_only_the_second_call_compiles_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Arguments] = []
    call = model_runs.call_compiled

    def compile_in_second_call(compiled: CompiledFunction, arguments: Arguments) -> list[torch.Tensor]:
        calls.append(arguments)
        compiled.program.compilations += len(calls) == 2
        return call(compiled, arguments)

    monkeypatch.setattr(model_runs, "call_compiled", compile_in_second_call)
    assert only(check(Small, "compile", "repeat"), "recompilation").severity == "error"


def test_a_result_that_cannot_be_compared_is_said_to_be_so() -> None:
    assert only(check(ReturnsObject), "skipped").severity == "note"


def test_an_error_in_a_stage_that_withdraws_another_is_still_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a recording of values, the finding about them is withdrawn once the program compiles.
    monkeypatch.setattr(
        model_runs, "run_device", lambda *arguments: Recording(error=RuntimeError("no values"))
    )
    wide = CheckFinding("dtype", "compile", "error", "a product is computed in float32")
    monkeypatch.setattr(differences, "float32_findings", lambda products, run: [wide])
    run = check(Small, "values", "compile", dtype=torch.bfloat16)
    assert [stage.status for stage in run.stages] == ["passed", "failed", "findings"]
    assert {finding.kind for finding in run.findings} == {"skipped", "dtype"}


def test_code_that_needs_cuda_runs_with_the_shim_and_is_named_line_by_line() -> None:
    run = check(NeedsCuda, "values", "compare", "compile")
    assert [stage.status for stage in run.stages] == ["findings", "passed", "passed", "passed"]
    first, second = (finding for finding in run.findings if finding.kind == "cuda")
    assert (line(first), first.rule, first.severity) == (line_of("first"), "TPU303", "warning")
    assert line(second) == line_of("second")
    # Nothing is left of the shim.
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.ones(1).cuda()


def test_code_that_the_shim_does_not_help_is_named_with_all_other_lines_about_cuda() -> None:
    class Refuses(NeedsCuda):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            if not super().forward(ids, mask).is_cuda:
                raise TypeError("no GPU")
            return ids

    result = tpuport.check(seeded(Refuses), small_inputs())
    failure, *others = result.errors
    assert (failure.kind, line(failure)) == ("failure", line_of("first"))
    # The linter's words for the line, in one item.
    assert (failure.rule, failure.effort) == ("TPU303", "minutes")
    assert line_of("first") not in {line(finding) for finding in others}
    # What the run would have come to later is there too, values that conditions need among it.
    assert {line(finding) for finding in others} >= {line_of("second"), line_of("TPU205")}
    assert {stage.status for stage in result.stages[1:]} == {"skipped"}


def test_a_model_on_the_device_is_refused() -> None:
    with pytest.raises(PortError, match="on the device already"):
        tpuport.check(tpuport.port(seeded(Small)), small_inputs())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tokens": torch.zeros(1)}, "unexpected keyword argument 'tokens'; it takes forward("),
        ({"ids": torch.full((2, 5), 10**6)}, "IndexError: index out of range"),
    ],
)
def test_inputs_that_torch_refuses_are_to_be_corrected(
    changed: dict[str, torch.Tensor], message: str
) -> None:
    run = Check(seeded(Small), Arguments.of(small_inputs() | changed), None, None)
    run.carry_out(["torch"])
    finding = only(run, "failure")
    assert message in finding.message
    assert finding.source is not None
    assert finding.source.file == str(MODELS)
    assert finding.remedy.startswith("correct the inputs that target() returns")
    assert finding.effort == "minutes"


def test_tensors_inside_of_an_argument_are_in_float64_for_the_referee() -> None:
    cache = Output(torch.ones(2))
    cache.layers = [cache.logits, torch.ones(2, dtype=torch.int64)]  # type: ignore[attr-defined]
    [widened] = Arguments.of((cache,)).widened().positional
    assert widened.logits.dtype == torch.float64
    assert widened.layers[0] is widened.logits
    assert widened.layers[1].dtype == torch.int64
    assert cache.logits.dtype == torch.float32


def test_what_is_no_model_with_values_is_an_error() -> None:
    with pytest.raises(PortError, match="cannot check a function"):
        tpuport.check(seeded, {})
    with pytest.raises(PortError, match="without values"):
        tpuport.check(Small().to("meta"), small_inputs())


def test_a_stage_that_breaks_is_a_finding_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(confirming, "reached_findings", broken)
    run = check(Small, "lint", "values", "compare")
    assert "RuntimeError: no such luck" in only(run, "failure").message
    assert [stage.status for stage in run.stages] == ["passed", "failed", "passed", "passed"]


def test_the_model_itself_stays_as_it_is() -> None:
    model = seeded(Small).train()
    Check(model, Arguments.of(small_inputs()), None, None).carry_out(("torch", "values"))
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not compat.is_ported(model.head.weight)


def _last_of_equals(x: jax.Array, k: int, *options: Any) -> Any:
    """torch.topk, which begins with the last of equal values."""
    values, indices = jax.lax.top_k(x[..., ::-1], k)
    return values, x.shape[-1] - 1 - indices


@pytest.mark.slow  # test_bounds.py, and the next test
def test_a_choice_among_equal_values_is_a_tie_and_what_follows_is_compared(
    replace_operator: Callable,
) -> None:
    replace_operator(torch.ops.aten.topk.default, _last_of_equals)
    run = check(Routes, "values", "compare", "compile", "repeat")
    tie = only(run, "tie")
    assert (line(tie), tie.severity, tie.details["operator"]) == (line_of("tie"), "note", "topk")
    assert "equal values" in tie.message
    assert not [finding for finding in run.findings if finding.severity == "error"]
    # What is wrong after it is not its consequence.
    replace_operator(torch.nn.functional.silu, lambda x, inplace=False: jax.nn.silu(x) * 1.01)
    run = check(Routes, "values", "compare")
    assert [finding.kind for finding in run.findings if finding.severity == "error"] == ["result"]


def test_a_choice_of_other_values_is_no_tie(replace_operator: Callable) -> None:
    def twice(x: jax.Array, k: int, *options: Any) -> Any:
        values, indices = jax.lax.top_k(x, k)
        return values, jnp.zeros_like(indices)

    replace_operator(torch.ops.aten.topk.default, twice)
    finding = only(check(Routes, "values", "compare"), "result")
    assert line(finding) == line_of("tie")


def test_lines_after_one_that_stops_the_trace_are_not_reached() -> None:
    findings = [finding for finding in collect_findings([str(MODELS)]) if finding.function == "Stops.change"]
    marks = {
        finding.line: mark
        for finding, mark in confirm(seeded(Stops), small_inputs(), findings).items()
        if finding.rule == "TPU501"
    }
    assert marks[line_of("before")] == "harmless"
    assert marks[line_of("stop")] == "confirmed"
    assert marks[line_of("after")] == "not reached"


def test_what_the_gpu_shim_has_changed_comes_before_what_may_follow_from_it() -> None:
    error = CheckFinding("trace", "values", "error", "tensors of two devices")
    note = CheckFinding("lint", "lint", "note", "slow")
    cause = CheckFinding("cuda", "torch", "warning", "x.cuda() became x")
    assert order_findings([note, error, cause]) == (cause, error, note)


def test_rules_are_those_that_the_mesh_divides_by_or_the_reason() -> None:
    def rules(tp: int) -> tuple[Any, list[CheckFinding]]:
        mesh = tpuport.create_mesh(tp=tp, devices=jax.devices()[:tp])
        run = Check(seeded(Small), Arguments.of(small_inputs()), mesh, None)
        run.carry_out(("torch", "mesh"))
        return run.used_rules, [finding for finding in run.findings if finding.kind == "skipped"]

    used, notes = rules(2)
    # An entry for each dimension, as compile --write-rules has it.
    assert all(len(entries) in (1, 2) and any(entries) for entries in used.values())
    weights = dict(seeded(Small).named_parameters())
    assert {
        len(entries) == weights[name].ndim
        for pattern, entries in used.items() for name in weights if re.fullmatch(pattern, name)
    } == {True}  # fmt: skip
    assert not [note for note in notes if "2 heads" in note.message]
    used, notes = rules(3)
    assert used == {}
    [note] = notes
    assert "2 heads do not divide evenly over tp=3" in note.message
