import itertools

import pytest
import torch

Z = torch.randn(3, 5, dtype=torch.complex64) * 3
INFINITE = torch.tensor([complex("inf"), -complex("inf"), complex(float("-inf"), 2), 1 + 1j])


def test_two_numbers(agree):
    agree(lambda z: torch.view_as_real(torch.logaddexp(z, z[:1])), Z, tolerance=1e-4)
    agree(lambda z: torch.view_as_real(torch.logaddexp(z[2], z)), INFINITE, jit=False)
    agree(lambda z: torch.logaddexp(z.real, z.imag), Z)


def test_every_pair_of_infinite_parts(agree):
    parts = (torch.inf, -torch.inf, torch.nan, 1.0)
    numbers = torch.tensor([complex(*pair) for pair in itertools.product(parts, parts)])
    agree(lambda z: torch.view_as_real(torch.logaddexp(z[:, None], z)), numbers)


@pytest.mark.parametrize("dim", [0, -1])
def test_running_sum(agree, dim):
    agree(lambda z: torch.view_as_real(z.logcumsumexp(dim)), Z, tolerance=1e-4)
    agree(lambda z: torch.logcumsumexp(z.real, dim), Z, tolerance=1e-4)


def test_angles_go_on_beyond_pi(agree):
    turned = torch.complex(torch.zeros(40), torch.arange(40.0) * 0.5)
    agree(lambda z: torch.view_as_real(z.logcumsumexp(0)), turned, tolerance=1e-3, eager=False)
