import pytest
import torch

from tpuport import compat

FLOATS = torch.randn(4, 6)
INTEGERS = torch.arange(24).reshape(4, 6) - 5

CASES = {
    "sum": lambda x, i: x.sum(),
    "sum of a dimension": lambda x, i: x.sum(-1, keepdim=True),
    "sum of no dimensions": lambda x, i: x.sum(dim=()),
    "sum of two dimensions": lambda x, i: x.sum((0, 1)),
    "sum in another dtype": lambda x, i: x.bfloat16().sum(-1, dtype=torch.float32),
    "sum of bools": lambda x, i: (x > 0).sum(-1),
    "sum of small integers": lambda x, i: (i.to(torch.int8) * 20).sum(),
    "sum of a scalar": lambda x, i: x[0, 0].sum(0),
    "mean": lambda x, i: x.mean(),
    "mean of a dimension": lambda x, i: x.mean(0, keepdim=True),
    "mean in another dtype": lambda x, i: x.bfloat16().mean(-1, dtype=torch.float32),
    "mean of integers": lambda x, i: i.mean(-1, dtype=torch.float32),
    "sum of numbers": lambda x, i: torch.where(x > 0, x, torch.nan).nansum(-1),
    "variance": lambda x, i: x.var(),
    "variance of a dimension": lambda x, i: x.var(0, keepdim=True),
    "variance of no dimensions": lambda x, i: x.var(()),
    "variance of a scalar": lambda x, i: [x[0, 0].var(0), x[0, 0].std(-1), x[0, 0].var(0, correction=0)],
    "variance with a correction": lambda x, i: x.std(-1, correction=2.5),
    "variance of fewer elements than its correction": lambda x, i: x.var(0, correction=5),
    "variance of bfloat16": lambda x, i: x.bfloat16().var(-1),
    "variance and mean": lambda x, i: torch.var_mean(x, 1, correction=0),
    "variance and mean of a scalar": lambda x, i: torch.var_mean(x[0, 0], 0),
    "running sum": lambda x, i: x.cumsum(-1),
    "running sum of bools": lambda x, i: (x > 0).cumsum(0),
    "running sum of small integers": lambda x, i: (i.to(torch.int8) * 20).cumsum(0),
    "running sum in another dtype": lambda x, i: (x > 0).cumsum(-1, dtype=torch.int32),
    "running maximum": lambda x, i: x.cummax(-1),
    "running maximum with ties": lambda x, i: (i % 3).cummax(1),
    "running minimum": lambda x, i: x.cummin(0),
    "running minimum of a scalar": lambda x, i: x[0, 0].cummin(0),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", CASES)
def test_agrees(agree, name):
    agree(CASES[name], FLOATS, INTEGERS)


@pytest.mark.parametrize("function", [torch.var, torch.std, torch.var_mean])
def test_integers_have_no_variance(function):
    with compat.environment(), pytest.raises(RuntimeError, match="floating point"):
        function(compat.wrap(compat.to_jax(INTEGERS)))


def test_running_maximum_keeps_nan(agree):
    agree(lambda x: x.cummax(0), torch.tensor([1.0, torch.nan, 3.0, torch.nan]))


def test_covariances(agree):
    def covariances(x, counts, weights):
        return [
            torch.cov(x),
            torch.cov(x[0]),
            torch.cov(x, fweights=counts),
            torch.cov(x, aweights=weights, correction=0),
            x.cov(fweights=counts, aweights=weights),
        ]

    agree(covariances, torch.randn(3, 5), torch.tensor([1, 2, 1, 3, 1]), torch.rand(5), tolerance=1e-4)


def test_covariances_of_large_integers(agree):
    x = torch.tensor([[2**31 - 1, 2**30, 2**31 - 129], [5, -(2**31), 2**30]])
    agree(lambda x, counts: [torch.cov(x[0]), torch.cov(x, fweights=counts)], x, torch.tensor([3, 1, 2]))


@pytest.mark.parametrize("weights", [torch.ones(2, 5).long(), torch.ones(5), torch.ones(4).long()], ids=str)
def test_covariances_of_weights_that_torch_refuses(weights):
    x = torch.randn(3, 5)
    with pytest.raises(RuntimeError, match="fweights"):
        torch.cov(x, fweights=weights)
    with compat.environment(), pytest.raises(RuntimeError, match="fweights"):
        torch.cov(
            *(compat.wrap(compat.to_jax(part)) for part in (x,)), fweights=compat.wrap(compat.to_jax(weights))
        )


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1.5, float("inf"), float("-inf")])
def test_vector_norm(agree, order):
    def norms(x):
        return [
            torch.linalg.vector_norm(x, order),
            torch.linalg.vector_norm(x, order, dim=(0, -1), keepdim=True),
            torch.linalg.vector_norm(x[0, 0, 0], order),
            torch.linalg.vector_norm(x.half(), order, dim=1, dtype=torch.float32),
            torch.linalg.vector_norm(torch.complex(x, x + 1), order, dim=1),
        ]

    agree(norms, torch.randn(2, 3, 4) + 0.1, tolerance=1e-3, eager=False)


def test_any_of_complex_numbers(agree):
    x = torch.tensor([[1j, 0, -0.0], [0, 0, 0], [torch.nan, 2j, 1]])

    def whether(x):
        return [
            x.any(),
            x.any(1),
            torch.any(x, (0, 1), keepdim=True),
            torch.any(x, ()),
            x[0, 0].any(),
            x[0, 0].any(0),
            x.all(1),
        ]

    agree(whether, x)
    agree(
        lambda x: [*whether(x.real), *whether(x.real > 0), *whether(x.real.nan_to_num().to(torch.uint8))], x
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
@pytest.mark.parametrize("shape", [(3, 5), (0, 2), (2, 2), (1, 4), (4,)])
def test_correlations(agree, shape, dtype):
    x = (torch.randn(shape) * 4).to(dtype)
    agree(torch.corrcoef, x, tolerance=2e-2 if dtype == torch.bfloat16 else 1e-5)
