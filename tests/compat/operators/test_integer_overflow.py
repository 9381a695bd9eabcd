"""Integers of 64 bits that the device's 32 do not hold: an error, as every other result is torch's."""

from collections.abc import Callable

import pytest
import torch

import tpuport
from tpuport import PortError

LARGE = torch.tensor([1, 2**30, 7])
SMALL = torch.tensor([3, -4, 5])
ROW = torch.tensor([0, 0, 1])
OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum of two": lambda x: x + x,
    "difference": lambda x: -x * 2 - 1,
    "product": lambda x: x * 3,
    "power": lambda x: x**2,
    "shift": lambda x: x << 2,
    "cumulative sum": lambda x: torch.cat([x, x]).cumsum(0),
    "product of all": lambda x: x.prod(),
    "product of matrices": lambda x: x[None] @ x[:, None],
    "contraction": lambda x: torch.einsum("i,i->", x, x),
    "in place": lambda x: x.clone().mul_(5),
    "by index": lambda x: torch.zeros_like(x).index_add(0, ROW.to(x.device), x + (2**30 - 1)),
    "reduced": lambda x: torch.zeros_like(x).scatter_reduce_(0, ROW.to(x.device), x + (2**30 - 1), "sum"),
    "put": lambda x: torch.zeros_like(x).put_(ROW.to(x.device), x + (2**30 - 1), accumulate=True),
    "put by index": lambda x: torch.zeros_like(x).index_put_(
        (ROW.to(x.device),), x + (2**30 - 1), accumulate=True
    ),
    "scattered with a sum": lambda x: torch.zeros_like(x).scatter_(
        0, ROW.to(x.device), x + (2**30 - 1), reduce="add"
    ),
    "negation": lambda x: -(-(2**30) - x[1:2] - x.clamp_max(0)),
    "convolution": lambda x: torch.nn.functional.conv1d(x[None, None], x[None, None]),
    "sum but for nan": lambda x: torch.cat([x, x]).nansum(),
    "power in place": lambda x: x.clone().pow_(torch.full_like(x, 2)),
    "quotient": lambda x: (-(2**30) - x[1:2]) // -1,
    "rounded quotient": lambda x: torch.div(-(2**30) - x[1:2], torch.full_like(x, -1), rounding_mode="trunc"),
    "least common multiple": lambda x: torch.lcm(x, x + 1),
    "greatest common divisor": lambda x: torch.gcd(-(2**30) - x[1:2], x[:1] - x[:1]),
    "bilinear": lambda x: torch.nn.functional.bilinear(x[None], x[None], x.expand(1, 3, 3)),
    "product by index": lambda x: torch.full_like(x, 4).index_reduce_(0, ROW.to(x.device), x, "prod"),
    "scattered": lambda x: torch.zeros_like(x).scatter_add_(0, ROW.to(x.device), x + (2**30 - 1)),
}


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter", "ignore:index_reduce")
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_error_in_place_of_a_wrapped_result(name: str) -> None:
    operation = OPERATIONS[name]
    assert operation(LARGE).abs().max() >= 2**31
    with pytest.raises(PortError, match=r"beyond 2\*\*31(.|\n)*test_integer_overflow.py, line"):
        operation(LARGE.to("jax"))
    small = SMALL.clamp_min(0) if name == "shift" else SMALL
    assert torch.equal(operation(small.to("jax")).cpu(), operation(small))


def test_results_up_to_the_last_number_of_32_bits_are_torchs() -> None:
    largest = torch.tensor([2**31 - 1, -(2**31)])
    for operation in (lambda x: x + 0, lambda x: x * 1, lambda x: x.sum(), lambda x: -1 - x):
        assert torch.equal(operation(largest.to("jax")).cpu(), operation(largest))


def test_what_is_infinite_in_float32_and_a_small_integer_in_torch_is_no_error() -> None:
    numbers, exponents = torch.tensor([0, 1, -1, 2]), torch.tensor([-1, -1, -3, -2])
    ported = numbers.to("jax")
    assert torch.equal((ported ** exponents.to("jax")).cpu(), numbers**exponents)
    assert torch.equal((0 ** exponents.to("jax")).cpu(), 0**exponents)
    assert torch.equal((ported << 64).cpu(), numbers << 64)
    least = torch.tensor(-(2**31))
    assert torch.equal((ported[1:3] ** least.to("jax")).cpu(), numbers[1:3] ** least)


def test_a_factor_of_integers_is_an_integer() -> None:
    matrices = LARGE.expand(1, 3, 3)
    product = LARGE.to("jax").addbmm(matrices.to("jax"), matrices.to("jax"), alpha=0.5)
    assert torch.equal(product.cpu(), LARGE.addbmm(matrices, matrices, alpha=0.5))


AVERAGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "by index": lambda x: torch.zeros_like(x).index_reduce(0, ROW.to(x.device), x + (2**30 - 1), "mean"),
    "scattered": lambda x: torch.zeros_like(x).scatter_reduce(0, ROW.to(x.device), x + (2**30 - 1), "mean"),
    "pooled": lambda x: torch.nn.functional.avg_pool1d(x[None, None] + (2**30 - 1), 2, padding=1),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_whose_total_has_wrapped_is_an_error(name: str) -> None:
    operation = AVERAGES[name]
    with pytest.raises(PortError, match=r"beyond 2\*\*31(.|\n)*test_integer_overflow.py, line"):
        operation(LARGE.to("jax"))
    small = SMALL - 2**29
    assert torch.equal(operation(small.to("jax")).cpu(), operation(small))


def test_integers_of_32_bits_wrap_as_in_torch() -> None:
    narrow = LARGE.to(torch.int32)
    assert torch.equal((narrow.to("jax") * 3).cpu(), narrow * 3)
    ported = narrow.to("jax")
    assert torch.equal(torch.einsum("i,i->i", ported, ported).cpu(), torch.einsum("i,i->i", narrow, narrow))
    matrices = narrow.expand(3, 3, 3)
    in_place = torch.zeros(3, 3, dtype=torch.int32).to("jax").addbmm_(matrices.to("jax"), matrices.to("jax"))
    assert torch.equal(in_place.cpu(), torch.zeros(3, 3, dtype=torch.int32).addbmm_(matrices, matrices))


def test_a_program_that_checks_its_indices_tells_of_it() -> None:
    def hash_ids(ids: torch.Tensor) -> torch.Tensor:
        return ids * 1_000_003 % 97

    compiled = tpuport.compile(hash_ids, check_indices=True)
    assert torch.equal(compiled(SMALL).cpu(), hash_ids(SMALL))
    with pytest.raises(RuntimeError, match=r"aten.mul.Tensor gives integers beyond 2\*\*31"):
        compiled(LARGE)
