"""Whatever traces a model to look at it leaves the model, and all that its code reaches, as it was."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch import nn

import tpuport
from tpuport import compilation
from tpuport.objects.state.python_state import PythonState
from tpuport.objects.state.state_places import take_snapshots
from tpuport.topology import abstract_steps

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
SEEN: list = []
TABLE: dict = {}


class Slotted:
    __slots__ = ("value",)


HOLDER = Slotted()


class Fails(Exception):
    pass


class Busy(nn.Module):
    """Leaves something in every place that code can reach."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        # One module under two names, and one weight under two names.
        self.alias = self.linear
        self.tied = nn.Linear(2, 2)
        self.tied.weight = self.linear.weight
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.norm = nn.BatchNorm1d(2)
        self.last: Any = None
        self.calls = 0
        self.history: list = []
        self.table = torch.arange(2.0)
        self.fails = fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.tied(self.alias(x)) + self.table.to(x.device)
        self.last = y
        self.table = self.table.to(x.device)
        self.calls += 1
        self.history.append(y)
        self.mean.add_(y.mean(0).detach())
        self.count += 1
        self.part = nn.Identity()
        self.register_buffer("later", y.detach())
        SEEN.append(y)
        TABLE["rows"] = [y]
        HOLDER.value = y
        y = self.norm(y)
        if self.fails:
            raise Fails
        return y


def everything(model: nn.Module) -> list[Any]:
    """Every value that the model's code can reach, by identity, and tensors by their values, too."""
    contents: list[Any] = []
    state = PythonState(model, [model])
    for snapshot in take_snapshots(state):
        for name, value in snapshot.contents.items():
            own = value if isinstance(value, torch.Tensor) else None
            plain = value if isinstance(value, int | str | float) else id(value)
            contents.append(
                (snapshot.location.part, name, plain, own is not None and tpuport.to_cpu(own).tolist())
            )
    contents += [(id(tensor), sorted(vars(tensor))) for tensor in (*model.parameters(), *model.buffers())]
    return contents


def infer(model: Any) -> None:
    tpuport.ShardingRules.infer(model, X)


def check(model: Any) -> None:
    tpuport.check(model, X)


def lower(model: Any) -> None:
    tpuport.compile(model).lower(X)


def rotary(model: Any) -> None:
    tpuport.precompute_rotary(model, X)


def describe(model: Any) -> None:
    """What `tpuport compile` traces."""
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("tp",))
    weights = compilation.collect_weights(model)
    step = abstract_steps.forward(model, {"x": X}, weights, mesh)
    jax.eval_shape(step.function, *step.arguments)


def call(model: Any) -> None:
    model(X)


def call_compiled(model: Any) -> None:
    tpuport.compile(model)(X)


LOOKS = [infer, check, lower, rotary, describe]
ON_HOST = (infer, check)


@pytest.fixture(autouse=True)
def no_state() -> None:
    SEEN.clear()
    TABLE.clear()
    with contextlib.suppress(AttributeError):
        del HOLDER.value


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("look", LOOKS)
def test_what_looks_at_a_model_leaves_nothing(look: Callable, fails: bool) -> None:
    model: Any = Busy(fails).eval().requires_grad_(False)
    if look not in ON_HOST:
        model = tpuport.port(model)
    before = everything(model)
    with contextlib.suppress(Fails, tpuport.PortError):
        look(model)
    assert everything(model) == before
    assert not SEEN
    assert not TABLE


@pytest.mark.parametrize("run", [call, call_compiled])
def test_a_call_that_fails_leaves_nothing(run: Callable) -> None:
    model = tpuport.port(Busy(fails=True).eval().requires_grad_(False))
    before = everything(model)
    with pytest.raises(Exception):  # noqa: B017  an error of the user's own
        run(model)
    assert everything(model) == before


def test_training_mode_of_a_model_under_two_names() -> None:
    model = Busy(fails=False).requires_grad_(False)
    before = everything(model)
    infer(model)
    assert everything(model) == before
