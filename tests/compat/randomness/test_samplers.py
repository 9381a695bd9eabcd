"""Every sampler: its distribution, its seeds, its dtypes and its errors; eagerly and in compiled functions.

The distributions are tested with fixed seeds against the exact cumulative distribution functions of scipy or the
probabilities of each value: the Kolmogorov-Smirnov and chi-square tests must not be surer than one in a thousand that
the numbers are of another distribution.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional as F  # noqa: N812

import tpuport
from tpuport import compat

N = 20_000
LEAST_P = 1e-3


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype, device="jax")


def host(tensor: torch.Tensor) -> torch.Tensor:
    return compat.to_torch(compat.as_jax(tensor)) if compat.is_ported(tensor) else tensor


def eager(function: Callable, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    with compat.environment():
        return host(function())


CONTINUOUS: dict[str, tuple[Callable, Any]] = {
    "rand": (lambda: torch.rand(N, device="jax"), stats.uniform()),
    "rand of a size": (lambda: torch.rand(size=(2, N // 2), device="jax"), stats.uniform()),
    "rand_like": (lambda: torch.rand_like(ones(N)), stats.uniform()),
    "randn": (lambda: torch.randn(N, device="jax"), stats.norm()),
    "randn in two dimensions": (lambda: torch.randn((2, N // 2), device="jax"), stats.norm()),
    "randn_like": (lambda: torch.randn_like(ones(N)), stats.norm()),
    "normal": (lambda: torch.normal(1.0, 2.0, (N,), device="jax"), stats.norm(1, 2)),
    "normal of tensors": (lambda: torch.normal(ones(N), 2 * ones(N)), stats.norm(1, 2)),
    "normal of a mean": (lambda: torch.normal(ones(N), 2.0), stats.norm(1, 2)),
    "normal of a deviation": (lambda: torch.normal(1.0, 2 * ones(N)), stats.norm(1, 2)),
    "normal_": (lambda: ones(N).normal_(1, 2), stats.norm(1, 2)),
    "uniform_": (lambda: ones(N).uniform_(-1, 3), stats.uniform(-1, 4)),
    "uniform_ by keywords": (lambda: ones(N).uniform_(to=3), stats.uniform(0, 3)),
    "exponential_": (lambda: ones(N).exponential_(2.0), stats.expon(scale=0.5)),
    "cauchy_": (lambda: ones(N).cauchy_(1, 2), stats.cauchy(1, 2)),
    "log_normal_": (lambda: ones(N).log_normal_(0.5, 0.7), stats.lognorm(0.7, scale=np.exp(0.5))),
    "rrelu": (lambda: -F.rrelu(-ones(N), training=True), stats.uniform(1 / 8, 1 / 3 - 1 / 8)),
    "rrelu_": (lambda: -torch.rrelu_(-ones(N), 0.1, 0.3, True), stats.uniform(0.1, 0.2)),
    "trunc_normal_": (lambda: torch.nn.init.trunc_normal_(ones(N)), stats.truncnorm(-2, 2)),
    "Gamma": (lambda: torch.distributions.Gamma(3 * ones(N), 2.0).sample(), stats.gamma(3, scale=0.5)),
    "Beta": (lambda: torch.distributions.Beta(2 * ones(N), ones(N)).sample(), stats.beta(2, 1)),
    "Laplace": (lambda: torch.distributions.Laplace(0 * ones(N), ones(N)).sample(), stats.laplace()),
    "Gumbel": (lambda: torch.distributions.Gumbel(0 * ones(N), ones(N)).sample(), stats.gumbel_r()),
    "StudentT": (lambda: torch.distributions.StudentT(5 * ones(N)).sample(), stats.t(5)),
}
COUNTS: dict[str, tuple[Callable, Any]] = {
    "randint": (lambda: torch.randint(10, (N,), device="jax"), stats.randint(0, 10)),
    "randint of bounds": (
        lambda: torch.randint(low=-2, high=7, size=(N,), device="jax"),
        stats.randint(-2, 7),
    ),
    "randint_like": (lambda: torch.randint_like(ones(N), 3, 7), stats.randint(3, 7)),
    "random_": (lambda: ones(N).random_(3, 9), stats.randint(3, 9)),
    "random_ of bools": (lambda: ones(N, dtype=torch.bool).random_(), stats.randint(0, 2)),
    "bernoulli": (lambda: torch.bernoulli(0.3 * ones(N)), stats.bernoulli(0.3)),
    "bernoulli of p": (lambda: ones(N).bernoulli(0.3), stats.bernoulli(0.3)),
    "bernoulli_": (lambda: ones(N, dtype=torch.bool).bernoulli_(0.3), stats.bernoulli(0.3)),
    "bernoulli_ of a tensor": (lambda: ones(N).bernoulli_(0.3 * ones(N)), stats.bernoulli(0.3)),
    "poisson": (lambda: torch.poisson(4 * ones(N)), stats.poisson(4)),
    "poisson of a large rate": (lambda: torch.poisson(30 * ones(N)), stats.poisson(30)),
    "binomial": (lambda: torch.binomial(10 * ones(N), 0.3 * ones(N)), stats.binom(10, 0.3)),
    "binomial of many": (lambda: torch.binomial(60 * ones(N), 0.4 * ones(N)), stats.binom(60, 0.4)),
    "geometric_": (lambda: ones(N).geometric_(0.3), stats.geom(0.3)),
    "dropout": (lambda: F.dropout(ones(N), 0.3) > 0, stats.bernoulli(0.7)),
    "dropout_": (lambda: F.dropout(ones(N), 0.3, inplace=True) > 0, stats.bernoulli(0.7)),
    "dropout1d": (lambda: F.dropout1d(ones(10, N // 10, 3), 0.3)[..., 0] > 0, stats.bernoulli(0.7)),
    "dropout2d": (lambda: F.dropout2d(ones(10, N // 10, 2, 2), 0.3)[..., 0, 0] > 0, stats.bernoulli(0.7)),
    "dropout3d": (
        lambda: F.dropout3d(ones(10, N // 10, 2, 1, 1), 0.3)[..., 0, 0, 0] > 0,
        stats.bernoulli(0.7),
    ),
    "alpha_dropout": (lambda: F.alpha_dropout(ones(N), 0.3, True) > 0, stats.bernoulli(0.7)),
    "feature_alpha_dropout": (
        lambda: F.feature_alpha_dropout(ones(10, N // 10, 3), 0.3, True)[..., 0] > 0,
        stats.bernoulli(0.7),
    ),
    "native_dropout": (lambda: torch.native_dropout(ones(N), 0.3, True)[1], stats.bernoulli(0.7)),
    "Geometric": (lambda: torch.distributions.Geometric(0.3 * ones(N)).sample() + 1, stats.geom(0.3)),
    "NegativeBinomial": (
        lambda: torch.distributions.NegativeBinomial(3 * ones(N), 0.3 * ones(N)).sample(),
        stats.nbinom(3, 0.7),
    ),
}
ALL = CONTINUOUS | COUNTS
# What draws as another of them does, or is made of its draws.
LIKE_ANOTHER = {
    "rand of a size", "randn in two dimensions", "normal of a mean", "normal of a deviation", "uniform_ by keywords",
    "rrelu_", "Beta", "Gumbel", "Laplace", "StudentT", "randint of bounds", "random_ of bools", "bernoulli of p",
    "bernoulli_ of a tensor", "poisson of a large rate", "binomial of many", "dropout_", "dropout1d", "dropout2d",
    "native_dropout", "NegativeBinomial", "feature_alpha_dropout",
}  # fmt: skip


def sample(names: Iterable[str]) -> list[Any]:
    """Parameters of which those that are like another are slow."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in LIKE_ANOTHER else []) for name in names]


@pytest.mark.parametrize("name", sample(CONTINUOUS))
def test_continuous_distributions(name: str) -> None:
    draw, distribution = CONTINUOUS[name]
    numbers = eager(draw).double().flatten().numpy()
    assert numbers.size == N
    assert stats.kstest(numbers, distribution.cdf).pvalue > LEAST_P


def chi_square(numbers: np.ndarray, distribution: Any) -> float:
    """The p-value of counts of integers; rare values are put together, so that each is expected ten times."""
    values = np.arange(numbers.min(), numbers.max() + 1)
    is_common = distribution.pmf(values) * numbers.size >= 10
    common = values[is_common]
    observed = np.array([np.sum(numbers == value) for value in common])
    expected = distribution.pmf(common) * numbers.size
    observed = np.append(observed, numbers.size - observed.sum())
    expected = np.append(expected, numbers.size - expected.sum())
    is_possible = expected > 1e-6
    assert not observed[~is_possible].any()
    # `chisquare` compares the sums to 1e-8.
    expected = expected[is_possible] * (numbers.size / expected[is_possible].sum())
    return float(stats.chisquare(observed[is_possible], expected).pvalue)


@pytest.mark.parametrize("name", sample(COUNTS))
def test_distributions_of_integers(name: str) -> None:
    draw, distribution = COUNTS[name]
    numbers = eager(draw).double().flatten().numpy()
    assert numbers.size == N
    assert chi_square(numbers.astype(np.int64), distribution) > LEAST_P


# They ask for values of tensors, which a program does not have.
EAGER_ONLY = {"trunc_normal_", "Geometric"}


@pytest.mark.parametrize("name", sample(sorted(ALL.keys() - EAGER_ONLY)))
def test_a_seed_decides_eagerly_and_in_a_program(name: str) -> None:
    draw = ALL[name][0]
    first, again = eager(draw), eager(draw)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    compiled = tpuport.compile(lambda: draw())
    torch.manual_seed(0)
    in_program, in_second_call = host(compiled()), host(compiled())
    assert in_program.dtype == first.dtype
    torch.testing.assert_close(in_program, first, rtol=1e-5, atol=1e-5)
    assert not torch.equal(in_second_call, in_program)
    assert compiled.program.compilations == 1


def test_means_of_wide_dropout_are_kept() -> None:
    dropped = eager(lambda: F.dropout(ones(N), 0.3))
    torch.testing.assert_close(dropped.unique(), torch.tensor([0.0, 1 / 0.7]))
    assert eager(lambda: F.dropout(ones(4), 1.0)).tolist() == [0.0] * 4
    assert eager(lambda: F.dropout(ones(4), 0.5, training=False)).tolist() == [1.0] * 4
    kept = eager(lambda: F.alpha_dropout(torch.randn(N, device="jax"), 0.3, True))
    assert abs(kept.mean().item()) < 0.03
    assert abs(kept.std().item() - 1) < 0.03


def test_rows_of_multinomial_are_independent() -> None:
    weights = torch.tensor([0.1, 0.0, 0.5, 0.4])
    drawn = eager(lambda: torch.multinomial(weights.to("jax").expand(N, 4), 1)).numpy().flatten()
    counts = np.bincount(drawn, minlength=4)
    assert counts[1] == 0
    assert stats.chisquare(counts[[0, 2, 3]], N * np.array([0.1, 0.5, 0.4])).pvalue > LEAST_P


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_multinomial_with_replacement(scale: float) -> None:
    weights = scale * torch.tensor([[0.1, 0.0, 0.5, 0.4, 0.0], [0.0, 1.0, 0.0, 0.0, 1.0]])
    drawn = eager(lambda: torch.multinomial(weights.to("jax"), N, replacement=True)).numpy()
    first, second = (np.bincount(row, minlength=5) for row in drawn)
    assert stats.chisquare(first[[0, 2, 3]], N * np.array([0.1, 0.5, 0.4])).pvalue > LEAST_P
    assert stats.chisquare(second[[1, 4]], N * np.array([0.5, 0.5])).pvalue > LEAST_P
    assert not first[[1, 4]].any()
    assert not second[[0, 2, 3]].any()


def test_multinomial_without_replacement_is_distinct_and_in_order_of_drawing() -> None:
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    drawn = eager(lambda: torch.multinomial(weights.to("jax").expand(N, 4), 3)).numpy()
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    pairs = np.bincount(drawn[:, 0] * 4 + drawn[:, 1], minlength=16).reshape(4, 4)
    share = np.array([0.1, 0.2, 0.3, 0.4])
    expected = N * share[:, None] * share[None, :] / (1 - share[:, None])
    different = ~np.eye(4, dtype=bool)
    assert stats.chisquare(pairs[different], expected[different]).pvalue > LEAST_P
    one_row = eager(lambda: torch.multinomial(ones(7), 7))
    assert sorted(one_row.tolist()) == list(range(7))


def test_permutations_are_uniform() -> None:
    drawn = [eager(lambda: torch.randperm(3, device="jax"), seed) for seed in range(200)]
    counts = np.unique(np.array([row.numpy() for row in drawn]), axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > LEAST_P
    assert eager(lambda: torch.randperm(0, device="jax")).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_uniform_numbers_never_reach_the_end(dtype: torch.dtype) -> None:
    for draw in (
        lambda: torch.rand(N * 10, device="jax", dtype=dtype),
        lambda: ones(N * 10, dtype=dtype).uniform_(),
    ):
        numbers = eager(draw)
        assert numbers.dtype == dtype
        assert 0 <= numbers.min() < 0.01
        assert 0.99 < numbers.max() < 1
    assert eager(lambda: ones(N * 10, dtype=dtype).exponential_()).min() > 0


@pytest.mark.parametrize("name", ["randn", "rand"])
def test_complex_numbers(name: str) -> None:
    numbers = eager(lambda: getattr(torch, name)(N, dtype=torch.complex64, device="jax"))
    expected = {"randn": (0, 0.5**0.5), "rand": (0.5, 12**-0.5)}[name]
    for part in (numbers.real, numbers.imag):
        assert abs(part.mean().item() - expected[0]) < 0.02
        assert abs(part.std().item() - expected[1]) < 0.02


def test_a_view_and_an_output_are_filled() -> None:
    def fill() -> torch.Tensor:
        x = torch.zeros(3, 4, device="jax")
        x[1].normal_()
        x[:, 3].fill_(5)
        return x

    filled = eager(fill)
    assert filled[0, :3].tolist() == filled[2, :3].tolist() == [0.0] * 3
    assert (filled[1, :3] != 0).all()
    out = eager(lambda: torch.rand(4, out=torch.zeros(4, device="jax"), device="jax"))
    assert (out != 0).all()


def test_the_whole_range_of_integers() -> None:
    assert eager(lambda: ones(N, dtype=torch.int32).random_()).max() > 2**30
    small = eager(lambda: ones(N, dtype=torch.uint8).random_())
    assert (small.min(), small.max()) == (0, 255)
    assert eager(lambda: torch.randint(2**31 - 2, 2**31, (N,), device="jax")).unique().tolist() == [
        2**31 - 2,
        2**31 - 1,
    ]


ERRORS: dict[str, Callable] = {
    "std": lambda device: torch.normal(0.0, -1.0, (2,), device=device),
    "std of a tensor": lambda device: torch.normal(
        torch.ones(2, device=device), -torch.ones(2, device=device)
    ),
    "normal_": lambda device: torch.ones(2, device=device).normal_(0, -1),
    "uniform_": lambda device: torch.ones(2, device=device).uniform_(2, 1),
    "exponential_": lambda device: torch.ones(2, device=device).exponential_(-1.0),
    "cauchy_": lambda device: torch.ones(2, device=device).cauchy_(0, -1.0),
    "log_normal_": lambda device: torch.ones(2, device=device).log_normal_(0, -1.0),
    "geometric_": lambda device: torch.ones(2, device=device).geometric_(0.0),
    "bernoulli_": lambda device: torch.ones(2, device=device).bernoulli_(1.5),
    "bernoulli": lambda device: torch.bernoulli(2 * torch.ones(2, device=device)),
    "dropout": lambda device: F.dropout(torch.ones(2, device=device), 1.5),
    "randint": lambda device: torch.randint(5, 5, (2,), device=device),
    "randint of bytes": lambda device: torch.randint(0, 300, (2,), dtype=torch.uint8, device=device),
    "randperm": lambda device: torch.randperm(-1, device=device),
    "a size": lambda device: torch.randn(-1, device=device),
    "integers": lambda device: torch.randn(2, dtype=torch.int64, device=device),
    "poisson": lambda device: torch.poisson(-torch.ones(2, device=device)),
    "weights below zero": lambda device: torch.multinomial(torch.tensor([-1.0, 2.0], device=device), 1),
    "no weights": lambda device: torch.multinomial(torch.zeros(3, device=device), 1),
    "more than there are": lambda device: torch.multinomial(torch.ones(3, device=device), 4),
    "no samples": lambda device: torch.multinomial(torch.ones(3, device=device), 0),
    "too many dimensions": lambda device: torch.multinomial(torch.ones(2, 2, 2, device=device), 1),
    "rrelu": lambda device: torch.rrelu(torch.ones(2, device=device), 2.0, 1.0, True),
    "integers of gamma": lambda device: torch._standard_gamma(
        torch.ones(2, dtype=torch.int64, device=device)
    ),
    "complex trials": lambda device: torch.ones(2, dtype=torch.complex64, device=device).geometric_(0.5),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_torch(name: str) -> None:
    with pytest.raises((RuntimeError, ValueError)) as expected:
        ERRORS[name]("cpu")
    with compat.environment(), pytest.raises(type(expected.value)) as error:
        ERRORS[name]("jax")
    # "std -1" and "std -1.0" are the same.
    assert str(error.value).split("=")[0][:30] == str(expected.value).split("=")[0][:30]


def test_numbers_on_the_host_stay_those_of_torch() -> None:
    for draw in (lambda: torch.randperm(5), lambda: torch.normal(0.0, 1.0, (3,)), lambda: torch.randn(3)):
        torch.manual_seed(0)
        expected = draw()
        drawn = eager(draw)
        assert drawn.dtype == expected.dtype
        assert torch.equal(drawn, expected)


def test_what_a_constructor_does_not_know_is_an_error() -> None:
    with compat.environment(), pytest.raises(TypeError, match="shape"):
        torch.rand(2, device="jax", shape=3)
    with compat.environment():
        assert torch.rand(2, device="jax", requires_grad=True).requires_grad


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.distributions.Categorical(ones(100, 4)),
        lambda: torch.distributions.Dirichlet(ones(100, 4)),
        lambda: torch.distributions.Multinomial(10, ones(4)),
        lambda: torch.distributions.OneHotCategorical(ones(100, 4)),
        lambda: torch.distributions.Normal(ones(100), ones(100)),
    ],
)
def test_distributions_in_a_program(make: Callable) -> None:
    drawn = tpuport.compile(lambda: make().sample())
    first, second = host(drawn()), host(drawn())
    assert first.shape == second.shape
    assert not torch.equal(first, second)


def test_a_distribution_checks_its_arguments() -> None:
    with compat.environment(), pytest.raises(ValueError, match="invalid values"):
        torch.distributions.Normal(ones(2), -ones(2))


def test_a_generator_of_the_device():
    generator = torch.Generator(device="jax").manual_seed(3)
    assert isinstance(generator, torch.Generator)
    with compat.environment():
        first = torch.randn(4, device="jax", generator=generator)
        second = torch.randn(4, device="jax", generator=torch.Generator().manual_seed(3))
    assert torch.equal(compat.to_torch(first.jax()), compat.to_torch(second.jax()))


@pytest.mark.parametrize("name", ["MultivariateNormal", "Geometric"])
def test_a_distribution_whose_constructor_looks_at_values(name):
    def sample(x):
        if name == "Geometric":
            return torch.distributions.Geometric(x.sigmoid()).sample()
        return torch.distributions.MultivariateNormal(x, torch.eye(4, device=x.device)).sample()

    compiled = tpuport.compile(sample)
    first, second = (tpuport.to_cpu(compiled(torch.zeros(4))) for _ in range(2))
    assert not torch.equal(first, second)


def test_values_that_are_known_are_validated():
    with pytest.raises(ValueError, match="probs"):
        torch.distributions.Geometric(torch.tensor([0.0]))


@pytest.mark.parametrize("name", ["rand", "randn", "randint", "randperm"])
def test_a_factory_fills_the_tensor_that_it_is_given(name: str) -> None:
    sizes: dict[str, tuple] = {"randint": (5, 900, (64,)), "randperm": (64,)}
    integers = name in sizes
    out = torch.full((64,), -7, dtype=torch.int64 if integers else torch.float32).to("jax")
    torch.manual_seed(3)
    assert getattr(torch, name)(*sizes.get(name, (64,)), out=out) is out
    torch.manual_seed(3)
    expected = getattr(torch, name)(*sizes.get(name, (64,)), device="jax")
    torch.testing.assert_close(compat.to_torch(out), compat.to_torch(expected))
    assert compat.to_torch(out).unique().numel() > 32
