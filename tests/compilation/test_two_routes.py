"""An object that code reaches in several ways, as an argument and by itself, is one object; so is what it reaches
through the arguments' own code."""

import copy
import dataclasses
import functools
import random
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import tpuport
from tests.cache_names import CACHE
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
    def draw(cls, seed: int, device: str) -> "World":
        generator = random.Random(seed)
        boxes = [generator.choice([Box, ModuleBox])(device) for _ in range(2)]
        names = ["argument", "nested", "attribute", "closure", "global", "callback", "partial"]
        routes = {name: generator.choice(boxes) for name in names}
        routes["method"] = routes["global"]
        actions = ["read", "replace", "write", "count", "log"]
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


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 100))]
)
def test_every_route_leads_to_the_same_object(seed: int, monkeypatch) -> None:
    mine, theirs = World.draw(seed, "jax"), World.draw(seed, "cpu")
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


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_a_new_module_of_buffers_for_each_call_is_one_program(device: str) -> None:
    def step(x: torch.Tensor, cache: Any) -> torch.Tensor:
        cache.k = cache.k + x
        cache.log.append(x)
        return cache.k.sum()

    compiled = tpuport.compile(step)
    for number in range(3):
        cache = ModuleBox(device)
        assert float(compiled(torch.full((2,), float(number)), cache)) == 2 + 2 * number
        assert len(cache.log) == 1
        assert cache._buffers["k"] is cache.k
    assert compiled.program.compilations == 1


@torch.no_grad()
def test_a_cache_of_transformers_that_is_an_argument_and_a_variable() -> None:
    config = LlamaConfig(
        num_hidden_layers=1, hidden_size=8, intermediate_size=8, num_attention_heads=1, vocab_size=16
    )
    model = LlamaForCausalLM(config).eval()

    def step_of(model: Any) -> Callable:
        cache = StaticCache(config=config, max_cache_len=12)

        def step(ids: torch.Tensor, given: Any) -> Any:
            logits = model(ids, **{CACHE: given}).logits
            return logits, cache.layers[0].keys.sum()

        return functools.partial(
            tpuport.compile(step) if compat.is_ported(model.lm_head.weight) else step, given=cache
        )

    theirs = step_of(model)
    mine = step_of(tpuport.port(copy.deepcopy(model)))
    ids = torch.tensor([[1, 2, 3]])
    for _ in range(3):
        torch.testing.assert_close(tpuport.to_cpu(mine(ids)), theirs(ids))
