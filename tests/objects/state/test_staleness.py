"""Whatever changes after a function was compiled, the next call sees it, as torch does."""

import collections
import contextvars
import copy
import dataclasses
import functools
import importlib
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tpuport
from tpuport import compat
from tpuport.objects.state.python_state import PythonState

X = torch.tensor([[1.0, -2.0], [3.0, 0.5]])
SCALE: Any = 2.0
TABLE: Any = [1.0, 2.0]


@dataclasses.dataclass
class Settings:
    gain: float = 1.0
    nested: Any = None


class Gate:
    """A plain object with slots, compared by an operator."""

    __slots__ = ("__offset", "level")

    def __init__(self, level: float) -> None:
        self.level = level
        self.move(0.0)

    def move(self, offset: float) -> None:
        self.__offset = offset

    def shift(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.__offset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gate) and self.level == other.level

    def __hash__(self) -> int:
        return 0


class Scaled(nn.Module):
    factor = 2.0

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.factor


def test_variables_of_contexts_and_threads() -> None:
    scale: contextvars.ContextVar[float] = contextvars.ContextVar("scale")
    thread = threading.local()

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * scale.get(1.0) + getattr(thread, "shift", 0.0)

    compiled = tpuport.compile(function)
    changes = [
        lambda: None,
        lambda: scale.set(2.0),
        lambda: setattr(thread, "shift", 3.0),
        lambda: setattr(thread, "shift", 4.0),
        lambda: delattr(thread, "shift"),
    ]
    for change in changes:
        change()
        torch.testing.assert_close(compiled(X).cpu(), function(X))
    assert compiled.program.compilations == 4


INSTALLED_FILES = {
    "__init__.py": "",
    "flags.py": "TABLE = {'gain': 1.0}\nOFFSET = 1.0\nclass Registry:\n    mode = 1.0\n",
    "network.py": """
from torch import nn
from research_package import flags
from research_package.flags import TABLE
_POWER = 1
class Network(nn.Module):
    factors = {"first": 1.0}
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
    def forward(self, x):
        x = self.linear(x) * TABLE["gain"] + flags.OFFSET
        return x**_POWER * self.factors["first"] * flags.Registry.mode
""",
}


def test_what_an_installed_package_of_research_code_decides_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages" / "research_package"
    folder.mkdir(parents=True)
    for name, text in INSTALLED_FILES.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(folder.parent))
    flags = importlib.import_module("research_package.flags")
    network = importlib.import_module("research_package.network")
    reference = network.Network()
    model = tpuport.port(copy.deepcopy(reference))
    changes = [
        lambda: None,
        lambda: flags.TABLE.update(gain=2.0),
        lambda: setattr(flags, "OFFSET", 3.0),
        lambda: setattr(flags.Registry, "mode", 4.0),
        lambda: setattr(network, "_POWER", 2),
        lambda: network.Network.factors.update(first=5.0),
    ]
    for change in changes:
        change()
        torch.testing.assert_close(model(X).cpu(), reference(X).detach())


def test_states_that_are_equal_are_compared_once() -> None:
    words = ["one", "two"]
    first, second = (PythonState(lambda x: words[0]).key for _ in range(2))
    other = PythonState(lambda x: words[1]).key
    assert first is not second
    assert first.entries is not second.entries
    assert first == second
    assert first.entries is second.entries
    assert first != other


class Layer(nn.Module):
    weight_scale = 1.0
    shifts = [0.0]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.dropout = nn.Dropout(0.0)
        self.scale = 1.0
        self.factors = [1.0, {"inner": (1.0, [2.0])}]
        self.settings = Settings(nested=types.SimpleNamespace(power=1))
        self.gates = (Gate(1.0), Gate(1.0))
        self.order = collections.deque(["scale", "shift"])
        self.names = {"plus"}
        self.array = np.ones(2, np.float32)
        self.host = torch.ones(2)
        self.activation: Callable = torch.tanh
        self.projection = nn.Linear(2, 2)
        nn.utils.parametrize.register_parametrization(self.projection, "weight", Scaled())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.projection(self.linear(x))) * self.scale * self.weight_scale + self.shifts[0]
        x = x * self.factors[0] * self.factors[1]["inner"][1][0]
        x = x * self.settings.gain**self.settings.nested.power * getattr(self, "late", 1.0)
        if self.gates[0] == self.gates[1]:
            x = self.gates[0].shift(x + 1)
        for name in self.order:
            x = x * 2 if name == "scale" else x + 1
        if "plus" in self.names:
            x = x + 1
        x = x * float(self.array.sum()) * float(self.host[0])
        return self.helper(self.activation(x))

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training else 2 * x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Shifted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def _double_output(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return 2 * output


def _double_input(module: nn.Module, args: Any) -> Any:
    return (2 * args[0],)


def _keyword_hook(module: nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> torch.Tensor:
    return output + 3


def _new_forward(layer: Any) -> Callable:
    original = layer.forward
    return lambda x: original(x) + 5


def _replace_layer(model: Any) -> None:
    model.layers[0] = Doubled()


def _reorder(model: Any) -> None:
    model.layers = nn.ModuleList(reversed(model.layers))


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "a plain attribute": lambda m, first: setattr(first, "scale", 3.0),
    "an attribute of another type": lambda m, first: setattr(first, "scale", 3),
    "a new attribute": lambda m, first: setattr(first, "late", 7.0),
    "an attribute through the dictionary": lambda m, first: vars(first).update(scale=0.5),
    "an item of a list": lambda m, first: first.factors.__setitem__(0, 4.0),
    "a list in a tuple in a dictionary": lambda m, first: first.factors[1]["inner"][1].__setitem__(0, 5.0),
    "a dataclass": lambda m, first: setattr(first.settings, "gain", 2.0),
    "an object in a dataclass": lambda m, first: (
        setattr(first.settings, "gain", 2.0),
        setattr(first.settings.nested, "power", 3),
    ),
    "a slot that an operator reads": lambda m, first: setattr(first.gates[0], "level", 9.0),
    "a slot that is private": lambda m, first: first.gates[0].move(9.0),
    "a deque": lambda m, first: first.order.rotate(),
    "a set": lambda m, first: first.names.clear(),
    "an array in place": lambda m, first: first.array.__setitem__(0, 5.0),
    "a tensor on the host in place": lambda m, first: first.host.add_(1),
    "an attribute of the class": lambda m, first: setattr(Layer, "weight_scale", 2.0),
    "a list of the class": lambda m, first: Layer.shifts.__setitem__(0, 4.0),
    "a method of the class": lambda m, first: setattr(Layer, "helper", lambda self, x: x * 11),
    "a method of the module": lambda m, first: setattr(first, "helper", lambda x: x - 1),
    "a function": lambda m, first: setattr(first, "activation", torch.relu),
    "dropout with p = 1": lambda m, first: (setattr(first.dropout, "p", 1.0), first.dropout.train()),
    "the mode of a part": lambda m, first: first.train(),
    "a hook": lambda m, first: first.linear.register_forward_hook(_double_output),
    "a hook before": lambda m, first: first.linear.register_forward_pre_hook(_double_input),
    "a hook with keywords": lambda m, first: first.register_forward_hook(_keyword_hook, with_kwargs=True),
    "a global hook": lambda m, first: nn.modules.module.register_module_forward_hook(_double_output),
    "a forward": lambda m, first: setattr(first, "forward", _new_forward(first)),
    "a part": lambda m, first: _replace_layer(m),
    "the order of parts": lambda m, first: _reorder(m),
    "a part that is taken out": lambda m, first: m.layers.__delitem__(1),
    "a module in place of a part": lambda m, first: setattr(first, "dropout", Shifted()),
    "a class": lambda m, first: setattr(first.dropout, "__class__", Doubled),
    "a parametrization": lambda m, first: setattr(first.projection.parametrizations.weight[0], "factor", 3.0),
    "a function of a library": lambda m, first: setattr(nn.functional, "linear", lambda x, w, b: x * 3),
}


@pytest.fixture(autouse=True)
def _undo() -> Any:
    """Give classes and libraries back what a change has replaced."""
    attributes, linear = (
        {name: vars(Layer)[name] for name in ("weight_scale", "helper")},
        nn.functional.linear,
    )
    hooks = nn.modules.module._global_forward_hooks
    yield
    hooks.clear()
    nn.functional.linear = linear
    Layer.shifts[0] = 0.0
    for name, value in attributes.items():
        setattr(Layer, name, value)


@pytest.fixture(scope="module")
def base() -> nn.Module:
    torch.manual_seed(0)
    return Model().eval()


# What is read in the same way as another of the changes.
SLOW_CHANGES = {
    "an attribute through the dictionary", "a list in a tuple in a dictionary", "a dataclass", "a deque",
    "a new attribute", "a list of the class", "a hook before", "a hook with keywords", "the mode of a part", "a part",
    "a part that is taken out", "a module in place of a part", "dropout with p = 1", "a forward", "a class", "a set",
    "a method of the class", "a slot that is private", "an object in a dataclass", "an item of a list",
    "an attribute of the class", "the order of parts",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW_CHANGES else []) for name in CHANGES]
)
def test_a_change_of_a_model_is_seen(name: str, base: nn.Module) -> None:
    reference = copy.deepcopy(base)
    model = tpuport.port(copy.deepcopy(base))
    compiled = tpuport.compile(model)
    before = reference(X)
    torch.testing.assert_close(compiled(X).cpu(), before)
    for changed in (reference, model):
        with compat.environment() if changed is model else torch.no_grad():
            CHANGES[name](changed, changed.layers[0])
    expected = reference(X)
    torch.testing.assert_close(compiled(X).cpu(), expected.detach())
    if name not in ("an attribute of another type", "the order of parts"):
        assert not torch.equal(expected, before)
    compiled(X)
    assert compiled.program.compilations <= 2


def test_a_parametrization_that_is_taken_away() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(2, 2)
    weight = linear.weight.detach().clone()
    nn.utils.parametrize.register_parametrization(linear, "weight", Scaled())
    compiled = tpuport.compile(tpuport.port(linear))
    torch.testing.assert_close(compiled(X).cpu(), nn.functional.linear(X, 2 * weight, linear.bias.cpu()))
    nn.utils.parametrize.remove_parametrizations(linear, "weight", leave_parametrized=False)
    torch.testing.assert_close(compiled(X).cpu(), nn.functional.linear(X, weight, linear.bias.cpu()))


def test_what_changes_nothing_compiles_nothing(base: nn.Module) -> None:
    model = tpuport.port(copy.deepcopy(base))
    compiled = tpuport.compile(model)
    compiled(X)
    for _ in range(3):
        first = model.layers[0]
        first.scale, first.factors, first.settings = (
            1.0,
            copy.deepcopy(first.factors),
            copy.deepcopy(first.settings),
        )
        with first.register_forward_hook(_double_output):
            pass
        first.train().eval()
        compiled(X)
    assert compiled.program.compilations == 1


def test_a_hook_registered_for_each_call_compiles_once(base: nn.Module) -> None:
    model = tpuport.port(copy.deepcopy(base))
    compiled = tpuport.compile(model)
    plain = compiled(X).cpu()
    for _ in range(3):
        with model.register_forward_hook(lambda module, args, output: output * 2):
            torch.testing.assert_close(compiled(X).cpu(), 2 * plain)
        torch.testing.assert_close(compiled(X).cpu(), plain)
    assert compiled.program.compilations == 2


def test_variables_globals_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    shift, options = 1.0, {"twice": False}
    file = types.ModuleType("a_file_of_the_user")
    file.offset = 1.0

    def function(x: torch.Tensor, factor: Any = TABLE) -> torch.Tensor:
        y = x * SCALE + shift * factor[0] + file.offset
        return y * 2 if options["twice"] else y

    compiled = tpuport.compile(function)
    module = sys.modules[__name__]
    changes = [
        lambda: None,
        lambda: monkeypatch.setattr(module, "SCALE", 5.0),
        lambda: options.update(twice=True),
        lambda: TABLE.__setitem__(0, 7.0),
        lambda: setattr(file, "offset", 3.0),
        lambda: setattr(function, "__defaults__", ([2.0],)),
    ]
    for change in changes:
        change()
        torch.testing.assert_close(compiled(X).cpu(), function(X))
    shift = 9.0
    torch.testing.assert_close(compiled(X).cpu(), function(X))


def test_tensors_on_the_device_are_arguments() -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = {"pair": (torch.ones(2), torch.ones(2))}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.held["pair"][0] + outer

    outer = compat.wrap(compat.to_jax(torch.ones(2)))
    model = tpuport.port(Held())
    model.held = {"pair": tuple(compat.wrap(compat.to_jax(tensor)) for tensor in model.held["pair"])}
    compiled = tpuport.compile(model)
    torch.testing.assert_close(compiled(X).cpu(), X + 1)
    with compat.environment():
        model.held["pair"][0].mul_(3)
        outer.add_(1)
    torch.testing.assert_close(compiled(X).cpu(), X * 3 + 2)
    model.held = {"pair": (outer, outer)}
    torch.testing.assert_close(compiled(X).cpu(), X * 2 + 2)
    # Which of the two are one tensor is a matter of the program; their values are not.
    assert compiled.program.compilations == 2


def test_attributes_that_the_code_does_not_name_are_the_users_own() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.model, self.steps, self.losses, self.rate = tpuport.port(nn.Linear(2, 2)), 0, [], 1.0

        def step(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x) * self.rate

    trainer = Trainer()
    step = tpuport.compile(lambda x: trainer.step(x))
    for _ in range(3):
        trainer.losses.append(step(X).cpu())
        trainer.steps += 1
    assert step.program.compilations == 1
    trainer.rate = 3.0
    torch.testing.assert_close(step(X).cpu(), 3 * trainer.losses[0])


def test_what_keeps_changing_is_named(caplog: pytest.LogCaptureFixture, base: nn.Module) -> None:
    model = tpuport.port(copy.deepcopy(base))
    compiled = tpuport.compile(model, name="the model")
    with caplog.at_level("WARNING", "tpuport"):
        for scale in (1.0, 1.25, 1.5, 1.75):
            model.layers[1].scale = scale
            compiled(X)
    assert "layers.1.scale keeps changing (1.0, 1.25, 1.5, 1.75). Let it be a tensor" in caplog.text


def test_a_large_dictionary_is_compared_by_reference() -> None:
    words = {str(number): number for number in range(50_000)}
    state = PythonState(lambda x: words["5"])
    assert state.is_current()
    words["5"] = 6
    assert not state.is_current()


def test_a_copy_of_a_model_has_a_state_of_its_own(base: nn.Module) -> None:
    model = tpuport.port(copy.deepcopy(base))
    functools.partial(tpuport.compile(model), X)()
    twin = copy.deepcopy(model)
    twin.layers[0].scale = 2.0
    assert not torch.equal(tpuport.compile(twin)(X).cpu(), tpuport.compile(model)(X).cpu())


def test_a_program_that_was_not_checked_would_be_stale(
    base: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above see a state that is not compared."""
    model = tpuport.port(copy.deepcopy(base))
    compiled = tpuport.compile(model)
    before = compiled(X).cpu()
    monkeypatch.setattr(PythonState, "is_current", lambda state: True)
    model.layers[0].scale = 3.0
    assert torch.equal(compiled(X).cpu(), before)
