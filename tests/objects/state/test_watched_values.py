"""Versions of dictionaries tell the same as the comparison of all that is in them."""

import random
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from tpuport.internals.torch_internals import DICTIONARY_VERSIONS
from tpuport.objects.state import watched_values
from tpuport.objects.state.python_state import PythonState


class Part:
    kind = "part"
    __slots__ = ("__dict__", "slot")

    def __init__(self) -> None:
        self.slot, self.value = 1, 2


class Net(nn.Module):
    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        self.part = Part()
        self.items: dict[str, Any] = {"a": 1, "b": [1, 2], "c": {"d": 3}, "empty": {}}
        self.order = OrderedDict(x=1, y=2)
        self.names = {"one", "two"}
        self.register_buffer("table", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = self.part
        x = self.layers[0](x) * part.slot * part.value * self.scale * LIMIT
        return x + self.items["a"] + self.items["b"][0] + self.order["x"] + len(self.names) + helper(x, 2)


def helper(x: torch.Tensor, factor: int = 1) -> torch.Tensor:
    return x * factor


LIMIT = 3
CHANGES = {
    "attribute": lambda net: setattr(net.part, "value", net.part.value + 1),
    "slot": lambda net: setattr(net.part, "slot", net.part.slot + 1),
    "new attribute": lambda net: setattr(net, "further", object()),
    "no attribute": lambda net: vars(net).pop("further", None),
    "item": lambda net: net.items.update(a=net.items["a"] + 1),
    "item of a list": lambda net: net.items["b"].__setitem__(0, object()),
    "longer list": lambda net: net.items["b"].append(1),
    "dictionary inside": lambda net: net.items["c"].update(d=object()),
    "filled": lambda net: net.items["empty"].update(e=1),
    "emptied": lambda net: net.items["empty"].clear(),
    "renamed": lambda net: net.items["c"].update(
        f=net.items["c"].pop("d", None) or net.items["c"].pop("f", None)
    ),
    "set": lambda net: net.names.add(str(len(net.names))),
    "ordered": lambda net: net.order.update(x=object()),
    "class": lambda net: setattr(type(net), "scale", type(net).scale + 1),
    "class of a part": lambda net: setattr(Part, "kind", object()),
    "another class": lambda net: setattr(net.layers[0], "__class__", type("Other", (nn.Linear,), {})),
    "mode": lambda net: net.train(not net.training),
    "weight": lambda net: setattr(net.layers[0], "weight", nn.Parameter(torch.ones(2, 2))),
    "weight in place": lambda net: net.layers[0].weight.data.add_(1),
    "buffer in place": lambda net: net.table.add_(1),
    "hook": lambda net: net.layers[1].register_forward_hook(lambda *_: None),
    "no hook": lambda net: net.layers[1]._forward_hooks.clear(),
    "layer": lambda net: net.layers.append(nn.Linear(2, 2)),
    "global": lambda net: globals().update(LIMIT=object()),
    "default": lambda net: setattr(helper, "__defaults__", (object(),)),
    "nothing": lambda net: None,
    "the same again": lambda net: setattr(net, "items", net.items),
}


def without_versions(state: PythonState) -> bool:
    """Whether nothing has changed, by the comparison of everything."""
    watched = state._watched
    return watched._has_same_form() and all(
        new is old for new, old in zip(watched._observe(), watched.values, strict=True)
    )


@pytest.fixture(autouse=True)
def restore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Net, "scale", 1.0)
    monkeypatch.setattr(Part, "kind", "part")
    monkeypatch.setattr(helper, "__defaults__", (1,))
    monkeypatch.setitem(globals(), "LIMIT", 3)


def test_torch_tells_versions() -> None:
    assert DICTIONARY_VERSIONS.works()


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_each_change(name: str) -> None:
    net = Net()
    state = PythonState(net)
    assert state.is_current()
    CHANGES[name](net)
    assert state.is_current() == without_versions(state)


@pytest.mark.parametrize("seed", range(20))
def test_changes_in_a_row(seed: int) -> None:
    draws = random.Random(seed)
    net = Net()
    state = PythonState(net)
    for _ in range(30):
        name = draws.choice(sorted(CHANGES))
        CHANGES[name](net)
        expected = without_versions(state)
        assert state.is_current() == expected, name
        if not expected:
            state = PythonState(net)


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_each_change_without_versions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_values.DICTIONARY_VERSIONS, "reason", "as in another release")
    net = Net()
    state = PythonState(net)
    assert state.is_current()
    CHANGES[name](net)
    assert state.is_current() == without_versions(state)


def test_a_change_that_is_undone_costs_one_comparison() -> None:
    net = Net()
    state = PythonState(net)
    before = state.version
    net.items["a"], value = object(), net.items["a"]
    net.items["a"] = value
    assert state.is_current()
    after = state.version
    assert after is not before
    assert state.is_current()
    assert state.version is after


def test_the_version_tells_of_replaced_weights() -> None:
    net = Net()
    state = PythonState(net)
    before = state.version
    net.layers[0].weight = nn.Parameter(torch.ones(2, 2))
    assert state.is_current()  # other weights are no other state
    assert state.version is not before
