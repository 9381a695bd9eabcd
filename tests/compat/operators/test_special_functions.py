import pytest
import torch

X = torch.tensor([0.3, 2.5, 40.0, -0.5, -3.3, -8.478373, 0.0, -0.0, -2.0])


@pytest.mark.parametrize(
    "order", [0, 1, 2, *(pytest.param(order, marks=pytest.mark.slow) for order in (3, 4))]
)
def test_polygamma(agree, order):
    agree(lambda x: torch.polygamma(order, x), X[:6], tolerance=1e-4)
    agree(lambda x: x.clone().polygamma_(order), X[:5], tolerance=1e-4)


def test_trigamma_at_its_poles_and_near_them(agree):
    poles = torch.tensor([0.0, -0.0, -1.0, -2.0, -3.0, -100.0, -1e6, -1e8, torch.inf, -torch.inf])
    near = torch.tensor([-0.99999, -1.00001, -1.9999, -12.000001, -1000.25, 1e-5, 1e10])
    agree(lambda x: torch.polygamma(1, x), torch.cat([poles, near]), tolerance=1e-4)
    agree(lambda x: torch.polygamma(1, x), poles.bfloat16(), tolerance=1e-2, eager=False)


def test_digamma(agree):
    agree(torch.digamma, X)
    agree(torch.digamma, X[:5].bfloat16(), tolerance=1e-2)
    agree(torch.digamma, torch.tensor([True, False]))


def test_the_scaled_error_function_and_what_it_is_for(agree):
    x = torch.cat([torch.linspace(-10, 20, 301), torch.tensor([1e2, 1e4, 1e18, 1e30, torch.inf, -torch.inf])])
    agree(lambda x: [torch.special.erfcx(x), torch.special.log_ndtr(-x)], x)
    agree(lambda x: [torch.special.erfcx(x), torch.special.log_ndtr(x)], torch.tensor([-70_000, 0, 3, 50]))


def test_bools_are_numbers(agree):
    agree(lambda x: [torch.special.bessel_j0(x > 0), torch.special.zeta(x > 0, 2.0)], X)
