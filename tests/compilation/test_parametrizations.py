"""Parametrizations of torch, registered on a model that is on the device."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import tpuport
from tpuport import PortError, compat

X = torch.tensor([[1.0, 2.0, 3.0]])


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


class Squared(Symmetric):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x

    def right_inverse(self, x: torch.Tensor) -> torch.Tensor:
        return x.abs().sqrt()


@pytest.mark.parametrize(
    "register",
    [
        lambda layer: parametrize.register_parametrization(layer, "weight", Symmetric()),
        lambda layer: parametrize.register_parametrization(layer, "weight", Squared()),
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
    ],
    ids=["symmetric", "right_inverse", "weight_norm", "spectral_norm"],
)
def test_registered_on_a_ported_model(register: Callable) -> None:
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(3, 3)).eval().requires_grad_(False)
    model = tpuport.port(copy.deepcopy(reference))
    model(X)
    for sequence in (reference, model):
        torch.manual_seed(1)
        register(sequence[0])
        sequence.eval()
    torch.testing.assert_close(model(X).cpu(), reference(X))
    for sequence in (reference, model):
        parametrize.remove_parametrizations(sequence[0], "weight")
    torch.testing.assert_close(model(X).cpu(), reference(X))
    torch.testing.assert_close(model[0].weight.cpu(), reference[0].weight)


def test_set_shares_memory() -> None:
    def run(x: Any, y: Any) -> list[Any]:
        view = x.view(-1)
        results = [x.set_(y) is x]
        y.add_(1)
        x[0] = 5
        view.add_(10)
        return [*results, x, y, view]

    expected = run(torch.arange(4.0).view(2, 2), torch.arange(3.0))
    on_device = [compat.wrap(compat.to_jax(x)) for x in (torch.arange(4.0).view(2, 2), torch.arange(3.0))]
    torch.testing.assert_close(tpuport.to_cpu(run(*on_device)), expected)


def test_set_refuses() -> None:
    x = compat.wrap(compat.to_jax(torch.ones(2)))
    with pytest.raises(PortError, match=r"x\.set_\(y\.to"):
        x.set_(torch.ones(2))
    with pytest.raises(RuntimeError):
        torch.ones(2).set_(torch.ones(2, dtype=torch.int32))
    with pytest.raises(RuntimeError):
        x.set_(compat.wrap(compat.to_jax(torch.ones(2, dtype=torch.int32))))
