import re

import pytest
import torch

import tpuport
from tpuport import compat

EQUALS = torch.tensor([[2, 1, 2, 1, 0, 2], [5, 5, 3, 3, 5, 3]])
FLOATS = torch.tensor([[3.0, torch.nan, -1.0, torch.inf, 0.5, -torch.inf]])

CASES = {
    "sort": lambda e, f: torch.sort(e, stable=True),
    "sort downwards": lambda e, f: e.sort(dim=0, descending=True, stable=True),
    "sort of bools": lambda e, f: torch.sort(e > 1, stable=True),
    "sort of bools downwards": lambda e, f: torch.sort(e > 1, descending=True, stable=True),
    "sort with NaN": lambda e, f: f.sort(),
    "sort of a number": lambda e, f: f[0, 0].sort(),
    "argsort": lambda e, f: e.argsort(stable=True),
    "argsort of bools": lambda e, f: torch.argsort(e > 1, descending=True, stable=True),
    "topk with NaN": lambda e, f: f.topk(3),
    "smallest with NaN": lambda e, f: f.topk(6, largest=False),
    "topk of another dimension": lambda e, f: torch.topk(torch.stack([f[0], -f[0] - 1]), 1, dim=0),
    "topk of a number": lambda e, f: f[0, 0].topk(1),
    "smallest unsigned": lambda e, f: (
        torch.tensor([3, 0, 200], dtype=torch.uint8).to(e.device).topk(2, largest=False)
    ),
    "values of topk among equals": lambda e, f: e.topk(4)[0],
    "kth value": lambda e, f: [*f.kthvalue(2), *f.kthvalue(6, keepdim=True), *f[0, 0].kthvalue(1)],
    "kth value of the least integers": lambda e, f: ((e[0] - 2) * 2**30).kthvalue(1)[0],
    "mode": lambda e, f: e.mode(),
    "mode of another dimension": lambda e, f: torch.mode(e, 0, keepdim=True),
    "mode of bools": lambda e, f: (e > 1).mode(),
    "mode of floats": lambda e, f: (e / 2).mode(-1),
    "mode of a number": lambda e, f: e[0, 0].mode(),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees(agree, name):
    agree(CASES[name], EQUALS, FLOATS, jit="unsigned" not in name)


def test_topk_names_the_first_of_equals():
    """Which of them torch names first depends on the device."""
    x = compat.to_jax(torch.tensor([7.0, 1, 7, 7, 0]))
    with compat.environment():
        assert compat.as_torch(x).topk(2)[1].tolist() == [0, 2]


@pytest.mark.parametrize("options", [{}, {"right": True}, {"side": "right"}])
def test_searchsorted(agree, options):
    agree(
        lambda b, x: torch.searchsorted(b, x, **options),
        torch.tensor([1.0, 2.0, 2.5]),
        torch.tensor([[0.0, 2.0], [2.2, 9.0]]),
    )


def test_searchsorted_in_rows(agree):
    agree(torch.searchsorted, torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[2, 9], [5, 0]]))
    agree(lambda b: torch.searchsorted(b, 2.5), torch.tensor([1, 2, 3]))
    agree(
        lambda b, s: torch.searchsorted(b, torch.full_like(b, 2.1), sorter=s),
        torch.tensor([2.0, 2.5, 1.0]),
        torch.tensor([2, 0, 1]),
    )


@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
@pytest.mark.parametrize("rank", [torch.nan, torch.inf, -0.1, 1.5])
def test_ranks_that_are_none(name, rank):
    ranks = torch.tensor([0.5, rank])
    message = re.escape("quantile() q values must be in the range [0, 1]")
    for x, q in ((FLOATS, ranks), (FLOATS.to("jax"), ranks.to("jax"))):
        with pytest.raises(RuntimeError, match=message):
            getattr(torch, name)(x, q)
        with pytest.raises(RuntimeError, match=message):
            getattr(x, name)(q, dim=1, keepdim=True)


def test_ranks_that_are_none_in_a_program_that_checks():
    ranks = torch.tensor([0.5, torch.nan])
    with pytest.raises(RuntimeError, match="q values must be in the range"):
        tpuport.compile(torch.quantile, check_indices=True)(FLOATS, ranks)


def test_quantiles(agree):
    def quantiles(x, q):
        return [
            function(x, ranks, dim=1, interpolation=interpolation)
            for function in (torch.quantile, torch.nanquantile)
            for ranks in (q, 0.3)
            for interpolation in ("linear", "lower", "nearest")
        ]

    agree(
        quantiles, torch.tensor([[3.0, 1.0, torch.nan, 2.0], [4.0, 5.0, 0.0, 1.0]]), torch.tensor([0.0, 0.7])
    )
