"""An object that code reaches in several ways, as an argument and by itself, is one object; what it reaches through the
arguments' own code is seen."""

import dataclasses
import functools
import random
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tpuport
from tpuport import compat

SHARED: Any = None
SCALE = 1.0


class Box:
    def __init__(self, device: str) -> None:
        self.k = torch.ones(2).to(device)
        self.n = 1
        self.log: list = []


class ModuleBox(nn.Module):
    """As caches are written whose tensors are to move with a model."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.register_buffer("k", torch.ones(2).to(device))
        self.n = 1
        self.log: list = []
        self.parts = nn.ModuleList([nn.Identity()])


@pytest.fixture(autouse=True)
def _environment() -> None:
    compat.environment()


@dataclasses.dataclass
class Reader:
    """Its method reaches what no argument has."""

    name: str = "reader"

    def find(self) -> Any:
        return SHARED

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * SCALE


@dataclasses.dataclass
class World:
    """Two boxes, and who has which; all made anew from a seed."""

    boxes: list[Any]
    routes: dict[str, Any]
    lines: list[tuple[str, str]]

    @classmethod
    def draw(cls, seed: int, device: str, actions: list[str]) -> "World":
        generator = random.Random(seed)
        boxes = [generator.choice([Box, ModuleBox])(device) for _ in range(2)]
        names = ["argument", "nested", "attribute", "closure", "global", "callback", "partial"]
        routes = {name: generator.choice(boxes) for name in names}
        routes["method"] = routes["global"]
        lines = [(generator.choice([*routes]), generator.choice(actions)) for _ in range(6)]
        return cls(boxes, routes, lines)

    def function(self) -> Callable:
        closed, lines = self.routes["closure"], self.lines

        def run(x: Any, first: Any, nested: Any, holder: Any, reader: Reader, call: Any, act: Any) -> Any:
            found = {
                "argument": first, "nested": nested["box"][0], "attribute": holder.box, "closure": closed,
                "global": SHARED, "method": reader.find(), "callback": call(), "partial": act.args[0],
            }  # fmt: skip
            total = x.sum()
            for route, action in lines:
                total = total + _act(found[route], action, x)
            return total + act(x), first, nested

        return run

    def arguments(self) -> list[Any]:
        has = self.routes
        called = has["callback"]
        return [
            has["argument"], {"box": [has["nested"]]}, types.SimpleNamespace(box=has["attribute"]), Reader(),
            lambda: called, functools.partial(_read, has["partial"]),
        ]  # fmt: skip


def _act(box: Any, action: str, x: torch.Tensor) -> Any:
    match action:
        case "replace":
            box.k = box.k + x
        case "write":
            box.k.add_(2 * x)
        case "count":
            box.n += 1
        case "log":
            box.log.append(box.k.sum())
    return box.k.sum() * box.n + len(box.log)


def _read(box: Any, x: torch.Tensor) -> torch.Tensor:
    return (box.k * x).sum()


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 100))]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_object_that_is_changed_is_one_object(seed: int, monkeypatch) -> None:
    _compare(seed, ["read", "replace", "write", "count", "log"], monkeypatch)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_object_that_is_read_is_taken(seed: int, monkeypatch) -> None:
    _compare(seed, ["read"], monkeypatch)


def test_a_call_that_gives_what_the_function_reaches_by_itself_and_one_that_does_not() -> None:
    box, other = Box("jax"), Box("jax")

    def change(x: torch.Tensor, given: Any) -> Any:
        given.k = given.k + x
        given.log.append(box.k)
        return box.k.sum()

    compiled = tpuport.compile(change)
    totals = [float(compiled(torch.ones(2), given)) for given in (other, box, other, box, box)]
    assert totals == [2, 4, 4, 6, 8]
    assert (box.k.tolist(), other.k.tolist()) == ([4, 4], [3, 3])
    assert [value.tolist() for value in other.log] == [[1, 1], [2, 2]]
    assert box.log[-1] is box.k
    assert compiled.program.compilations <= 5


def _compare(seed: int, actions: list[str], monkeypatch: Any) -> None:
    """Three calls of a drawn program, in torch and compiled."""
    mine, theirs = World.draw(seed, "jax", actions), World.draw(seed, "cpu", actions)
    compiled, function = tpuport.compile(mine.function()), theirs.function()
    my_arguments, arguments = mine.arguments(), theirs.arguments()
    for _ in range(3):
        x = torch.arange(2.0)
        monkeypatch.setitem(globals(), "SHARED", theirs.routes["global"])
        expected = function(x, *arguments)
        monkeypatch.setitem(globals(), "SHARED", mine.routes["global"])
        result = compiled(x, *my_arguments)
        torch.testing.assert_close(tpuport.to_cpu(result[0]), expected[0])
        assert result[1] is my_arguments[0]
        assert result[2] is my_arguments[1]
        for box, other in zip(mine.boxes, theirs.boxes, strict=True):
            torch.testing.assert_close(box.k.cpu(), other.k)
            assert box.n == other.n
            torch.testing.assert_close([value.cpu() for value in box.log], other.log)


def _call_method(x: torch.Tensor, reader: Reader) -> torch.Tensor:
    return reader.scaled(x)


def _call(x: torch.Tensor, function: Callable) -> torch.Tensor:
    return function(x)


def _scaled(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return x * SCALE * by


def _capturing() -> Callable:
    offset = torch.zeros(2)
    return lambda x: x * SCALE + offset


@pytest.mark.parametrize(
    ("step", "argument"),
    [
        (_call_method, Reader()), (_call, Reader().scaled), (_call, _scaled),
        (_call, functools.partial(_scaled, by=1.0)), (_call, _capturing()),
    ],
    ids=["object", "method", "function", "partial", "closure"],
)  # fmt: skip
def test_a_global_of_an_arguments_code_is_seen(step: Callable, argument: Any, monkeypatch) -> None:
    compiled = tpuport.compile(step)
    for scale in (1.0, 3.0, 1.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        torch.testing.assert_close(tpuport.to_cpu(compiled(torch.ones(2), argument)), torch.ones(2) * scale)
    assert compiled.program.compilations == 2
