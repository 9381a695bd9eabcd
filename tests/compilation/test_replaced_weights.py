"""A weight that traced code replaces is another tensor afterwards, as in torch: who has the former keeps its values."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tpuport
from tpuport import compat
from tpuport.errors import PortError

NAMES = ("replaced", "written", "first", "second", "both", "one", "other", "weight")


class Averages(torch.nn.Module):
    """Changes its buffers, and a parameter, in every way that torch code has."""

    written: torch.Tensor
    both: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        for number, name in enumerate(NAMES[:-1]):
            self.register_buffer(name, torch.full((2,), float(number)))
        self.weight = torch.nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.replaced = self.replaced * 0.5 + x.mean()
        self.written.mul_(0.5)
        self.first, self.second = self.second, self.first
        self.both.mul_(2)
        self.both = self.both + 1
        self.one = self.other = self.one + self.other
        self.weight = torch.nn.Parameter(self.weight * 2, requires_grad=False)
        return x + self.replaced * self.weight


def call_model(model: torch.nn.Module) -> Callable:
    return model


def compile_model(model: torch.nn.Module) -> Callable:
    return tpuport.compile(model)


def compile_function(model: torch.nn.Module) -> Callable:
    return tpuport.compile(lambda x: model(x))


@pytest.fixture(autouse=True)
def enabled() -> None:
    tpuport.enable()


def describe_calls(model: torch.nn.Module, step: Callable) -> list[Any]:
    """What two calls leave in the model, and in former tensors and views of them."""
    x = torch.ones(2)
    with torch.no_grad():
        step(x)
        former = {name: getattr(model, name) for name in NAMES}
        views = {name: tensor.view(1, 2) for name, tensor in former.items()}
        output = step(x)
    described = [output.tolist()]
    for name, tensor in former.items():
        now = getattr(model, name)
        names_of_now = [other for other in NAMES if former[other] is now]
        shares = [other for other in NAMES if getattr(model, other) is now]
        described.append((name, tensor.tolist(), views[name].tolist(), now.tolist(), names_of_now, shares))
    described.append((isinstance(model.weight, torch.nn.Parameter), dict(model.named_buffers()).keys()))
    return described


@pytest.mark.parametrize("prepare", [call_model, compile_model, compile_function])
def test_former_tensors_keep_what_they_keep_in_torch(prepare: Callable) -> None:
    host = Averages()
    expected = describe_calls(host, host)
    model = tpuport.port(Averages())
    assert describe_calls(model, prepare(model)) == expected


class Remembers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(2, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.k = torch.where(self.k == 0, x, self.k + 1)
        return self.k.sum()


def test_a_buffer_that_is_replaced_stays_in_its_memory_unless_it_is_held() -> None:
    model = tpuport.port(Remembers())
    step = tpuport.compile(model)
    x = torch.ones(2, 16)
    step(x)
    before = compat.as_jax(model.k).unsafe_buffer_pointer()
    assert [float(step(x)), float(step(x))] == [64, 96]
    assert compat.as_jax(model.k).unsafe_buffer_pointer() == before
    memory: Any = step.lower(x).compile().memory_analysis()
    assert memory.alias_size_in_bytes == 4 * 2 * 16
    former, view = model.k, model.k[:1]
    step(x)
    assert (float(former.sum()), float(view.sum()), float(model.k.sum())) == (96, 48, 128)
    assert step.program.compilations == 1


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.seen = torch.nn.Parameter(torch.zeros(8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.nn.Parameter(self.seen + x.sum(0), requires_grad=False)
        return self.linear(x)


class Blocks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_block_in_a_loop_that_replaces_its_parameter_is_refused() -> None:
    model = tpuport.port(Blocks())
    with pytest.raises(PortError, match="in place or replace them") as caught:
        tpuport.compile(model, scan_layers=True)(torch.ones(1, 8))
    assert caught.value.fix == "compile with scan_layers=False"


def test_an_own_cache_that_is_written_to_and_then_replaced() -> None:
    class Cache:
        def __init__(self) -> None:
            self.k = torch.ones(2, device="jax")

    def update(cache: Cache) -> None:
        cache.k.mul_(3)
        cache.k = cache.k + 1

    cache = Cache()
    former = cache.k
    tpuport.compile(update)(cache)
    assert (former.tolist(), cache.k.tolist()) == ([3, 3], [4, 4])
    captured = Cache()
    former = captured.k
    tpuport.compile(lambda: update(captured))()
    assert (former.tolist(), captured.k.tolist()) == ([3, 3], [4, 4])


class Counts(torch.nn.Module):
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor([1, 2]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.count * 2 + x.to(self.count.dtype)


@pytest.mark.parametrize("make", [call_model, compile_model, compile_function])
def test_a_buffer_of_another_width(make: Callable) -> None:
    """Arrays do not tell int32 from int64, results do."""
    model = tpuport.port(Counts())
    step, x = make(model), torch.ones(2).to("jax")
    for dtype in (torch.int64, torch.int64, torch.int32, torch.int32, torch.int64):
        model.count = model.count.to(dtype)
        assert step(x).dtype is dtype
