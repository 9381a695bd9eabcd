"""Optimizers over parameters on the device, beside torch on the CPU."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import tpuport
from tpuport import compat
from tpuport.training import optimizers

STEPS = 6
X = torch.randn(STEPS, 5, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randn(STEPS, 5, 3, generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    tpuport.enable()
    yield
    tpuport.disable()
    # As other tests find it, which do not enable anything.
    compat.environment()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def train(
    model: nn.Module, optimizer: Any, between: Callable[[nn.Module], Any] = lambda model: None
) -> list[float]:
    """The losses of a loop with a learning rate that changes in each step."""
    device = next(model.parameters()).device
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    losses = []
    for x, y in zip(X.to(device), Y.to(device), strict=True):
        loss = (model(x) - y).square().mean()
        loss.backward()
        between(model)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def both(make: Callable[[nn.Module], Any], **options: Any) -> tuple[list[nn.Module], list[Any]]:
    """A model on the CPU and one on the device, trained, and their optimizers."""
    models = [network(), tpuport.port(network())]
    made = [make(model) for model in models]
    losses = [train(model, each, **options) for model, each in zip(models, made, strict=True)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    for expected, given in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(given.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-6)
    return models, made


OPTIMIZERS = {
    "SGD": {"lr": 0.1}, "momentum": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"lr": 0.01, "amsgrad": True}, "AdamW": {"lr": 0.01}, "NAdam": {}, "RAdam": {}, "Adamax": {}, "Adagrad": {},
    "Adadelta": {}, "RMSprop": {"lr": 0.01, "centered": True, "momentum": 0.5}, "Rprop": {}, "ASGD": {},
    "Adafactor": {},
}  # fmt: skip


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_torch_runs_as_programs(name: str, foreach: bool | None) -> None:
    cls = getattr(torch.optim, name if name != "momentum" else "SGD")
    (_, model), (_, optimizer) = both(
        lambda model: cls(model.parameters(), **OPTIMIZERS[name], foreach=foreach)
    )
    programs = optimizers.programs_of(optimizer).programs
    count = len(programs)
    if name not in ("momentum", "RAdam", "ASGD", "Adafactor"):
        assert count == 1
    # The others begin otherwise than they go on, or read values; another learning rate compiles nothing.
    train(model, optimizer)
    assert len(programs) == count
    assert {program.compilations for program in programs.values()} <= ({1, 2} if name == "ASGD" else {1})


def test_states_go_to_the_host_and_back() -> None:
    models, made = both(lambda model: torch.optim.AdamW(model.parameters(), lr=0.01))
    expected, given = (optimizer.state_dict() for optimizer in made)
    assert expected.keys() == given.keys()
    for number, state in expected["state"].items():
        for name, value in state.items():
            torch.testing.assert_close(given["state"][number][name].cpu(), value, rtol=1e-4, atol=1e-7)
    other = torch.optim.AdamW(models[0].parameters(), lr=0.01)
    other.load_state_dict(given)
    ported = torch.optim.AdamW(models[1].parameters(), lr=0.01)
    ported.load_state_dict(expected)
    losses = [train(model, optimizer) for model, optimizer in zip(models, (other, ported), strict=True)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-6)


def test_fused_kernels_are_not_missed() -> None:
    both(lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True))


def test_groups_and_frozen_parameters() -> None:
    def make(model: nn.Module) -> Any:
        model[0].bias.requires_grad_(False)
        groups = [
            {"params": [model[0].weight], "lr": 0.05, "weight_decay": 0.1},
            {"params": [model[0].bias, *model[2].parameters()]},
        ]
        return torch.optim.AdamW(groups, lr=0.01)

    both(make)


@pytest.mark.parametrize(
    "clip",
    [
        lambda model: clip_grad_norm_(model.parameters(), 0.1),
        lambda model: clip_grad_value_(model.parameters(), 0.05),
    ],
)
def test_clipping(clip: Callable[[nn.Module], Any]) -> None:
    both(lambda model: torch.optim.SGD(model.parameters(), lr=0.1), between=clip)


def test_the_norm_that_clipping_returns() -> None:
    norms: list[float] = []
    both(
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        between=lambda model: norms.append(clip_grad_norm_(model.parameters(), 1.0).item()),
    )
    torch.testing.assert_close(norms[STEPS:], norms[:STEPS], rtol=1e-5, atol=1e-6)


class Lion(torch.optim.Optimizer):
    """An optimizer as its users write one, parameter by parameter."""

    def __init__(self, parameters: Any, lr: float = 0.01, beta: float = 0.9) -> None:
        super().__init__(parameters, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                    state["steps"] = 0
                state["steps"] += 1
                update = state["average"] * group["beta"] + parameter.grad * (1 - group["beta"])
                parameter -= torch.sign(update) * group["lr"] / state["steps"] ** 0.5
                state["average"].copy_(update)


def test_an_optimizer_of_somebody_else() -> None:
    _, (_, optimizer) = both(lambda model: Lion(model.parameters()))
    assert len(optimizers.programs_of(optimizer).programs) == 1


class Buffered(torch.optim.Optimizer):
    """Writes what the host computes into one buffer, for one parameter after the other."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.buffer = torch.zeros(1, device=self.param_groups[0]["params"][0].device)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            self.buffer.copy_(torch.full((1,), 0.01 * (number + 1)))
            parameter.add_(self.buffer).sub_(parameter.grad, alpha=self.param_groups[0]["lr"])


class ByData(torch.optim.Optimizer):
    """Writes by `.data`, which is another tensor each time."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.data.mul_(0.99)
            parameter.data.add_(parameter.grad.data, alpha=-self.param_groups[0]["lr"])
            parameter.data.add_(parameter.data.sign(), alpha=1e-3)


def test_an_optimizer_that_writes_by_data() -> None:
    both(lambda model: ByData(model.parameters()))


def test_a_buffer_that_is_written_between_operators() -> None:
    both(lambda model: Buffered(model.parameters()))


class Trusting(torch.optim.SGD):
    """Reads values of the device in its step."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                norm = parameter.grad.norm().item()
                parameter.grad.mul_(0.5 if norm > 0.1 else 2.0)
        return super().step(closure)


def test_a_step_that_reads_values() -> None:
    both(lambda model: Trusting(model.parameters(), lr=0.1))


def test_closures() -> None:
    models = [network(), tpuport.port(network())]
    losses = []
    for model in models:
        device = next(model.parameters()).device
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

        def closure(
            model: nn.Module = model, device: Any = device, optimizer: Any = optimizer
        ) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(X[0].to(device)) - Y[0].to(device)).square().mean()
            loss.backward()
            return loss

        losses.append([optimizer.step(closure).item(), closure().item()])
        simple = torch.optim.SGD(model.parameters(), lr=0.1)
        losses[-1] += [simple.step(closure).item(), closure().item()]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-5)


def test_hooks_of_a_step() -> None:
    calls: list[str] = []

    def make(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        return optimizer

    both(make)
    assert calls == ["before", "after"] * 2 * STEPS


def test_copies_keep_their_values_when_a_step_overwrites_the_parameters() -> None:
    model = tpuport.port(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    weight = model[0].weight
    before = weight.detach().cpu()
    copies = [weight.detach().clone(), copy.deepcopy(weight), weight + 0]
    view = weight.detach()[0]
    train(model, optimizer)
    for each in copies:
        torch.testing.assert_close(each.detach().cpu(), before)
    torch.testing.assert_close(view.cpu(), weight.detach().cpu()[0])
    assert not torch.equal(weight.detach().cpu(), before)


def test_an_error_in_a_step_keeps_what_ran_before() -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            raise KeyError("after the update")

    model, other = network(), tpuport.port(network())
    for each in (model, other):
        optimizer = Failing(each.parameters(), lr=0.1)
        with pytest.raises(KeyError, match="after the update"):
            train(each, optimizer)
    for expected, given in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(given.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-6)


def test_disable_gives_torch_its_own_back() -> None:
    model = tpuport.port(network())
    torch.optim.SGD(model.parameters(), lr=0.1)
    replaced = torch.optim.SGD.step, torch.nn.utils.clip_grad_norm_
    tpuport.disable()
    own = torch.optim.SGD.step, torch.nn.utils.clip_grad_norm_
    assert not {*replaced} & {*own}
    assert own[1] is clip_grad_norm_
    tpuport.enable()
