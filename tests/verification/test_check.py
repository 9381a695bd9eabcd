"""`tpuport.check` on a small model, and on the same with one planted defect of each kind, blamed to its line."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from small_models import Draws, ReadsValues, Small, seeded, small_inputs

import tpuport
from tpuport import compat
from tpuport.errors import PortError
from tpuport.verification import CheckFinding, CheckResult

MODELS = Path(__file__).with_name("small_models.py")


def line_of(comment: str) -> int:
    """The line of the models that ends in a comment."""
    lines = MODELS.read_text().splitlines()
    [number] = [index for index, line in enumerate(lines, 1) if line.endswith(f"# {comment}")]
    return number


def check(model_class: type, dtype: torch.dtype = torch.float32, **options: Any) -> CheckResult:
    return tpuport.check(seeded(model_class, dtype), small_inputs(), **options)


def only(result: CheckResult, kind: str) -> CheckFinding:
    [finding] = [finding for finding in result.findings if finding.kind == kind]
    return finding


@pytest.fixture
def replace_operator() -> Iterator[Callable[[Any, Callable], None]]:
    """`replace_operator(torch.cos, function)` plants a lowering, a function of jax arrays."""
    table = compat.environment()._ops
    planted: dict[Any, Any] = {}

    def replace(operator: Any, function: Callable) -> None:
        planted[operator] = table.get(operator)

        def run(*args: Any, **kwargs: Any) -> Any:
            return compat.as_torch(function(*compat.as_jax(args), **compat.as_jax(kwargs)))

        compat.environment().override_op_definition(operator, run)

    yield replace
    for operator, before in planted.items():
        if before is None:
            table.pop(operator, None)
        else:
            table[operator] = before


def test_a_model_without_defects_passes() -> None:
    result = check(Small)
    assert result.ok, result.to_text()
    assert not result.findings
    assert [stage.status for stage in result.stages] == ["passed"] * len(result.stages)


def test_every_line_that_needs_a_value_is_found_in_one_run() -> None:
    result = check(ReadsValues)
    found = {(finding.rule, finding.source.line) for finding in result.errors if finding.source}
    assert found == {(rule, line_of(rule)) for rule in ("TPU205", "TPU201", "TPU101")}
    assert "cannot be compiled" in result.verdict
    compared = next(stage for stage in result.stages if stage.name == "compare")
    assert compared.status == "passed"  # what follows the answers equals torch


def test_a_wrong_lowering_is_blamed_to_the_line_of_its_operator(replace_operator: Callable) -> None:
    replace_operator(torch.nn.functional.silu, lambda x, inplace=False: jax.nn.silu(x) * 1.001)
    finding = only(check(Small), "result")
    assert finding.source is not None
    assert (finding.source.line, finding.details["operator"]) == (line_of("feed forward"), "silu")
    assert finding.module == "blocks.0"
    assert finding.details["error"] > 100 * finding.details["torch_error"]


def test_a_slip_into_float32_is_blamed_to_its_line(replace_operator: Callable) -> None:
    replace_operator(torch.nn.functional.silu, lambda x, inplace=False: jax.nn.silu(x.astype(jnp.float32)))
    finding = only(check(Small, torch.bfloat16), "dtype")
    assert finding.source is not None
    assert finding.source.line == line_of("feed forward")
    assert (finding.details["dtype"], finding.details["torch_dtype"]) == ("float32", "bfloat16")


def test_a_half_precision_model_passes() -> None:
    result = check(Small, torch.bfloat16)
    assert result.ok, result.to_text()


def test_a_draw_is_replayed_so_that_results_can_be_compared() -> None:
    result = check(Draws)
    assert result.ok, result.to_text()


def test_a_model_that_fails_in_torch_is_an_error() -> None:
    with pytest.raises(PortError, match="fails in torch"):
        tpuport.check(Small(), {"ids": torch.zeros(3)})
    with pytest.raises(PortError, match="cannot check a function"):
        tpuport.check(inspect.getsource, {})  # type: ignore[arg-type]


def test_the_model_itself_stays_as_it_is() -> None:
    model = seeded(Small).train()
    tpuport.check(model, small_inputs())
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not compat.is_ported(model.head.weight)
