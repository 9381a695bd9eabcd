"""Rounding near zero is told apart from a wrong formula with small values."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.nn import functional

import tpuport
from tpuport.verification import CheckResult

EQUAL = torch.full((4, 768), 0.3)
RANDOM = torch.rand(4, 768, generator=torch.Generator().manual_seed(0))


class Computes(torch.nn.Module):
    """Gives a result to a module of its own, so that it is compared as an argument too."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.inner = torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.function(x))


def check(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> CheckResult:
    return tpuport.check(Computes(function), x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(-1, keepdim=True),
        lambda x: x * 1.7 - (x * 1.7).mean(-1, keepdim=True),
        lambda x: functional.layer_norm(x, (768,)),
        lambda x: x.var(-1),
    ],
    ids=["centered", "centered product", "layer norm", "variance"],
)
def test_what_is_left_of_numbers_that_cancel_is_rounding(function: Callable) -> None:
    # torch adds equal numbers without an error, by chance.
    result = check(function, EQUAL)
    assert result.ok, result.to_text()


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
def test_a_number_of_float64_that_the_device_rounds_once_is_rounding() -> None:
    result = check(lambda x: x.double() * 1.1, RANDOM)
    assert result.ok, result.to_text()


@pytest.mark.parametrize("size", [1.0, 1e-9, 1e-20])
@pytest.mark.parametrize("factor", [1.001, 1.0001])
def test_a_wrong_formula_is_found_however_small_its_values_are(
    size: float, factor: float, replace_operator: Callable
) -> None:
    replace_operator(functional.silu, lambda x, inplace=False: jax.nn.silu(x) * factor)
    [finding] = check(lambda x: functional.silu(x) * size, RANDOM).errors
    assert (finding.kind, finding.details["operator"]) == ("result", "silu")


def test_a_wrong_sum_is_found_where_numbers_cancel(replace_operator: Callable) -> None:
    replace_operator(torch.mean, lambda x, axis, keepdim=False: jnp.mean(x, axis, keepdims=keepdim) * 1.001)
    [finding] = check(lambda x: x - torch.mean(x, -1, keepdim=True), EQUAL).errors
    assert (finding.kind, finding.details["operator"]) == ("result", "mean")
