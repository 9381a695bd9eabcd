"""Checks of values in models of libraries: taken for right while they are traced, made where there are values."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

import tpuport
from tpuport import compat

# A file of its own: pytest writes the asserts of tests anew.
CODE = """
from typing import Any

import torch


def asserts(x: torch.Tensor) -> Any:
    assert x.max().item() <= len(x), "too large"
    assert torch.all(x >= 0).item()
    assert (x >= 0).all()
    assert not (x < 0).any() and x.max() <= len(x)
    return x + 1


def raises(x: torch.Tensor) -> Any:
    if x is not None and x.max() > len(x):
        raise ValueError(f"too large: {x}")
    if not (x >= 0).all():
        raise ValueError
    if (x < 0).any() or not (x.max() <= len(x)):
        raise ValueError("another line")
    if bool((x < 0).any()):
        raise ValueError
    return x + 1


def branches(x: torch.Tensor) -> Any:
    if x.max() > 2:
        return x + 1
    return x


def raises_or_more(x: torch.Tensor) -> Any:
    if x.max() > 2:
        x = x + 1
        raise ValueError
    return x


def counts(x: torch.Tensor) -> Any:
    number = x.max().item()
    assert number <= len(x)
    return x[:number]


def compares_truths(x: torch.Tensor) -> Any:
    assert (not x.max()) == (not x.min())
    return x


def is_member(x: torch.Tensor) -> Any:
    if x[0].item() not in (1, 2):
        raise ValueError
    return x


def handles(x: torch.Tensor) -> Any:
    try:
        assert x[0] > 2
    except AssertionError:
        return x + 1
    return x
"""


EITHER = """
def either(x):
    assert x.min() >= 0 or x.max() <= 5
    if x.min() < 0 and x.max() > 5:
        raise ValueError
    if 0 < x[0] < 2 and x[1] > 9:
        raise ValueError
    return x + 1
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("library") / "checking.py"
    file.write_text(CODE + EITHER)
    return runpy.run_path(str(file))


def run(function: Callable[[torch.Tensor], Any], x: torch.Tensor, *, trusted: bool) -> torch.Tensor:
    """The function's result in a compiled program."""

    def call(array: jax.Array) -> Any:
        return compat.as_jax(function(compat.wrap(array)))

    with compat.environment():
        if not trusted:
            return compat.to_torch(jax.jit(call)(compat.to_jax(x)))
        with compat.checks_trusted():
            return compat.to_torch(jax.jit(call)(compat.to_jax(x)))


@pytest.mark.parametrize("function", ["asserts", "raises"])
@pytest.mark.parametrize("values", [[1, 2, 3], [-1, 2, 9]])
def test_checks_hold(code: dict[str, Any], function: str, values: list[int]) -> None:
    x = torch.tensor(values)
    assert run(code[function], x, trusted=True).tolist() == (x + 1).tolist()


@pytest.mark.parametrize(
    "function", ["branches", "raises_or_more", "counts", "compares_truths", "is_member", "handles"]
)
def test_what_is_no_check_asks_for_values(code: dict[str, Any], function: str) -> None:
    with pytest.raises(jax.errors.ConcretizationTypeError):
        run(code[function], torch.tensor([1, 2, 3]), trusted=True)


@pytest.mark.parametrize("function", ["asserts", "raises"])
def test_checks_ask_for_values_outside_of_libraries(code: dict[str, Any], function: str) -> None:
    with pytest.raises(jax.errors.ConcretizationTypeError):
        run(code[function], torch.tensor([1, 2, 3]), trusted=False)


@pytest.mark.parametrize("function", ["asserts", "raises"])
def test_values_are_checked_where_there_are_any(code: dict[str, Any], function: str) -> None:
    good, bad = (compat.to_device(torch.tensor(values)) for values in ([1, 2, 3], [-1, 2, 9]))
    with compat.checks_trusted(), compat.environment():
        code[function](good)
        with pytest.raises((AssertionError, ValueError)):
            code[function](bad)


@pytest.mark.parametrize(("library", "warns"), [("mine", True), ("transformers.models.mine", False)])
def test_a_check_of_the_users_own_is_not_left_out_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, library: str, warns: bool
) -> None:
    file = tmp_path / f"{library}.py"
    file.write_text("def check(x):\n    assert x.max() < 9\n    return x\n")
    check = runpy.run_path(str(file), run_name=library)["check"]
    for _ in range(2):
        run(check, torch.tensor([1, 2, 3]), trusted=True)
    expected = [f"{file}, line 2: the check x.max() < 9 is left out"] * warns
    assert [record.getMessage().partition(", because")[0] for record in caplog.records] == expected


def test_what_holds_is_collected(code: dict[str, Any]) -> None:
    collected: list[tuple[str, jax.Array]] = []

    def call(array: jax.Array) -> list[jax.Array]:
        collected.clear()
        with compat.checks_trusted(
            collect=lambda text, holds: collected.append((text, compat.as_jax(holds)))
        ):
            code["raises"](compat.wrap(array))
        return [holds for _, holds in collected]

    with compat.environment():
        assert all(jax.jit(call)(compat.to_jax(torch.tensor([1, 2, 3]))))
        assert not all(jax.jit(call)(compat.to_jax(torch.tensor([1, 2, 9]))))
    texts = [text for text, _ in collected]
    assert texts[0] == "x is not None and x.max() > len(x)"


@pytest.mark.parametrize("function", ["asserts", "raises"])
def test_a_program_that_checks_its_indices_makes_them(code: dict[str, Any], function: str) -> None:
    def call(x: torch.Tensor) -> Any:
        with compat.checks_trusted():
            return code[function](x)

    compiled = tpuport.compile(call, check_indices=True)
    good, bad = torch.tensor([1, 2, 3]), torch.tensor([-1, 2, 9])
    assert tpuport.to_cpu(compiled(good)).tolist() == [2, 3, 4]
    with pytest.raises((AssertionError, ValueError)) as expected:
        code[function](bad)
    with pytest.raises(expected.type, match=r"x\.max\(\).*true") as caught:
        compiled(bad)
    assert "checking.py" in str(caught.value)


def test_one_of_several_conditions_is_not_reported_for_all_of_them(code: dict[str, Any]) -> None:
    def call(x: torch.Tensor) -> Any:
        with compat.checks_trusted():
            return code["either"](x)

    compiled = tpuport.compile(call, check_indices=True)
    for values in ([1, 9], [-1, 3], [3, 10]):
        x = torch.tensor(values)
        assert tpuport.to_cpu(compiled(x)).tolist() == code["either"](x).tolist()
