import pytest
import torch

from tpuport import compat

POINTS = torch.rand(50, 2)
EDGES = [torch.tensor([0.0, 0.2, 0.5]), torch.tensor([0.1, 0.4, 0.6, 1.0])]
CASES = {
    "counts": lambda x: torch.histogramdd(x, [2, 3]),
    "one count": lambda x: torch.histogramdd(x, 4, range=[0.0, 1.0, 0.25, 0.75]),
    "density": lambda x: torch.histogramdd(x, [2, 3], density=True),
    "weights": lambda x: torch.histogramdd(x, [2, 3], weight=x[:, 0]),
    "edges": lambda x: torch.histogramdd(x, [edges.to(x.device) for edges in EDGES]),
    "edges in no order": lambda x: torch.histogramdd(x, [edges.flip(0).to(x.device) for edges in EDGES]),
}


@pytest.mark.parametrize("name", CASES)
def test_points(agree, name):
    def counts(x):
        histogram, edges = CASES[name](x)
        return [histogram, *edges]

    agree(counts, POINTS, eager=name == "counts")


def test_the_last_bin_has_its_end_and_nan_no_bin(agree):
    edges = torch.tensor([0.0, 1.0, 2.0])
    x = torch.tensor([0.0, 1.0, 2.0, 2.5, -1.0, float("nan")])
    agree(lambda x, edges: list(torch.histogram(x, edges)), x, edges)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_bins_by_quotients_that_are_rounded(agree, dtype):
    def counts(x):
        limits = [(100, 0, 0), (100, 0, 1), (7, -1, 2), (4, 0.25, 0.75)]
        return [torch.histc(x, bins, low, high) for bins, low, high in limits] + [torch.histc(x[:1, 0], 4)]

    agree(counts, POINTS.to(dtype))


@pytest.mark.parametrize("values", [[1.0, float("nan")], [1.0, float("inf")]])
def test_bins_between_what_is_not_finite_are_refused(values):
    with compat.environment(), pytest.raises(RuntimeError, match="not finite"):
        torch.histc(compat.wrap(compat.to_jax(torch.tensor(values))), 2)


def test_experts_are_counted_by_their_numbers():
    """Which torch does for floats on the host, and for integers on a GPU."""
    experts = torch.randint(0, 8, (100,))
    with compat.environment():
        counts = torch.histc(compat.wrap(compat.to_jax(experts)), bins=8, min=0, max=7)
    assert counts.tolist() == torch.bincount(experts, minlength=8).tolist()


def test_other_bins_than_coordinates_are_refused():
    with compat.environment(), pytest.raises(RuntimeError, match="innermost dimension"):
        torch.histogramdd(compat.wrap(compat.to_jax(POINTS)), [2, 3, 4])
