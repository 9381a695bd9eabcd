"""The second call of a model that fills an attribute runs the first call's program, and gives what torch gives."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tpuport

SHARED: dict = {}


class Model(nn.Module):
    """Whose `forward` leaves something behind."""

    def __init__(self, leave: Callable) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("scale", 1 / torch.arange(1.0, 5.0))
        self.leave = [leave]
        self.table: Any = None
        self.length = 0
        self.frequencies = torch.arange(4.0)
        self.features: dict = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.leave[0](self, self.linear(x)))


def moved_to_the_device(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.frequencies = self.frequencies.to(x.device)
    return x * self.frequencies


def table_of_positions(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.table is None or self.table.shape[0] < len(x):
        self.table = torch.arange(len(x), device=x.device)[:, None] * 0.5
    return x + self.table[: len(x)]


def table_of_weights(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.table is None or len(x) > self.length:
        self.length = len(x)
        self.table = torch.outer(torch.arange(len(x), device=x.device).float(), self.scale).cos()
    return x * self.table[: len(x)]


def later_buffer(self: Any, x: torch.Tensor) -> torch.Tensor:
    if "mask" not in dict(self.named_buffers()):
        self.register_buffer("mask", torch.tril(torch.ones(4, 4, device=x.device)), persistent=False)
    return x @ self.mask


def cleared_features(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.features.clear()
    self.features["first"] = x
    self.features["second"] = x.relu()
    return x + next(iter(self.features.values()))


def last_result(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.last = x * 2
    return self.last + 1


def memo_of_numbers(self: Any, x: torch.Tensor) -> torch.Tensor:
    key = (tuple(x.shape), x.dtype)
    if key not in SHARED:
        SHARED[key] = x.shape[-1] ** -0.5
    return x * SHARED[key]


SERVED = [
    moved_to_the_device, table_of_positions, table_of_weights, later_buffer, cleared_features, last_result,
    memo_of_numbers,
]  # fmt: skip


def running_sum(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.table = x if self.table is None else self.table + x
    return self.table


def first_call_is_another(self: Any, x: torch.Tensor) -> torch.Tensor:
    first, self.length = self.length == 0, 1
    return x * 3 if first else x


def table_of_the_input(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.table is None:
        self.table = x.mean(0)
    return x - self.table


OTHERS = [running_sum, first_call_is_another, table_of_the_input]


def pair(leave: Callable) -> tuple[Any, Any]:
    torch.manual_seed(0)
    SHARED.clear()
    reference = Model(leave).eval().requires_grad_(False)
    return reference, tpuport.port(copy.deepcopy(reference))


def same(mine: Any, theirs: Any) -> None:
    torch.testing.assert_close(tpuport.to_cpu(mine), theirs)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("leave", SERVED)
def test_the_second_call_runs_the_first_calls_program(leave: Callable, training: bool) -> None:
    reference, model = pair(leave)
    reference.train(training)
    model.train(training)
    compiled = tpuport.compile(model)
    for number in range(3):
        x = torch.randn(3, 4)
        same(compiled(x), reference(x))
        assert compiled.program.compilations == 1
        same(model.norm.running_mean, reference.norm.running_mean)
        if number == 0:
            SHARED.clear()
    for name in ("table", "last", "mask"):
        if torch.is_tensor(getattr(reference, name, None)):
            same(getattr(model, name), getattr(reference, name))
    assert list(model.features) == list(reference.features)


@pytest.mark.parametrize("leave", OTHERS)
def test_a_state_that_changes_the_result_has_a_program_of_its_own(leave: Callable) -> None:
    reference, model = pair(leave)
    compiled = tpuport.compile(model)
    for _ in range(3):
        x = torch.randn(3, 4)
        same(compiled(x), reference(x))
    assert compiled.program.compilations > 1


def _other_table(model: Any) -> None:
    model.table = torch.full((3, 4), 2.0).to(model.linear.weight.device)


def _other_weights(model: Any) -> None:
    # The table was made of the old ones, and stays.
    model.scale = model.scale * 3


def _written_table(model: Any) -> None:
    model.table.mul_(2)


def _no_table(model: Any) -> None:
    model.table = None


@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("change", [_other_table, _other_weights, _written_table, _no_table])
def test_what_was_left_may_be_changed(change: Callable, after: int) -> None:
    reference, model = pair(table_of_weights)
    compiled = tpuport.compile(model)
    for number in range(5):
        if number == after:
            change(reference)
            change(model)
        x = torch.randn(3, 4)
        same(compiled(x), reference(x))


def test_lengths_that_take_turns() -> None:
    reference, model = pair(last_result)
    compiled = tpuport.compile(model)
    for length in (3, 3, 5, 5, 3, 5, 3):
        x = torch.randn(length, 4)
        same(compiled(x), reference(x))
        same(model.last, reference.last)
    assert compiled.program.compilations == 2


def test_a_table_of_weights_that_came_and_went_stays() -> None:
    """The table is of the second weights, and the first are back: the program would make another one."""
    reference, model = pair(table_of_weights)
    compiled = tpuport.compile(model)
    x = torch.randn(3, 4)
    first = reference.scale, model.scale
    for factor in (1, 3):
        for owner, scale in zip((reference, model), first, strict=True):
            owner.table, owner.length = None, 0
            owner.scale = scale if factor == 1 else scale * factor
        same(compiled(x), reference(x))
    reference.scale, model.scale = first
    for _ in range(2):
        same(compiled(x), reference(x))
