"""Whatever leads a function to its model, the weights are arguments: another weight gives another result."""

import functools
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import tpuport
from tpuport import PortError, compat
from tpuport.objects.state.reachable import ReachableModules

ONES = torch.ones(1, 2)
model: Any = None  # what the functions below name as a global
later: Any = None
zz: Any = torch.nn.Linear(2, 2)  # on the host, and only ever named as an attribute


def _filled(value: float) -> torch.nn.Module:
    linear = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.constant_(linear.weight, value)
    return tpuport.port(linear.eval())


@pytest.fixture(autouse=True)
def linear(monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    made = _filled(1.0)
    monkeypatch.setattr(sys.modules[__name__], "model", made)
    return made


def _sum(tensor: torch.Tensor) -> float:
    return float(compat.as_jax(tensor).sum())


class Holder:
    def __init__(self, held: Any) -> None:
        self.zz = held
        self.reference = torch.nn.Linear(2, 2)  # never used, and so welcome to stay on the host

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return self.zz(x)

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self.step(x)

    def by_global(self, x: torch.Tensor) -> torch.Tensor:
        return model(x)

    @property
    def inner(self) -> Any:
        return self.zz


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


class Hidden(torch.nn.Module):
    """Has a model that it does not register."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.listed = [held]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.listed[0](x)


def _helper(x: torch.Tensor) -> torch.Tensor:
    return model(x)


def _helped(x: torch.Tensor) -> torch.Tensor:
    return _helper(x)


def _decorated(function: Callable) -> Callable:
    @functools.wraps(function)
    def outer(*args: Any) -> Any:
        return function(*args)

    return outer


def _closure_in_closure(held: Any) -> Callable:
    inner = lambda x: held(x)  # noqa: E731
    return lambda x: inner(x)


def _file(held: Any) -> types.ModuleType:
    file = types.ModuleType("a_file_of_the_user")
    file.held = held
    return file


def _recursive(held: Any) -> Callable:
    def down(x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        return held(x) if depth == 0 else down(x, depth - 1)

    return down


WAYS: dict[str, Callable[[Any], Callable]] = {
    "a function that is called": lambda m: _helper,
    "a function called by one that is called": lambda m: lambda x: _helped(x),
    "a closure of a closure": _closure_in_closure,
    "a recursive closure": _recursive,
    "a dictionary": lambda m: (lambda held: lambda x: held["m"](x))({"m": m}),
    "a list in a tuple": lambda m: (lambda held: lambda x: held[0][0](x))(([m],)),
    "a method of an object": lambda m: Holder(m).step,
    "a method that calls a method": lambda m: Holder(m).twice,
    "a method that names a global": lambda m: Holder(None).by_global,
    "an attribute of an object": lambda m: (lambda o: lambda x: o.zz(x))(Holder(m)),
    "a method of an object in a closure": lambda m: (lambda o: lambda x: o.by_global(x))(Holder(None)),
    "a property": lambda m: (lambda o: lambda x: o.inner(x))(Holder(m)),
    "a slot": lambda m: (lambda o: lambda x: o.held(x))(Slotted(m)),
    "a namespace": lambda m: (lambda o: lambda x: o.m(x))(types.SimpleNamespace(m=m)),
    "a file": lambda m: (lambda f: lambda x: f.held(x))(_file(m)),
    "a default": lambda m: lambda x, held=m: held(x),
    "a partial in a partial": lambda m: functools.partial(functools.partial(lambda held, x: held(x), m)),
    "a decorator": lambda m: _decorated(lambda x: m(x)),
    "torch's decorator": lambda m: torch.no_grad()(lambda x: m(x)),
    "a comprehension": lambda m: lambda x: sum([model(y) for y in (x,)]),
    "a module that does not register it": Hidden,
    "a compiled function": lambda m: (lambda c: lambda x: c(x))(tpuport.compile(m)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_weight_is_an_argument_by_whatever_way_it_is_reached(way: str, linear: torch.nn.Module) -> None:
    compiled = tpuport.compile(WAYS[way](linear))
    assert _sum(compiled(ONES)) == 4.0
    replaced = jax.device_put(jnp.full((2, 2), 3.0, jnp.float32), compat.as_jax(linear.weight).sharding)
    linear.weight = torch.nn.Parameter(compat.wrap(replaced), requires_grad=False)
    assert _sum(compiled(ONES)) == 12.0
    assert compiled.program.compilations == 1


def test_a_name_that_gets_its_model_late_or_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[str, Any] = {}
    by_name, by_item = tpuport.compile(lambda x: later(x)), tpuport.compile(lambda x: held["m"](x))
    for value in (1.0, 2.0):
        held["m"] = _filled(value)
        monkeypatch.setattr(sys.modules[__name__], "later", held["m"])
        assert _sum(by_name(ONES)) == _sum(by_item(ONES)) == 4 * value

    def from_cell(x: torch.Tensor) -> torch.Tensor:
        return assigned(x)

    compiled = tpuport.compile(from_cell)
    with pytest.raises(NameError):
        compiled(ONES)
    assigned = _filled(5.0)
    assert _sum(compiled(ONES)) == 20.0


def test_attributes_are_no_globals(linear: torch.nn.Module) -> None:
    assert ReachableModules(Holder(linear).step).modules == [linear]
    assert ReachableModules(lambda x: x.zz).modules == []


def test_what_the_function_names_itself_must_be_on_the_device() -> None:
    with pytest.raises(PortError, match="not on the device"):
        tpuport.compile(lambda x: zz(x))(ONES)


def test_a_model_reached_in_secret_is_refused_by_name(linear: torch.nn.Module) -> None:
    compiled = tpuport.compile(lambda x: globals()["mo" + "del"](x), name="the step")
    with pytest.raises(PortError, match=r"a Linear would be constants of the step(.|\n)*where: weight"):
        compiled(ONES)
    with pytest.raises(PortError, match="constants"):
        compiled.lower(ONES)


@pytest.mark.parametrize(("rows", "warned"), [(2**18, True), (2**8, False)])
def test_other_large_constants_are_named(rows: int, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    table = jnp.arange(rows, dtype=jnp.int32)
    with caplog.at_level(logging.WARNING, "tpuport"):
        tpuport.compile(lambda x: x + compat.wrap(table), name="the sum")(torch.tensor(1))
    assert ("the sum holds 1 large array as constants" in caplog.text) == warned
    assert (f"int32({rows},)" in caplog.text) == warned
