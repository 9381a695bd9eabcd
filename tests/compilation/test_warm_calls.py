"""Calls that repeat an earlier one: nothing is prepared again, and nothing is missed that has changed."""

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch

import tpuport
from tpuport.compat import convert
from tpuport.compilation.call_preparation import CallPreparation

SCALE = 2.0


class Helper:
    """A plain object that a model reads."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.parts = [1.0, 2.0]
        self.named = {"bias": 0.5}


class Model(torch.nn.Module):
    """Reads what compiled code can read: weights, buffers, attributes, objects, containers, a global."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.dropout = torch.nn.Dropout(0.0)
        self.register_buffer("offset", torch.arange(4.0))
        self.helper = Helper()
        self.exponent = 1
        self.eval()

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, power: int = 1) -> torch.Tensor:
        helper = self.helper
        x = self.linear(x) * helper.factor * sum(helper.parts) + helper.named["bias"] + self.offset
        x = x * SCALE * self.exponent
        if self.training:
            x = x + 1
        return x**power if y is None else (x**power, x + y)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has one more element for each call that was prepared."""
    calls: list[int] = []
    prepare = CallPreparation.prepare

    def counted(self: CallPreparation, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return prepare(self, *args, **kwargs)

    monkeypatch.setattr(CallPreparation, "prepare", counted)
    return calls


def both(seed: int = 0) -> tuple[Model, Model]:
    """A model on the host, and an equal one on the device."""
    torch.manual_seed(seed)
    host, ported = Model(), Model()
    ported.load_state_dict(host.state_dict())
    return host, tpuport.port(ported)


def same(actual: Any, expected: Any) -> bool:
    if isinstance(expected, tuple):
        return all(map(same, actual, expected))
    return torch.allclose(actual.cpu(), expected, atol=1e-5)


@pytest.mark.parametrize("call", [lambda model: tpuport.compile(model), lambda model: model])
@pytest.mark.parametrize("device", ["jax", "cpu"])
def test_a_repeated_call_is_not_prepared(call: Callable, device: str, prepared: list[int]) -> None:
    host, ported = both()
    function = call(ported)
    for repeat in range(4):
        x, y = torch.randn(2, 4), torch.randn(2, 4)
        assert same(function(x.to(device), y=y.to(device), power=2), host(x, y=y, power=2))
        if not repeat:
            prepared.clear()
    assert not prepared


def set_global(value: float) -> Callable[[Model], None]:
    return lambda _: globals().update(SCALE=value)


def add_hook(model: Model) -> None:
    model.linear.register_forward_hook(lambda module, args, output: output * 2)


def clear_hooks(model: Model) -> None:
    model.linear._forward_hooks.clear()


def replace_weight(model: Model) -> None:
    device = model.linear.weight.device
    weight = torch.arange(16.0).reshape(4, 4) / 8
    model.linear.weight = torch.nn.Parameter(weight.to(device))


def assign_data(model: Model) -> None:
    with torch.no_grad():
        model.linear.bias.data = torch.full((4,), 0.25).to(model.linear.bias.device)


def write_weight(model: Model) -> None:
    with torch.no_grad():
        model.linear.bias.add_(1)


def replace_buffer(model: Model) -> None:
    model.offset = torch.full((4,), 3.0).to(model.offset.device)


def replace_module(model: Model) -> None:
    linear = torch.nn.Linear(4, 4)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(4))
        linear.bias.zero_()
    model.linear = linear if model.offset.device.type == "cpu" else tpuport.port(linear)


CHANGES: dict[str, Callable[[Model], Any]] = {
    "attribute": lambda model: setattr(model, "exponent", model.exponent + 1),
    "attribute of an object": lambda model: setattr(model.helper, "factor", model.helper.factor + 0.5),
    "item of a list": lambda model: model.helper.parts.append(0.5),
    "item of a dictionary": lambda model: model.helper.named.update(bias=model.helper.named["bias"] + 1),
    "another object": lambda model: setattr(model, "helper", Helper()),
    "global": set_global(3.0),
    "mode": lambda model: model.train(not model.training),
    "hook": add_hook,
    "no hook": clear_hooks,
    "weight": replace_weight,
    "data of a weight": assign_data,
    "weight in place": write_weight,
    "buffer": replace_buffer,
    "module": replace_module,
    "nothing": lambda model: None,
    "instance dictionary": lambda model: vars(model).update(exponent=5),
    "back again": lambda model: (setattr(model, "exponent", 7), setattr(model, "exponent", 5)),
}


@pytest.mark.parametrize("seed", range(6))
def test_what_changes_between_calls_is_seen(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    host, ported = both(seed)
    compiled = tpuport.compile(ported)
    draws = random.Random(seed)
    for step in range(12):
        x = torch.randn(2, 4)
        # Twice, so that the second call could be a warm one.
        for function in (compiled, ported):
            assert same(function(x.to("jax")), host(x)), step
        name = draws.choice(sorted(CHANGES))
        for model in (host, ported):
            CHANGES[name](model)
        assert same(compiled(x.to("jax")), host(x)), (step, name)


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_each_change_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    host, ported = both()
    compiled, x = tpuport.compile(ported), torch.randn(2, 4)
    for _ in range(2):
        assert same(compiled(x.to("jax")), host(x))
    for model in (host, ported):
        CHANGES[name](model)
    for _ in range(2):
        assert same(compiled(x.to("jax")), host(x))


def test_other_arguments_are_other_calls() -> None:
    host, ported = both()
    compiled = tpuport.compile(ported)
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    calls: list[tuple[tuple, dict]] = [
        ((x,), {}), ((x, y), {}), ((x, x), {}), ((x,), {"power": 2}), ((x,), {"power": True}), ((x,), {"y": y}),
        ((x,), {"power": 2.0}), ((x,), {"power": -0.0}),
        ((x[:1],), {}), ((x.double(),), {}), ((x, None, 2), {}),
    ]  # fmt: skip
    for _ in range(2):
        for args, kwargs in calls:
            expected = (
                host.double()(*args, **kwargs)
                if args[0].dtype is torch.float64
                else host.float()(*args, **kwargs)
            )
            expected = expected.float() if isinstance(expected, torch.Tensor) else expected
            assert same(compiled(*args, **kwargs), expected)


def test_integers_of_32_bits_stay_such() -> None:
    compiled = tpuport.compile(lambda x: x + 1)
    for _ in range(3):
        for dtype in (torch.int32, torch.int64):
            x = torch.arange(3, dtype=dtype)
            for value in (x, x.to("jax")):
                assert compiled(value).dtype is dtype


def test_a_donated_tensor_is_refused_in_a_warm_call_too() -> None:
    keep = tpuport.compile(lambda x: x + 1)
    give = tpuport.compile(lambda x: x * 2, donate="x")
    x = torch.ones(3).to("jax")
    keep(x), keep(x)
    give(x)
    with pytest.raises(tpuport.PortError, match="donated"):
        keep(x)


def test_settings_of_torch_and_jax_are_seen() -> None:
    compiled = tpuport.compile(lambda x, y: x @ y)
    x = torch.full((2, 2), 1 / 3).to("jax")
    expected = compiled(x, x)
    compiled(x, x)
    with torch.autocast("cuda", torch.bfloat16):
        assert [compiled(x, x).dtype for _ in range(2)] == [torch.bfloat16] * 2
    assert compiled(x, x).dtype is torch.float32
    with jax.default_matmul_precision("highest"):
        highest = [compiled(x, x) for _ in range(2)][1]
    assert torch.allclose(highest.cpu(), expected.cpu(), atol=1e-2)
    count = compiled.program.compilations
    with jax.default_matmul_precision("highest"):
        compiled(x, x)
    compiled(x, x)
    assert compiled.program.compilations == count


HELD: dict[str, Model] = {}


def test_models_of_earlier_states_are_freed() -> None:
    HELD["model"] = tpuport.port(Model())
    compiled = tpuport.compile(lambda x: HELD["model"](x))
    for rows in (1, 2):
        compiled(torch.ones(rows, 4))
    reference = weakref.ref(HELD["model"].linear)
    HELD["model"] = tpuport.port(Model())
    for _ in range(2):
        compiled(torch.ones(1, 4))
    gc.collect()
    assert reference() is None


def arrays_alive(shape: tuple[int, ...]) -> int:
    gc.collect()
    return sum(array.shape == shape for array in jax.live_arrays())


@pytest.mark.parametrize("change", ["weight", "state", "cpu", "closure"])
def test_no_array_outlives_what_replaces_it(change: str) -> None:
    """Each time after calls of another form, which could have kept what they were prepared for."""
    shape = (37, 41)

    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(shape))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            table = getattr(self, "table", None)
            out = x + self.weight.sum()
            return out if table is None else out + table.sum()

    model = tpuport.port(Holder())
    compiled = tpuport.compile(lambda x: model(x))
    before = arrays_alive(shape)
    for size in range(1, 5):
        compiled(torch.ones(size)), model(torch.ones(size).to("jax"))
        if change == "weight":
            model.weight = torch.nn.Parameter(torch.full(shape, float(size)).to("jax"))
        elif change == "state":
            model.table = torch.full(shape, float(size)).to("jax")
        elif change == "closure":
            model = tpuport.port(Holder())
    if change == "cpu":
        model.cpu()
        assert arrays_alive(shape) == 0
        return
    compiled(torch.ones(9)), model(torch.ones(9).to("jax"))
    assert arrays_alive(shape) == before + (change == "state")


def test_tensors_of_the_host_are_copied_once_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tpuport.port(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).eval())
    copies: list[int] = []
    copy = convert.to_numpy

    def counted(tensor: torch.Tensor) -> Any:
        copies.append(tensor.numel())
        return copy(tensor)

    monkeypatch.setattr(convert, "to_numpy", counted)
    x = torch.randn(3, 4)
    for train in (False, False, True, True, False):
        copies.clear()
        model.train(train)(x)
        assert copies == [12]
