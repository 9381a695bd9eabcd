"""Modules among the arguments of a compiled function: their weights are arguments of its program."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import tpuport

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(3, 3)
        self.scale = 2.0
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = self.linear(x) * self.scale
        return self.last


def step(model: Any, x: torch.Tensor, *, after: Any = None) -> Any:
    y = model(x)
    return y if after is None else after(y)


def step_of_all(models: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    return models["first"](x) + models["second"](x)


@pytest.fixture
def models() -> tuple[Any, Any]:
    """(on the host, on the device)"""
    model = Scaled(0).eval()
    return model, tpuport.port(copy.deepcopy(model))


def assert_equals(result: Any, expected: torch.Tensor) -> None:
    torch.testing.assert_close(tpuport.to_cpu(result), expected)


@torch.no_grad()
def test_what_a_call_changes_is_changed_as_in_torch(models) -> None:
    host, model = models
    compiled = tpuport.compile(step)
    assert_equals(compiled(model, X), step(host, X))
    for part in (host, model):
        part.linear.weight.mul_(2)
    assert_equals(compiled(model, X), step(host, X))
    assert_equals(model.last, host.last)
    assert model.calls == host.calls == 2
    for part in (host, model):
        part.scale = 3.0
    assert_equals(compiled(x=X, model=model), step(host, X))


@torch.no_grad()
def test_each_module_has_its_own_weights(models) -> None:
    host, model = models
    other_host = Scaled(1).eval()
    other = tpuport.port(copy.deepcopy(other_host))
    for part in (host, model, other_host, other):
        part.forward = lambda x, part=part: part.linear(x) * part.scale
    compiled = tpuport.compile(step)
    for _ in range(2):
        assert_equals(compiled(model, X), step(host, X))
        assert_equals(compiled(other, X), step(other_host, X))
    assert compiled.program.compilations == 2
    assert_equals(compiled(model, X, after=other), step(host, X, after=other_host))
    assert_equals(compiled(model, X, after=model), step(host, X, after=host))
    of_all, of_all_host = {"first": model, "second": other}, {"first": host, "second": other_host}
    assert_equals(tpuport.compile(step_of_all)(of_all, X), step_of_all(of_all_host, X))


@torch.no_grad()
def test_modules_without_weights_and_on_the_host(models) -> None:
    host, model = models
    activation = nn.LeakyReLU(0.5)
    compiled = tpuport.compile(step)
    assert_equals(compiled(model, X, after=activation), step(host, X, after=activation))
    activation.negative_slope = 0.1
    assert_equals(compiled(model, X, after=activation), step(host, X, after=activation))
    with pytest.raises(tpuport.PortError, match="same device"):
        compiled(host, X)


@pytest.mark.usefixtures("small_heap")
def test_programs_keep_no_module() -> None:
    model = tpuport.port(Scaled(0).eval())
    compiled = tpuport.compile(step)
    compiled(model, X)
    reference = weakref.ref(model)
    compiled(tpuport.port(Scaled(1).eval()), X)
    del model
    gc.collect()
    assert reference() is None
