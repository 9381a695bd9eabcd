"""Divisions of integers: to the last digit, and torch's error for a divisor of zero."""

from collections.abc import Callable

import pytest
import torch

import tpuport

DIVIDENDS = torch.tensor([7, -7, 2**30 + 1, 2**31 - 1, -(2**31), 0])
DIVISORS = torch.tensor([2, 2, 3, -5, 7, -1])
DIVISIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "floor": lambda x, y: x // y,
    "truncated": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "in place": lambda x, y: x.clone().div_(y, rounding_mode="floor"),
    "by a number": lambda x, y: torch.div(x, 3, rounding_mode="trunc") + y,
    "remainder": lambda x, y: x % y,
    "remainder of a number": lambda x, y: 5 % y,
    "fmod": torch.fmod,
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("name", DIVISIONS)
def test_quotients_have_all_digits(agree, name, dtype):
    agree(DIVISIONS[name], DIVIDENDS.to(dtype), DIVISORS.to(dtype), tolerance=0)


def test_floats_are_rounded_as_before(agree):
    x, y = torch.tensor([7.5, -7.5, 1e30]), torch.tensor([2.0, 2.0, 3.0])
    agree(lambda x, y: [torch.div(x, y, rounding_mode=mode) for mode in ("trunc", "floor", None)], x, y)


@pytest.mark.parametrize("name", sorted(DIVISIONS.keys() - {"by a number"}))
def test_a_divisor_of_zero_is_torchs_error(name):
    x, y = torch.tensor([5, 7]), torch.tensor([1, 0])
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            DIVISIONS[name](x.to(device), y.to(device))


def test_numbers_and_empty_tensors():
    for device in ("cpu", "jax"):
        ported = torch.tensor([5, 7]).to(device)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            torch.remainder(ported, 0)
        assert (ported[:0] // 0).shape == (0,)
        assert torch.equal((ported / 0).cpu(), torch.full((2,), torch.inf))


def test_a_program_that_checks_its_indices_tells_of_a_divisor_of_zero():
    compiled = tpuport.compile(lambda x, y: x // y, check_indices=True)
    assert torch.equal(compiled(DIVIDENDS, DIVISORS).cpu(), DIVIDENDS // DIVISORS)
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError\n  where: .*test_integer_division.py, line"):
        compiled(DIVIDENDS, DIVISORS * 0)
    with pytest.raises(RuntimeError, match=r"beyond 2\*\*31"):
        compiled(DIVIDENDS, DIVISORS * 0 - 1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_common_divisors_and_multiples(agree, dtype):
    x, y = torch.tensor([12, 0, 7, 0, 180]), torch.tensor([18, 5, 7, 0, 24])
    agree(
        lambda x, y: [torch.gcd(x, y), torch.lcm(x[:4], y[:4]), x.clone().gcd_(y)], x.to(dtype), y.to(dtype)
    )


def test_divisors_of_the_least_integer(agree):
    agree(torch.gcd, torch.tensor([-(2**31), 3, -(2**31)]), torch.tensor([3, -(2**31), 2**30]), tolerance=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_coordinates_of_places(agree, dtype):
    places = torch.tensor([[0, 7, 19], [20, 65536, -3]]).to(dtype)
    agree(lambda x: [*torch.unravel_index(x, (4, 5)), *torch.unravel_index(x, 7)], places, tolerance=0)
