"""What compiled code assigns to attributes, lists, dictionaries and variables is there after the call, as in torch."""

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tpuport
from tpuport import PortError, compat
from tpuport.compilation import layers

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
LAST: Any = None


class Point:
    def __init__(self, x: Any) -> None:
        self.x = x


class Recording(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.last: Any = None
        self.calls = 0
        self.history: list = []
        self.cache: dict = {"old": 1}
        self.total: Any = torch.zeros(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        self.last = y
        self.history.append((y.sum(), "sum"))
        self.cache["new"] = {"rows": [y[0], y[1]]}
        self.cache.pop("old", None)
        self.point = Point(y[0])
        self.total = self.total + y[0]
        self.linear.input = x
        return y * 2


def _host(tree: Any) -> Any:
    return tpuport.to_cpu(tree)


@pytest.fixture
def pair() -> tuple[Any, Any]:
    torch.manual_seed(0)
    reference = Recording().eval().requires_grad_(False)
    model = tpuport.port(copy.deepcopy(reference))
    model.total = compat.wrap(compat.to_jax(model.total))
    return reference, model


def test_attributes_lists_and_dictionaries(pair: Any) -> None:
    reference, model = pair
    compiled = tpuport.compile(model)
    for number in range(3):
        x = X + number
        torch.testing.assert_close(compiled(x).cpu(), reference(x))
        for name in ("last", "cache", "total"):
            torch.testing.assert_close(_host(getattr(model, name)), getattr(reference, name))
        mine, theirs = zip(*_host(model.history), strict=True), zip(*reference.history, strict=True)
        torch.testing.assert_close(next(mine), next(theirs))
        assert next(mine) == next(theirs) == ("sum",) * (number + 1)
        torch.testing.assert_close(model.point.x.cpu(), reference.point.x)
        torch.testing.assert_close(model.linear.input.cpu(), x)
        assert isinstance(model.point, Point)
    with compat.environment():
        torch.testing.assert_close((model.last * 2 + 1).cpu(), reference.last * 2 + 1)


def test_a_program_that_assigns_serves_every_call() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            previous = 0 if self.last is None else self.last
            self.last = x * 2
            return x + previous

    model = tpuport.port(Last())
    compiled = tpuport.compile(model)
    results = [compiled(X * number).cpu() for number in range(4)]
    for number in range(1, 4):
        torch.testing.assert_close(results[number], X * number + 2 * X * (number - 1))
    # Once without an earlier value, once with one.
    assert compiled.program.compilations == 2


def test_plain_values_count_on() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.calls

    model = tpuport.port(Counting())
    compiled = tpuport.compile(model)
    for number in range(1, 4):
        torch.testing.assert_close(compiled(X).cpu(), X * number)
        assert model.calls == number
    model.calls = 0
    torch.testing.assert_close(compiled(X).cpu(), X)
    assert (model.calls, compiled.program.compilations) == (1, 2)


def test_variables_and_globals() -> None:
    seen: Any = None
    results: dict = {}

    def function(x: torch.Tensor) -> torch.Tensor:
        global LAST
        nonlocal seen
        LAST, seen, results["x"] = x + 1, x + 2, [x + 3]
        return x

    compiled = tpuport.compile(function)
    for x in (X, 2 * X):
        compiled(x)
        torch.testing.assert_close([LAST.cpu(), seen.cpu(), results["x"][0].cpu()], [x + 1, x + 2, x + 3])


def test_new_buffers() -> None:
    class Lazy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not hasattr(self, "mean"):
                self.register_buffer("mean", x.mean(0))
            return x - self.mean

    reference, model = Lazy(), tpuport.port(Lazy())
    compiled = tpuport.compile(model)
    for x in (X, 2 * X):
        torch.testing.assert_close(compiled(x).cpu(), reference(x))
    assert list(dict(model.named_buffers())) == ["mean"]
    torch.testing.assert_close(model.mean.cpu(), reference.mean)


def test_nothing_is_left_behind_when_the_function_raises(pair: Any) -> None:
    _, model = pair

    def function(x: torch.Tensor) -> torch.Tensor:
        model(x)
        raise ValueError("too late")

    with pytest.raises(ValueError, match="too late"):
        tpuport.compile(function)(X)
    assert model.last is None
    assert model.history == []
    assert model.cache == {"old": 1}
    assert not hasattr(model, "point")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x + 1
        return torch.tanh(self.linear(x))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_blocks_in_a_loop() -> None:
    reference = Blocks().eval().requires_grad_(False)
    model = tpuport.port(copy.deepcopy(reference))
    layers.stack_layers(model)
    compiled = tpuport.compile(model)
    torch.testing.assert_close(compiled(X).cpu(), reference(X))
    for mine, theirs in zip(model.blocks, reference.blocks, strict=True):
        torch.testing.assert_close(mine.seen.cpu(), theirs.seen)


class Recorder(nn.Module):
    """Registers a hook that is its own method when it is first called, and keeps a function of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.seen: list[torch.Tensor] = []
        self.handle: Any = None

    def record(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        self.seen.append(output * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.clear()
        if self.handle is None:
            self.handle = self.linear.register_forward_hook(self.record)
        self.scale = functools.partial(torch.mul, x.sum())
        return self.linear(x) + torch.stack(self.seen).sum(0)


def test_methods_and_partial_functions_are_carried_out() -> None:
    host = Recorder()
    model = tpuport.port(copy.deepcopy(host))
    with torch.no_grad():
        for x in (X, X + 1, X):
            torch.testing.assert_close(model(x).cpu(), host(x))
            torch.testing.assert_close(model.seen[0].cpu(), host.seen[0])
            torch.testing.assert_close(
                model.scale(torch.ones(2, device="jax")).cpu(), host.scale(torch.ones(2))
            )
        for each in (host, model):
            each.handle.remove()
        model.linear(X.to("jax"))
        assert len(model.seen) == 1


class Mapped(nn.Module):
    def row(self, x: torch.Tensor) -> torch.Tensor:
        self.inner = x * 2
        return x + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(self.row)(x)


def test_what_cannot_leave_the_program_is_refused_by_name() -> None:
    compiled = tpuport.compile(tpuport.port(Mapped()))
    lines = Path(__file__).read_text().splitlines()
    number = next(index for index, text in enumerate(lines, 1) if text.strip().startswith("self.inner = x"))
    with pytest.raises(PortError, match=rf"(?s)inner is assigned .*line {number}, in .*return it from"):
        compiled(X)
