import pytest
import torch

from tpuport.compat.operators.polynomials import FAMILIES

X = torch.tensor([-1.0, -0.9, -0.2, 0.0, 0.3, 0.99, 1.0])


# Chebyshev's kinds differ in their first polynomial only, and so do the shifted ones.
LIKE_ANOTHER = {
    *(f"shifted_chebyshev_polynomial_{kind}" for kind in "uvw"),
    *(f"chebyshev_polynomial_{kind}" for kind in "vw"),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in LIKE_ANOTHER else []) for name in FAMILIES],
)
def test_every_degree(agree, name):
    function = getattr(torch.special, name)

    def both(x, degrees):
        return function(x[:, None], degrees), function(x, 3), function(0.4, degrees)

    agree(both, X, torch.tensor([-1, 0, 1, 2, 5, 9]), tolerance=1e-4)


def test_degrees_beyond_those_that_torch_computes(agree):
    agree(torch.special.hermite_polynomial_h, X, torch.tensor([0, 1, 2, 128, 129, 200, 3]), jit=False)


def test_integers_and_gradients(agree):
    agree(lambda x: torch.special.legendre_polynomial_p(x, 4), torch.arange(4), jit=False)


@pytest.mark.parametrize("name", FAMILIES)
def test_degrees_that_are_no_numbers(agree, name):
    """Not even as bounds of a loop, which would run for minutes."""
    function = getattr(torch.special, name)
    degrees = torch.tensor([torch.inf, -torch.inf, torch.nan, 2.0])
    agree(lambda x, n: (function(x[:, None], n), function(x, torch.inf)), X[1:5], degrees, long=True)
