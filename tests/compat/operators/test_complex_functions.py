"""Elementary functions of complex numbers beside torch, at infinities, NaN and zeros of both signs."""

import itertools

import jax
import pytest
import torch

import tpuport
from tpuport.compat.operators.complex_functions import FUNCTIONS, ON_HOST

PARTS = (torch.inf, -torch.inf, torch.nan, 2.0, -3.0, 0.5, 1.0, -1.0, 0.0, -0.0)
NUMBERS = torch.tensor([complex(*parts) for parts in itertools.product(PARTS, PARTS)])


def _signs(x):
    """Of zeros; 0 for other numbers."""
    parts = torch.view_as_real(x) if x.is_complex() else x
    return torch.where(parts == 0, torch.copysign(torch.ones(()), parts), 0.0)


@pytest.mark.parametrize("name", [*FUNCTIONS, *ON_HOST])
def test_every_pair_of_parts(agree, name):
    """Both parts, and the signs of their zeros."""
    function = getattr(torch, name)

    def parts(x):
        result = function(x)
        return (result.real, result.imag) if result.is_complex() else result

    agree(parts, NUMBERS)
    compiled = tpuport.to_cpu(tpuport.compile(function)(NUMBERS))
    assert torch.equal(_signs(compiled), _signs(function(NUMBERS)))


@pytest.mark.parametrize("name", ["abs", "sqrt", "exp2"])
def test_numbers_that_are_not_complex(agree, name):
    agree(getattr(torch, name), torch.tensor([0.25, torch.inf, torch.nan, -0.0]))
    agree(getattr(torch, name), torch.tensor([4, 9, 0]))


@pytest.mark.parametrize("name", ["exp", "asin", "tanh", "sqrt", "cos"])
def test_gradients_of_finite_numbers(name):
    """Those at infinities do not reach them."""
    z = torch.tensor([0.3 + 0.2j, -1.5 - 0.7j, 2.0 + 1j], requires_grad=True)
    getattr(torch, name)(z).real.sum().backward()

    def loss(array):
        with tpuport.compat.environment():
            return getattr(torch, name)(tpuport.compat.wrap(array)).real.sum().jax()

    gradient = jax.jit(jax.grad(loss))
    ours = gradient(tpuport.compat.to_jax(z.detach()))
    # jax's gradient is the conjugate of torch's.
    torch.testing.assert_close(
        tpuport.compat.to_torch(tpuport.compat.wrap(ours)), z.grad.conj().resolve_conj()
    )


def test_negative_and_sigmoid(agree):
    def both(x):
        return [part for result in (-x, torch.sigmoid(x)) for part in (result.real, result.imag)]

    agree(both, NUMBERS)


def test_logarithms_of_denormal_numbers():
    """They count as zeros; torch of zeros is the reference."""
    tiny = torch.tensor([complex(x, y) for x in (1e-40, -1e-40) for y in (1e-40, -1e-40)])
    zeros = torch.tensor([complex(x, y) for x in (0.0, -0.0) for y in (0.0, -0.0)])
    torch.testing.assert_close(tpuport.to_cpu(torch.log(tiny.to("jax"))), torch.log(zeros))


FEW = torch.tensor(
    [complex(*parts) for parts in itertools.product((torch.inf, torch.nan, -2.0, 0.5), repeat=2)]
)


def test_quotients(agree):
    """Both parts of a divisor may be infinite, or one."""

    def quotients(x):
        results = (x[:, None] / x, 2 / x, x / torch.inf, x.reciprocal(), x.rsqrt())
        return [part for result in results for part in (result.real, result.imag)]

    agree(quotients, FEW)


def test_angles_and_signs_of_denormal_numbers():
    """They count as zeros, as `test_angles_of_denormals` says of real ones."""
    tiny = torch.tensor([complex(x, y) for x in (1e-40, -1e-40) for y in (1e-40, -1e-40)])
    zeros = torch.tensor([complex(x, y) for x in (0.0, -0.0) for y in (0.0, -0.0)])
    for function in (torch.angle, torch.sgn):
        torch.testing.assert_close(tpuport.to_cpu(function(tiny.to("jax"))), function(zeros))
